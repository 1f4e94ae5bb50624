"""What a scan counts of the columns for their statistics: the partials that a fit uses, mergeable and picklable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.columns import elements, kind_of, value_type
from torch_dataloader_utils.preprocess.counts import ValueCounts
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.least_hashes import LeastHashes
from torch_dataloader_utils.preprocess.moments import Moments
from torch_dataloader_utils.preprocess.numbers import numbers_of
from torch_dataloader_utils.preprocess.seen import NumberStatistics
from torch_dataloader_utils.schemas.merge import plain_type
from torch_dataloader_utils.schemas.value_hashes import array_hashes

TIMES = ("date", "time", "timestamp", "zoned")
LARGEST = 2**53  # whole numbers up to here are exact as float64


class NumberScan:
    """Numbers and times: their sums and grid as a fit counts them, their ends and different values.

    Attributes:
        type: of the values.
        statistics: of the numbers as float64; those of times are the integers that stand for them, without sums.
        hashes: of the different values.
        nulls: how many are null.
        least: the least one, if they are integers or times; None if there is none.
        greatest: likewise.
        whole: whether all of the finite ones are whole; False for decimals, of which no ids are made.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        of_time = not (pt.is_floating(type_) or pt.is_integer(type_) or pt.is_decimal(type_) or pt.is_boolean(type_))
        self.integers = of_time or pt.is_integer(type_)  # whole numbers that may be too large for float64
        self.statistics = NumberStatistics.none(frozenset({"grid"} if of_time else {"grid", "moments"}))
        self.hashes = LeastHashes()
        self.nulls = 0
        self.least: int | None = None
        self.greatest: int | None = None
        self.whole = not pt.is_decimal(type_)

    def add(self, values: pa.Array) -> None:
        """Count values."""
        self.nulls += values.null_count
        values = values.drop_null() if values.null_count else values
        if not len(values):
            return
        if pt.is_temporal(self.type):
            values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
        x, missing = numbers_of(values).all(), self.statistics.missing
        self.statistics.add(x)
        if self.integers:
            ends = pc.min_max(values).as_py()
            self._reach(ends["min"], ends["max"])
            self.hashes.add(array_hashes(_fewer(values, ends["min"], ends["max"])))
            return
        there = x[~np.isnan(x)] if self.statistics.missing > missing else x
        self.hashes.add_numbers(there.view(np.int64))
        if self.whole:
            finite = x[np.isfinite(x)]
            self.whole = bool((finite == np.floor(finite)).all())

    def _reach(self, least: int, greatest: int) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def merge(self, other: NumberScan) -> None:
        """Count what the other has counted, too."""
        self.statistics.merge(other.statistics)
        self.hashes.merge(other.hashes)
        self.nulls += other.nulls
        self.whole = self.whole and other.whole
        if other.least is not None and other.greatest is not None:
            self._reach(other.least, other.greatest)

    @property
    def exact(self) -> bool:
        """Whether the grid knows each value."""
        assert self.statistics.grid is not None
        fits = self.least is None or self.greatest is None or max(-self.least, self.greatest) <= LARGEST
        return fits and self.statistics.grid.exact


