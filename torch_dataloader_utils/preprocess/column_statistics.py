"""Statistics of columns for people: what a scan counted, as a frozen result that prints as text and HTML."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.kernels.grid import Cells, values_of
from torch_dataloader_utils.plan_page.page import write_page
from torch_dataloader_utils.preprocess.column_scan import ColumnScan, NumberScan, StatisticsScan, TextScan, of_integer
from torch_dataloader_utils.preprocess.statistics_page import page_of
from torch_dataloader_utils.preprocess.statistics_text import as_html, as_text
from torch_dataloader_utils.preprocess.suggestions import remarks_of, spec_of, spec_text, spec_yaml

if TYPE_CHECKING:
    import os

    from torch_dataloader_utils.preprocess.steps import F64
from torch_dataloader_utils.preprocess.transforms import ColumnTransform

SHARES = (0.01, 0.25, 0.5, 0.75, 0.99)
BINS = 24
_TOP = 10
_STRETCHED = 8  # a range so many times that of the inner 98 % of values hides these in a histogram


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie in bins of one width.

    Attributes:
        edges: between the bins, ascending, one more than bins: numbers or times.
        counts: of each bin.
        cut: whether values beyond the first and the last edge are counted in the first and the last bin.
    """

    edges: tuple[Any, ...]
    counts: tuple[int, ...]
    cut: bool


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of a column; None: not known, or there is no such thing. In lists, values are their elements.

    Attributes:
        name: of the column.
        type: its Arrow type.
        kind: what it holds, in words, such as "number" or "list of text".
        rows: how many.
        nulls: how many of the rows are null.
        nan: how many values are NaN; these are missing, too.
        infinite: how many values are infinite: they are in no mean, deviation, quantile and histogram.
        values: how many values are there, infinite ones among them.
        distinct: how many different ones of them.
        distinct_exact: whether that is exact, not an estimate with a standard error of 1.6 %.
        whole: whether all finite numbers are whole (and no decimals).
        min: the least value; of numbers, the least finite one.
        max: the greatest, likewise.
        mean: of the finite numbers, rounded once.
        std: their standard deviation (of the population, as `Standardize` has it).
        quantiles: by share, as `Clip` and `Impute("median")` learn them.
        quantile_error: how far ranks of quantiles may be off, as a share of all values; 0.0 if they are exact.
        top: the most frequent values and their counts; None if there are more than 65,536 values.
        histogram: of finite numbers and times.
        lengths: of lists: the least length, the mean and the greatest.
        remarks: what catches the eye.
    """

    name: str
    type: str
    kind: str
    rows: int
    nulls: int | None = None
    nan: int | None = None
    infinite: int | None = None
    values: int | None = None
    distinct: int | None = None
    distinct_exact: bool = False
    whole: bool = False
    min: Any = None
    max: Any = None
    mean: float | None = None
    std: float | None = None
    quantiles: Mapping[float, Any] | None = None
    quantile_error: float | None = None
    top: tuple[tuple[Any, int], ...] | None = None
    histogram: Histogram | None = None
    lengths: tuple[int, float, int] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def missing(self) -> int | None:
        """The rows that are null or NaN; of lists, those that are null. None if it is not known."""
        if self.lengths is not None:
            return self.nulls
        return None if self.nulls is None or self.nan is None else self.nulls + self.nan

    @property
    def missing_share(self) -> float | None:
        """Their share of all rows."""
        return None if self.missing is None else self.missing / max(self.rows, 1)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it: times in ISO format, bytes and infinities as texts."""
        made: dict[str, Any] = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        made["quantiles"] = None
        if self.quantiles is not None:
            made["quantiles"] = {str(share): _plain(value) for share, value in self.quantiles.items()}
        made["histogram"] = self.histogram and {name: _plain(each) for name, each in asdict(self.histogram).items()}
        made["missing"] = self.missing
        return made


