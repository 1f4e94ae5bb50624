"""Builds the page of statistics: one HTML file with its style, script and pictures, which needs no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.preprocess.statistics_text import (
    FOOTERS,
    distinct_text,
    middle_text,
    share_text,
    shown,
    title,
    top_share,
)
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.redaction import printable

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.column_statistics import ColumnStatistics, Statistics

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_HEADER = ("column", "type", "missing", "distinct", "min", "mean or top", "max", "values")
_TEXTS = (0, 1, 7)  # the columns of the table that hold no numbers
_WIDTH, _HEIGHT = 168, 34  # of a small picture


def page_of(statistics: Statistics) -> str:
    """The page, as HTML. All that comes from the data is escaped."""
    parts = {
        "title": _text(statistics.name or "Statistics"),
        "subtitle": _text(f"{plural(statistics.rows, 'row')}, {plural(len(statistics.columns), 'column')}"),
        "style": (files("torch_dataloader_utils.plan_page") / "page.css").read_text(encoding="utf-8"),
        "own_style": _asset("statistics.css"),
        "script": _asset("statistics.js"),
        "note": f'<p class="notice">{_text(FOOTERS)}</p>' if statistics.from_footers else "",
        "remarks": _remarks(statistics),
        "head": "".join(_head(place, name) for place, name in enumerate(_HEADER)),
        "rows": "\n".join(_rows(place, column) for place, column in enumerate(statistics.columns)),
        "spec": _spec(statistics),
        "alt": _text(title(statistics)),
    }
    return _PLACE.sub(lambda place: parts[place[1]], _asset("statistics.html"))


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _text(value: Any) -> str:
    return escape(printable(str(value)))


def _remarks(statistics: Statistics) -> str:
    items = "".join(
        f'<li><a href="#c{place}">{_text(column.name)}</a> {_text("; ".join(column.remarks))}</li>'
        for place, column in enumerate(statistics.columns)
        if column.remarks
    )
    title = "<h2>What catches the eye</h2>"
    return f'<section class="verdict warn">{title}<ul class="remarks">{items}</ul></section>' if items else ""


def _head(place: int, name: str) -> str:
    side = "" if place in _TEXTS else ' class="number"'
    return f'<th scope="col"{side} aria-sort="none"><button type="button" data-sort="{place}">{name}</button></th>'


def _rows(place: int, column: ColumnStatistics) -> str:
    """The row of a column, and that of its details."""
    cells = [
        (f'<button type="button" class="more" aria-expanded="false">{_text(column.name)}</button>', column.name),
        (f"<code>{_text(column.type)}</code>", column.type),
        (_missing(column), column.missing_share),
        (_text(distinct_text(column)), column.distinct),
        (_text(shown(column.min)), column.min),
        (_text(middle_text(column)), column.mean if column.mean is not None else _most(column)),
        (_text(shown(column.max)), column.max),
        (picture(column, _WIDTH, _HEIGHT), (column.kind, column.name)),
    ]
    made = "".join(
        f'<td{"" if at in _TEXTS else " class=number"} data-value="{_text(_sortable(value))}">{cell}</td>'
        for at, (cell, value) in enumerate(cells)
    )
    words = "".join(f'<span class="remark">{_text(remark)}</span>' for remark in column.remarks)
    return (
        f'<tr class="column" id="c{place}" data-name="{_text(column.name.lower())}">{made}</tr>'
        f'<tr class="details" hidden><td colspan="{len(_HEADER)}">'
        f'<div class="detail">{words}{_details(column)}</div></td></tr>'
    )


def _most(column: ColumnStatistics) -> float | None:
    return top_share(column, column.top[0][1]) if column.top else None


def _sortable(value: Any) -> str:
    """What a script sorts by: numbers as they are, other values as text."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(value)
    return repr(value + 0) if isinstance(value, (int, float)) else str(value)


