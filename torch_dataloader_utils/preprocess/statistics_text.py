"""Statistics as text and as HTML for notebooks: a row for each column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.printing import html_table, plural, shortened, text_table
from torch_dataloader_utils.redaction import printable

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.column_statistics import ColumnStatistics, Statistics

HEADER = ("column", "type", "missing", "distinct", "min", "mean or top", "max", "25% · 50% · 75%", "values")
NUMBERS = HEADER[2:7]
_OF_FOOTERS = ("column", "type", "missing", "min", "max")
UNKNOWN = "unknown"
FOOTERS = (
    "From footers alone, which say nothing of NaN, different values, means and quantiles, nor of the ends of floats "
    "and texts."
)
_BLOCKS = "▁▂▃▄▅▆▇█"
_BARS, _WIDTH = 12, 24


def as_text(statistics: Statistics) -> str:
    """All of it, for a terminal."""
    header, *rows = table(statistics)
    places = [header.index(name) for name in NUMBERS if name in header]
    widths = {place: max(len(row[place]) for row in [header, *rows]) for place in places}
    aligned = [[cell.rjust(widths.get(place, 0)) for place, cell in enumerate(row)] for row in [header, *rows]]
    parts = [title(statistics), "", *text_table(aligned[0], aligned[1:])]
    if notes := remark_lines(statistics):
        parts += ["", *notes]
    if statistics.spec:
        parts += ["", "A spec to begin with:", "", statistics.spec_text]
    return "\n".join(map(printable, parts))


def as_html(statistics: Statistics) -> str:
    """All of it, for a notebook."""
    notes = "".join(f"<li>{escape(printable(line))}</li>" for line in remark_lines(statistics))
    header, *rows = [list(map(printable, row)) for row in table(statistics)]
    spec = f"<details><summary>A spec to begin with</summary><pre>{escape(statistics.spec_text)}</pre></details>"
    return (
        f"<div><b>{escape(printable(title(statistics)))}</b>{html_table(header, rows)}"
        f"{f'<ul>{notes}</ul>' if notes else ''}{spec if statistics.spec else ''}</div>"
    )


def title(statistics: Statistics) -> str:
    """What it is of, in a line."""
    size = f"{plural(statistics.rows, 'row')}, {plural(len(statistics.columns), 'column')}"
    return f"{statistics.name}: {size}" if statistics.name else size


def table(statistics: Statistics) -> list[list[str]]:
    """The header, and the cells of each column; of footers alone, what these may know."""
    places = [place for place, name in enumerate(HEADER) if not statistics.from_footers or name in _OF_FOOTERS]
    return [[row[place] for place in places] for row in [HEADER, *map(_cells, statistics.columns)]]


def _cells(column: ColumnStatistics) -> list[str]:
    return [
        column.name,
        column.type,
        share_text(column),
        distinct_text(column),
        shown(column.min),
        middle_text(column),
        shown(column.max),
        quartiles_text(column),
        blocks(column),
    ]


def remark_lines(statistics: Statistics) -> list[str]:
    """The remarks, with the columns that have them: one line for all columns of a kind."""
    named: dict[str, list[str]] = {}
    for column in statistics.columns:
        for remark in column.remarks:
            named.setdefault(remark, []).append(column.name)
    lines = [f"{remark} ({', '.join(names)})" for remark, names in named.items()]
    return [FOOTERS, *lines] if statistics.from_footers else lines


def share_text(column: ColumnStatistics) -> str:
    """The share of missing values; 0 only if there is none."""
    if column.missing_share is not None:
        return _percent(column.missing_share)
    return UNKNOWN if column.nulls is None else f"{_percent(column.nulls / max(column.rows, 1))} and NaN"


def _percent(share: float) -> str:
    return "0" if not share else "<0.1%" if share < 0.001 else f"{share:.1%}"


def distinct_text(column: ColumnStatistics) -> str:
    """The number of different values; "~" for an estimate."""
    if column.distinct is None:
        return UNKNOWN
    return f"{'' if column.distinct_exact else '~'}{column.distinct:,}"


def middle_text(column: ColumnStatistics) -> str:
    """The mean; of what has none, the most frequent value and its share."""
    if column.mean is not None:
        return shown(column.mean)
    if not column.top or column.top[0][1] == 1:
        return UNKNOWN if column.distinct is None else ""
    value, count = column.top[0]
    return f"{shown(value)} ({top_share(column, count):.0%})"


def top_share(column: ColumnStatistics, count: int) -> float:
    """The share of all rows, or of all values in lists."""
    return count / max((column.rows if column.lengths is None else column.values) or 1, 1)


def quartiles_text(column: ColumnStatistics) -> str:
    """The quartiles."""
    if column.quantiles is None or column.type == "bool":
        return ""
    return " · ".join(shown(column.quantiles[share]) for share in (0.25, 0.5, 0.75))


def shown(value: Any) -> str:
    """A value in few characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        large = 1e4 <= abs(value) < 1e12 or (value.is_integer() and abs(value) < 1e4)
        return f"{value:,.0f}" if large else f"{value:,.4g}"
    if isinstance(value, bytes):
        return shortened(repr(value)[2:-1], _WIDTH)
    if isinstance(value, (dt.datetime, dt.time)):
        return value.replace(microsecond=0, tzinfo=None).isoformat().replace("T", " ")
    return shortened(printable(str(value)).replace("\n", "\\n").replace("\t", "\\t"), _WIDTH)


def blocks(column: ColumnStatistics) -> str:
    """A small histogram: of numbers by value, of texts by the most frequent ones."""
    if column.histogram is not None:
        return bars(_joined(column.histogram.counts, _BARS))
    return bars([count for _, count in column.top or ()])


def bars(counts: Sequence[int]) -> str:
    """A block for each count, relative to the greatest; a space for 0."""
    most = max(counts, default=0)
    return "".join(" " if not count else _BLOCKS[(len(_BLOCKS) * count - 1) // most] for count in counts)


def _joined(counts: Sequence[int], most: int) -> list[int]:
    """The counts of neighbours together, so that no more than `most` are left."""
    step = -(-len(counts) // most)
    return [sum(counts[first : first + step]) for first in range(0, len(counts), step)]