class TextScan:
    """Texts or bytes: how often each occurs as long as they are few, their ends and different values.

    Attributes:
        type: of the values.
        counts: of each value; None once there are more than `Grid.limit` of them.
        hashes: of the different values.
        nulls: how many are null.
        there: how many are not.
        least: the least one, in the order of bytes; None if there is none.
        greatest: likewise.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self.counts: ValueCounts | None = ValueCounts(type_)
        self.hashes = LeastHashes()
        self.nulls = self.there = 0
        self.least: str | bytes | None = None
        self.greatest: str | bytes | None = None
        self._most = 0  # no more different values than these are counted

    def add(self, values: pa.Array) -> None:
        """Count values."""
        used, before = values, self.nulls
        if self.counts is not None and not pt.is_dictionary(values.type):
            values = used = values.dictionary_encode()
        if pt.is_dictionary(values.type):
            used = values.dictionary.take(values.indices.drop_null().unique())
            # A dictionary may hold null, and one value twice.
            self.nulls += len(values) - len(values.indices.drop_null()) if not used.null_count else _nulls(values)
        else:
            self.nulls += values.null_count
        self.there += len(values) - (self.nulls - before)
        used = used.drop_null()
        if len(used):
            self._use(used)
        if self.counts is not None:
            self.counts.add(values)
            self._most += len(used)
            self._stop_if_many()

    def _use(self, used: pa.Array) -> None:
        self.hashes.add(array_hashes(used))
        if pt.is_binary_view(used.type) or pt.is_string_view(used.type):
            used = used.cast(pa.large_string() if pt.is_string_view(used.type) else pa.large_binary())
        ends = pc.min_max(used.cast(pa.large_binary()) if pt.is_fixed_size_binary(used.type) else used).as_py()
        self._reach(ends["min"], ends["max"])

    def _reach(self, least: Any, greatest: Any) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def _stop_if_many(self) -> None:
        if self.counts is not None and self._most > Grid.limit:
            self._most = self.counts.distinct
            if self._most > Grid.limit:
                self.counts.close()
                self.counts = None

    def merge(self, other: TextScan) -> None:
        """Count what the other has counted, too."""
        self.hashes.merge(other.hashes)
        self.nulls += other.nulls
        self.there += other.there
        if other.least is not None:
            self._reach(other.least, other.greatest)
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        self.counts.merge(other.counts)
        self._most += other._most
        self._stop_if_many()


class ColumnScan:
    """One column: its rows, nulls and, of lists, the lengths and the values inside.

    Attributes:
        type: of the column.
        kind: of the column.
        rows: how many.
        nulls: how many are null.
        values: of its values, or of those in its lists; None if they are of no kind that is counted.
        lengths: of lists that are not null; None if it holds no lists.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type, self.kind = type_, kind_of(type_)
        self.rows = self.nulls = 0
        made = _SCANS.get(self.kind.values)
        self.values = None if made is None else made(value_type(type_))
        self.lengths = Moments() if self.kind.nested else None

    def add(self, column: pa.Array) -> None:
        """Count rows."""
        self.rows += len(column)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pt.is_dictionary(column.type) and not isinstance(self.values, TextScan):
            column = column.dictionary_decode()
        if self.lengths is not None:
            self.nulls += column.null_count
            column = column.drop_null() if column.null_count else column
            column, lengths = elements(column)[0], _lengths(column)
            self.lengths.add(lengths.astype(np.float64))
        if self.values is None:
            self.nulls += 0 if self.lengths is not None else column.null_count
            return
        before = self.values.nulls
        self.values.add(column)
        if self.lengths is None:
            self.nulls += self.values.nulls - before

    def merge(self, other: ColumnScan) -> None:
        """Count what the other has counted, too."""
        self.rows += other.rows
        self.nulls += other.nulls
        if self.values is not None:
            self.values.merge(other.values)  # type: ignore[arg-type]  # of the same type
        if self.lengths is not None and other.lengths is not None:
            self.lengths.merge(other.lengths)


class StatisticsScan:
    """One scan of rows for their statistics; several, of parts of the rows, merge in any order, and pickle.

    Args:
        fields: the columns.

    Attributes:
        columns: what is counted of each, by name.
    """

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self.columns: Mapping[str, ColumnScan] = {field.name: ColumnScan(field.type) for field in fields}
        self.rows = 0

    def add(self, rows: pa.Table | pa.RecordBatch, each: Callable[..., Iterable[None]] = map) -> None:
        """Count rows, which have at least the columns.

        Args:
            rows: the rows.
            each: `map`, or that of a pool of threads: each column is counted by one.
        """
        self.rows += rows.num_rows
        for _ in each(lambda name: self._add(name, rows.column(name)), self.columns):
            pass

    def _add(self, name: str, column: pa.Array | pa.ChunkedArray) -> None:
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if len(chunk):
                self.columns[name].add(chunk)

    def merge(self, other: StatisticsScan) -> None:
        """Count what a scan of other rows has counted, too."""
        self.rows += other.rows
        for name, column in self.columns.items():
            column.merge(other.columns[name])


_SCANS: Mapping[str, Callable[[pa.DataType], NumberScan | TextScan]] = {
    **dict.fromkeys(("number", *TIMES), NumberScan),
    **dict.fromkeys(("text", "bytes"), TextScan),
}


def _fewer(integers: pa.Array, least: int, greatest: int) -> pa.Array:
    """The same integers, not null, each once if they lie so close that this is quick."""
    if greatest - least >= len(integers) or pt.is_uint64(integers.type):
        return integers
    there = np.zeros(greatest - least + 1, np.bool_)
    there[integers.to_numpy().astype(np.int64) - least] = True
    return as_arrow(np.flatnonzero(there) + least)


def _nulls(encoded: pa.DictionaryArray) -> int:
    return int(encoded.dictionary_decode().null_count)


def _lengths(lists: pa.Array) -> Any:
    """The length of each list, none of them null."""
    if pt.is_fixed_size_list(plain_type(lists.type, extensions=True)):
        return np.full(len(lists), lists.type.list_size)
    return np.asarray(pc.list_value_length(lists))


def of_integer(number: int, type_: pa.DataType) -> Any:
    """The value that an integer stands for, as Python has it."""
    if pt.is_temporal(type_):
        width = np.int32 if type_.bit_width == 32 else np.int64
        scalar = as_arrow(np.array([number], width)).view(type_)[0]
        return _of_nanoseconds(scalar) if getattr(type_, "unit", "") == "ns" else scalar.as_py()
    return bool(number) if pt.is_boolean(type_) else number


def _of_nanoseconds(scalar: pa.Scalar) -> Any:
    """To microseconds, as Python's own times have it."""
    kind = pa.time64("us") if pt.is_time(scalar.type) else pa.timestamp("us", getattr(scalar.type, "tz", None))
    return scalar.cast(kind, safe=False).as_py()