def _missing(column: ColumnStatistics) -> str:
    share = column.missing_share
    bar = "" if not share else f'<span class="share"><i style="width:{max(100 * share, 2):.1f}%"></i></span>'
    return f"{_text(share_text(column))}{bar}"


def _details(column: ColumnStatistics) -> str:
    facts = [
        ("rows", column.rows),
        ("missing", column.missing),
        ("of these NaN", column.nan or None),
        ("infinite", column.infinite or None),
        ("standard deviation", column.std),
        *((f"{share:.0%} quantile", value) for share, value in (column.quantiles or {}).items()),
        ("rank error of quantiles", column.quantile_error or None),
    ]
    if column.lengths is not None:
        facts += zip(("shortest list", "mean length", "longest list"), column.lengths, strict=True)
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(shown(v))}</dd>" for name, v in facts if v is not None)
    return f"<dl>{items}</dl>{_top(column)}{_large(column)}"


def _large(column: ColumnStatistics) -> str:
    if column.histogram is None:
        return ""
    cut = " The first and the last bar hold what lies beyond." if column.histogram.cut else ""
    ends = (
        f"<span>{_text(shown(column.histogram.edges[0]))}</span><span>{_text(shown(column.histogram.edges[-1]))}</span>"
    )
    return f'<figure>{picture(column, 420, 120)}<div class="ends">{ends}</div><p class="hint">{cut}</p></figure>'


def _top(column: ColumnStatistics) -> str:
    if not column.top or column.top[0][1] == 1:
        return ""
    most = column.top[0][1]
    rows = "".join(
        f'<tr><td>{_text(shown(value)) or "<i>empty</i>"}</td><td class="number">{count:,}</td>'
        f'<td class="number">{top_share(column, count):.1%}</td>'
        f'<td class="wide"><span class="share"><i style="width:{100 * count / most:.1f}%"></i></span></td></tr>'
        for value, count in column.top
    )
    return f'<table class="top-values"><caption>most frequent</caption>{rows}</table>'


def picture(column: ColumnStatistics, width: int, height: int) -> str:
    """A histogram as SVG: of numbers and times by value, of others by the most frequent values."""
    if column.histogram is not None:
        edges = [shown(edge) for edge in column.histogram.edges]
        labels = [f"{low} to {high}" for low, high in pairwise(edges)]
        return _bars(column.histogram.counts, labels, width, height, "bars")
    if column.top and column.top[0][1] > 1:
        return _bars([n for _, n in column.top], [shown(value) for value, _ in column.top], width, height, "ranks")
    return ""


def _bars(counts: Sequence[int], labels: Sequence[str], width: int, height: int, kind: str) -> str:
    step, most = width / max(len(counts), 8 if kind == "ranks" else 1), max(counts)
    made = []
    for place, (count, label) in enumerate(zip(counts, labels, strict=True)):
        tall = max(height * count / most, 1.5) if count else 0
        made.append(
            f'<rect x="{place * step:.1f}" y="{height - tall:.1f}" width="{max(step - 1, 1):.1f}" height="{tall:.1f}">'
            f"<title>{_text(label)}: {count:,}</title></rect>"
        )
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="histogram">{"".join(made)}</svg>'
    )


def _spec(statistics: Statistics) -> str:
    if not statistics.spec:
        return ""
    codes = "".join(
        f'<figure><figcaption>{name} <button type="button" data-copy="{key}">Copy'
        f'<span class="unseen"> the spec as {name}</span></button></figcaption>'
        f'<pre tabindex="0" aria-label="The spec as {name}"><code id="{key}">{_text(text)}'
        "</code></pre></figure>"
        for name, key, text in (("Python", "python", statistics.spec_text), ("YAML", "yaml", statistics.spec_yaml))
    )
    title = '<h2 id="spec">A spec to begin with</h2>'
    return f'<section aria-labelledby="spec">{title}<div class="codes">{codes}</div></section>'