@dataclass(frozen=True)
class Statistics:
    """Statistics of the columns of some rows. Print it, show it in a notebook, or take its values.

    Attributes:
        name: of the data.
        rows: how many.
        columns: by column, in order.
        from_footers: whether they are what footers of files say, without reading.
    """

    name: str
    rows: int
    columns: tuple[ColumnStatistics, ...]
    from_footers: bool = False

    def __getitem__(self, column: str) -> ColumnStatistics:
        """Those of a column."""
        return next(each for each in self.columns if each.name == column)

    @cached_property
    def spec(self) -> dict[str, list[ColumnTransform]]:
        """A spec to begin with: `Preprocess(statistics.spec)` fits on these rows. Empty if from footers alone."""
        return {} if self.from_footers else spec_of(self.columns)

    @property
    def spec_text(self) -> str:
        """The spec as Python, to paste; "" if there is none."""
        return spec_text(self.spec, self.columns) if self.spec else ""

    @property
    def spec_yaml(self) -> str:
        """The spec as YAML, for `tdu fit --spec`; "" if there is none."""
        return spec_yaml(self.spec) if self.spec else ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, as JSON and YAML have them."""
        return {
            "name": self.name,
            "rows": self.rows,
            "from_footers": self.from_footers,
            "columns": [column.to_dict() for column in self.columns],
            "spec": {name: [link.to_dict() for link in chain] for name, chain in self.spec.items()},
        }

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_html(self) -> str:
        """A whole page, which needs no network."""
        return page_of(self)

    def write_html(self, path: str | os.PathLike[str]) -> Path:
        """Write that page; returns the path.

        Raises:
            OptionError: the path is a folder, lies in a folder that does not exist, or cannot be written.
        """
        return write_page(path, self.to_html(), "write_html", "statistics.html")


def statistics_of(scan: StatisticsScan, name: str) -> Statistics:
    """The statistics that a scan counted."""
    columns = tuple(_of_column(column, each) for column, each in scan.columns.items())
    return Statistics(name, scan.rows, columns)


def _of_column(name: str, scan: ColumnScan) -> ColumnStatistics:
    known: dict[str, Any] = {"nan": 0, "infinite": 0}
    if isinstance(scan.values, NumberScan):
        known = _of_numbers(scan.values)
    elif isinstance(scan.values, TextScan):
        known |= _of_texts(scan.values)
    if scan.lengths is not None:
        ends = scan.lengths.least or 0, scan.lengths.greatest or 0
        known["lengths"] = int(ends[0]), scan.lengths.mean, int(ends[1])
    made = ColumnStatistics(name, str(scan.type), scan.kind.text, scan.rows, scan.nulls, **known)
    inside = scan.values.nulls if scan.lengths is not None and scan.values is not None else 0
    return ColumnStatistics(**{**_fields(made), "remarks": tuple(remarks_of(made, inside))})


def _fields(column: ColumnStatistics) -> dict[str, Any]:
    return {field.name: getattr(column, field.name) for field in fields(column)}


def _of_texts(scan: TextScan) -> dict[str, Any]:
    known: dict[str, Any] = {"min": scan.least, "max": scan.greatest, "values": scan.there}
    if scan.counts is None:
        return {**known, "distinct": scan.hashes.count, "distinct_exact": scan.hashes.exact}
    values, counts = scan.counts.kept(max_size=_TOP)
    top = tuple(zip(values.to_pylist(), counts.tolist(), strict=True))
    return {**known, "distinct": scan.counts.distinct, "distinct_exact": True, "top": top}


def _of_numbers(scan: NumberScan) -> dict[str, Any]:
    seen, type_ = scan.statistics, scan.type
    infinite = seen.below + seen.above
    known: dict[str, Any] = {"nan": seen.missing, "infinite": infinite, "whole": scan.whole}
    known |= {"values": seen.finite + infinite, "distinct": scan.hashes.count, "distinct_exact": scan.hashes.exact}
    assert seen.grid is not None
    if scan.exact:
        values, counts = seen.grid.pairs()
        both = (seen.below > 0) + (seen.above > 0)
        known |= {"distinct": len(values) + both, "distinct_exact": True, "top": _top(scan, values, counts)}
    if not seen.finite:
        return known
    shares = seen.quantiles(SHARES)
    known["quantiles"] = {share: _value(number, type_) for share, number in zip(SHARES, shares, strict=True)}
    known["quantile_error"] = seen.error(seen.in_doubt(SHARES))
    known["histogram"] = _histogram(seen.grid.cells(), type_, shares[0], shares[-1])
    if scan.least is not None and scan.greatest is not None:
        known |= {"min": of_integer(scan.least, type_), "max": of_integer(scan.greatest, type_)}
    if seen.sums is not None:
        least, greatest = seen.sums.least, seen.sums.greatest
        if scan.least is None and least is not None and greatest is not None:
            known |= {"min": _value(least, type_), "max": _value(greatest, type_)}
        known |= {"mean": seen.sums.mean, "std": seen.sums.std()}
    return known


def _value(number: float, type_: pa.DataType) -> Any:
    """What a number stands for: a time, a bool, or itself."""
    if pt.is_temporal(type_):
        return of_integer(round(number), type_)
    return bool(number) if pt.is_boolean(type_) and number in (0, 1) else number


def _top(scan: NumberScan, values: F64, counts: Any) -> tuple[tuple[Any, int], ...]:
    """The most frequent values, infinities among them; of equals the least one first."""
    ends = [(math.inf * sign, n) for sign, n in ((-1, scan.statistics.below), (1, scan.statistics.above)) if n]
    rows = np.argsort(-counts, kind="stable")[:_TOP]
    whole = scan.integers or pt.is_boolean(scan.type)
    found = [
        (of_integer(int(value), scan.type) if whole else value, count)
        for value, count in zip(values[rows].tolist(), counts[rows].tolist(), strict=True)
    ]
    return tuple(sorted([*ends, *found] if ends else found, key=lambda each: (-each[1], each[0]))[:_TOP])


def _histogram(cells: Cells, type_: pa.DataType, first: float, last: float) -> Histogram:
    """The values of cells, each in the middle of its own."""
    least, greatest, counts = values_of(cells.least), values_of(cells.greatest), cells.counts.astype(np.int64)
    low, high = float(least[0]), float(greatest[-1])
    cut = last / 2 > first / 2 and (high / 2 - low / 2) / (last / 2 - first / 2) > _STRETCHED
    low, high = (first, last) if cut else (low, high)
    discrete = pt.is_integer(type_) or pt.is_boolean(type_)
    if low == high or (discrete and high - low < BINS):
        bins, low, high = int(high - low) + 1, low - 0.5, high + 0.5  # a bin for each whole number
    else:
        bins = BINS
    width = high / 2 - low / 2  # halves: the difference of huge numbers is infinite
    places = (least / 4 + greatest / 4 - low / 2) / width * bins if width else np.zeros(len(least))
    totals = np.zeros(bins, np.int64)
    np.add.at(totals, np.clip(places, 0, bins - 1).astype(np.int64), counts)
    edges = [low + (high / bins - low / bins) * i for i in range(bins)] + [high]
    timed = pt.is_temporal(type_)
    return Histogram(
        tuple(_value(edge, type_) for edge in edges) if timed else tuple(edges), tuple(totals.tolist()), cut
    )


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
