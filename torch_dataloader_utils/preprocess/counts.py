"""How often each value of a column occurs: exact, in bounded memory, and the vocabularies that follow from it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.partitions import KeyPartitions, rows_by_partition
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.schemas.merge import is_text

# Values as they are held (int64, large_string or large_binary, never null), and how often each occurs.
Tally: TypeAlias = tuple[pa.Array, I64]

_BLOCK = 1 << 16  # rows counted at a time: they stay in the processor's cache
_BLOCKS = 256  # counted before they are distributed over the partitions: 64 appends for all of them
_BLOCKS_BYTES = 16 << 20  # likewise


class ValueCounts:
    """How often each value of a column occurs: the same for any order, blocks, encodings, threads and merges.

    Values are held in 64 partitions by their frozen hash, each compacted when its rows have doubled. KeyPartitions that
    do not fit into memory go to a temporary folder, and are read one at a time. Threads may call `add` and `merge` on
    one object; it is read once these have returned. `close`, the end of a `with` block, and the object's end remove the
    folder.

    Args:
        kind: the type of the column's values; any width or encoding of it may be added.
        memory: bytes that counting may take, about.

    Attributes:
        type: of the values counted: large_string, large_binary, int64 (ints, and floats that are whole), bool, or the
            date or timestamp given.
        memory: as given.
        rows: number of values added, missing ones among them.
        missing: number of nulls and NaNs among them.

    Raises:
        UnsupportedTypeError: values of this type are no categories.
    """

    def __init__(self, kind: pa.DataType, memory: int = 2 << 30) -> None:
        self.type = counted_type(kind)
        self.rows = 0
        self.missing = 0
        self._lock = threading.Lock()
        self._settling = threading.Lock()
        self._blocks: list[Tally] = []
        self._blocks_bytes = 0
        self._partitions = KeyPartitions(_Tallies(_held_type(self.type)), memory)

    @property
    def memory(self) -> int:
        """Bytes that counting may take, about."""
        return self._partitions.memory

    def add(self, array: pa.Array | pa.ChunkedArray) -> None:
        """Count values.

        Args:
            array: of the values' type, in any width, encoding or unit; a dictionary may hold nulls and duplicates.

        Raises:
            UnsupportedTypeError: its type is another one, or a number is not whole or not in int64; names the value.
        """
        for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
            _check_type(chunk.type, self.type)
            for block in _blocks(chunk):
                self._keep(len(block), _counted(block, self.type))

    def merge(self, other: ValueCounts) -> None:
        """Add what another object has counted, which stays as it is.

        Raises:
            UnsupportedTypeError: it counts values of another type.
        """
        if other.type != self.type:
            raise UnsupportedTypeError(f"counts of {other.type} cannot be added to counts of {self.type}.")
        rows, missing = other.rows, other.missing
        for own, tally in zip(self._partitions, other._tallies(), strict=True):
            own.append(tally)
            self._partitions.shrink()
        with self._lock:
            self.rows += rows
            self.missing += missing

    def add_counted(self, values: pa.Array, counts: I64, missing: int = 0) -> None:
        """Count values, each as often as it says; none is null, and none is there twice.

        Args:
            values: as of `add`.
            counts: int64 [n], at least 1.
            missing: number of missing values besides.

        Raises:
            UnsupportedTypeError: they are of another type.
        """
        _check_type(values.type, self.type)
        self._keep(int(counts.sum()) + missing, (held(values, self.type), counts))

    def settled(self) -> Self:
        """This object, once every value is held once. All that reads the counts does this first."""
        with self._settling:  # a second reader must not see partitions that the first one still fills
            with self._lock:
                blocks, self._blocks, self._blocks_bytes = self._blocks, [], 0
            self._distribute(blocks)
            self._partitions.settle()
        return self

    @property
    def distinct(self) -> int:
        """Number of different values."""
        return sum(partition.rows for partition in self.settled()._partitions)

    def kept(
        self,
        min_count: int = 1,
        max_size: int | None = None,
        order: Literal["count", "value"] = "count",
        *,
        known: pa.Array | None = None,
        fill: Any = None,
    ) -> tuple[pa.Array, I64]:
        """The values of a vocabulary, in the order of their ids, and their counts, int64 [n].

        Args:
            min_count: values that occur less often are left out.
            max_size: so many values are kept, the most frequent ones; among equals the least. None: all.
            order: by descending count, then ascending value (text by its UTF-8 bytes); or by ascending value.
            known: values that have ids already: these come first, as they are and however rare, the others behind them.
            fill: a value that is counted in place of the missing ones.
        """
        first = _nothing(self.type)[0] if known is None else held(known, self.type)
        places, counts = self._rows_of(first), np.zeros(len(first), np.int64)

        def others() -> Iterator[Tally]:
            for tally, rows in zip(self._tallies(fill=fill), places, strict=True):
                frequent = _at_least(tally, min_count)
                if len(rows):
                    own = first.take(as_arrow(rows))
                    counts[rows], frequent = _counts_of(own, tally), _without(frequent, own)
                yield frequent

        room = None if max_size is None else max(0, max_size - len(first))
        found = _ordered(_most_frequent(others(), room), order)
        values, numbers = _joined([(first, counts), found]) if len(first) else found
        return typed(values, self.type), numbers

    def drop(self, values: pa.Array | None = None) -> None:
        """Forget that these values were counted; None: all but the missing ones."""
        if values is None:
            for partition in self.settled()._partitions:
                partition.replace(_nothing(self.type))
            self.rows = self.missing
            return
        dropped = held(values, self.type)
        for partition, rows in zip(self.settled()._partitions, self._rows_of(dropped), strict=True):
            if len(rows):
                tally = partition.held()
                left = _without(tally, dropped.take(as_arrow(rows)))
                partition.replace(left)
                self.rows -= int(tally[1].sum() - left[1].sum())
                self._partitions.shrink()

    def limit(self, memory: int) -> None:
        """Take no more memory than this from now on: what is above it goes to the temporary folder."""
        self._partitions.memory = min(self.memory, memory)
        self.settled()._partitions.shrink()

    def rest(self, counts: I64) -> tuple[int, int]:
        """Number of values and of rows that are not among the kept.

        Args:
            counts: of the kept values, as `kept` returns them.
        """
        return self.distinct - len(counts), self.rows - self.missing - int(counts.sum())

    def most_frequent(self) -> Any:
        """The value that occurs most often, among equals the least; None if there is no value."""
        values, _ = self.kept(max_size=1)
        return values[0].as_py() if len(values) else None

    def partition(self, number: int) -> pa.Table:
        """The values of which the upper 6 bits of the hash are this number, as `to_table`; others are not read."""
        tallies = list(self._tallies(slice(number, number + 1)))
        return _table(_ordered(tallies[0], "value"), self.type)

    def to_table(self) -> pa.Table:
        """Columns "value", ascending, of this object's type, and "count", int64. `missing` is not in it."""
        return _table(_ordered(_joined(list(self._tallies())), "value"), self.type)

    @classmethod
    def from_tables(
        cls, kind: pa.DataType, tables: Iterable[pa.Table], missing: int = 0, memory: int = 2 << 30
    ) -> ValueCounts:
        """The counts that tables hold; counts of a value in several tables are added.

        Args:
            kind: as above.
            tables: as `to_table` or `partition` return them; rows may be in any order.
            missing: number of missing values.
            memory: as above.

        Raises:
            ValueError: a table has other columns or types, a null, a count below 1, or a value more than once.
            UnsupportedTypeError: values of this type are no categories.
        """
        made = cls(kind, memory)
        made.rows = made.missing = missing
        for table in tables:
            tally = _read(table, made.type)
            made._keep(int(tally[1].sum()), tally)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy is made of; values in files are read."""
        tables = [_table(tally, self.type) for tally in self._tallies() if len(tally[1])]
        return ValueCounts.from_tables, (self.type, tables, self.missing, self.memory)

    def empty(self) -> ValueCounts:
        """Another one of these values, that has counted nothing."""
        return ValueCounts(self.type, self.memory)

    @property
    def nbytes(self) -> int:
        """The bytes of its values, in memory and in files."""
        return sum(partition.size for partition in self.settled()._partitions)

    def close(self) -> None:
        """Remove the temporary folder; values that were in it cannot be read any more."""
        self._partitions.close()

    def __enter__(self) -> Self:
        """This object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _keep(self, rows: int, tally: Tally) -> None:
        """Take over what was counted of so many rows."""
        blocks: list[Tally] = []
        with self._lock:
            self.rows += rows
            self.missing += rows - int(tally[1].sum())
            self._blocks.append(tally)
            self._blocks_bytes += _nbytes(tally)
            if len(self._blocks) >= _BLOCKS or self._blocks_bytes > min(_BLOCKS_BYTES, self.memory // 32):
                blocks, self._blocks, self._blocks_bytes = self._blocks, [], 0
        self._distribute(blocks)

    def _distribute(self, blocks: Sequence[Tally]) -> None:
        """Append to the partitions."""
        if not blocks:
            return
        tally = _joined(blocks)
        for partition, rows in zip(self._partitions, self._rows_of(tally[0]), strict=True):
            if len(rows):
                partition.append(_taken(tally, rows))  # a copy: a slice would hold the rows of all partitions
        self._partitions.shrink()

    def _tallies(self, chosen: slice = slice(None), fill: Any = None) -> Iterator[Tally]:
        """Of these partitions, each value once, in no order; one partition is read at a time.

        Args:
            chosen: the partitions.
            fill: a value that is counted in place of the missing ones, if all partitions are chosen.
        """
        filled, place = None, -1
        if fill is not None and self.missing:
            filled = held(pa.array([fill], self.type), self.type), np.array([self.missing], np.int64)
            place = next(number for number, rows in enumerate(self._rows_of(filled[0])) if len(rows))
        for number, partition in enumerate(self.settled()._partitions[chosen]):
            tally = partition.held()
            yield tally if filled is None or number != place else _summed([tally, filled])

    def _rows_of(self, values: pa.Array) -> list[I64]:
        """Of values as they are held, the rows of each partition."""
        return rows_by_partition(typed(values, self.type))


class _Tallies:
    """Tallies of values that are held in a type, as pieces of partitions."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def rows(self, tally: Tally) -> int:
        """See `PieceForm`."""
        return len(tally[1])

    def nbytes(self, tally: Tally) -> int:
        """See `PieceForm`."""
        return _nbytes(tally)

    def joined(self, pieces: Sequence[Tally]) -> Tally:
        """See `PieceForm`."""
        return _joined(pieces) if pieces else _nothing(self._kind)

    def summed(self, pieces: Sequence[Tally]) -> Tally:
        """See `PieceForm`."""
        return _summed(pieces)

    def write(self, tally: Tally, path: Path) -> None:
        """See `PieceForm`."""
        _write(tally, path)

    def read(self, path: Path) -> Tally:
        """See `PieceForm`."""
        return _of_file(path)


# Types: what is counted, and how it is held.


def counted_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a vocabulary for columns of this type.

    Raises:
        UnsupportedTypeError: values of this type are no categories.
    """
    if pt.is_dictionary(kind):
        return counted_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return counted_type(kind.storage_type)
    if is_text(kind):
        return pa.large_string()
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.large_binary()
    if pt.is_integer(kind) or pt.is_floating(kind):
        return pa.int64()
    if pt.is_boolean(kind) or pt.is_date(kind) or pt.is_timestamp(kind):
        return kind
    raise UnsupportedTypeError(
        f"values of type {kind} cannot be categories: these are text, bytes, whole numbers, bools, dates or times."
    )


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type in which values of both are counted, which `counted_type` returned: of times, the finer one.

    Raises:
        UnsupportedTypeError: there is none.
    """
    _check_type(other, one)
    if not pt.is_timestamp(one):
        return one
    return pa.timestamp(max(one.unit, other.unit, key=("s", "ms", "us", "ns").index), one.tz)


def _check_type(given: pa.DataType, kind: pa.DataType) -> None:
    """Raise an error if arrays of a type hold no values that are counted as `kind`."""
    counted = counted_type(given)
    dates = pt.is_date(counted) and pt.is_date(kind)
    times = pt.is_timestamp(counted) and pt.is_timestamp(kind) and (counted.tz is None) == (kind.tz is None)
    if not (counted == kind or dates or times):
        raise UnsupportedTypeError(f"values of type {given} were given where {kind} is counted.")


def _held_type(kind: pa.DataType) -> pa.DataType:
    return kind if kind in (pa.large_string(), pa.large_binary()) else pa.int64()


def held(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values without null and NaN, in no dictionary, as they are held."""
    if pt.is_floating(values.type):
        return as_arrow(_whole(values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)))
    if pt.is_uint64(values.type):
        _check_below(values.to_numpy())
    if pt.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    if pt.is_temporal(kind):
        try:
            values = values.cast(kind)
        except pa.ArrowInvalid as error:
            raise UnsupportedTypeError(f"values of type {values.type} do not fit into {kind}: {error}") from error
        values = values.view(pa.int32() if pt.is_date32(kind) else pa.int64())
    return values.cast(_held_type(kind))


def typed(held: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values that are held, in the type in which they are counted."""
    if pt.is_boolean(kind):
        return held.cast(kind)
    return held.cast(pa.int32()).view(kind) if pt.is_date32(kind) else held.view(kind)


def _whole(numbers: npt.NDArray[np.float64]) -> I64:
    """Floats as ints."""
    exact = (numbers == np.floor(numbers)) & (numbers >= -(2.0**63)) & (numbers < 2.0**63)
    if not exact.all():
        raise UnsupportedTypeError(
            f"the number {numbers[np.argmin(exact)]} cannot be a category: floats must be whole and fit into int64. "
            "Round them, or use Bucketize."
        )
    return numbers.astype(np.int64)


def _check_below(numbers: npt.NDArray[np.uint64]) -> None:
    if len(numbers) and numbers.max() >= 2**63:
        raise UnsupportedTypeError(f"the number {numbers.max()} cannot be a category: it does not fit into int64.")


# Blocks of a column.


def _blocks(chunk: pa.Array) -> Iterator[pa.Array]:
    """What is counted at a time: a dictionary once."""
    if pt.is_dictionary(chunk.type):
        yield chunk
        return
    for first in range(0, len(chunk), _BLOCK):
        yield chunk.slice(first, _BLOCK)


def _counted(block: pa.Array, kind: pa.DataType) -> Tally:
    """Values and counts without the missing ones; a value occurs once, unless it does not in the block's dictionary."""
    block = _plain(block)
    if pt.is_dictionary(block.type):
        used, counts = _distinct(block.indices.drop_null().cast(pa.int64()).to_numpy())
        values = _plain(block.dictionary).take(as_arrow(used))
    elif _held_type(kind) == pa.int64():
        present = block.filter(_present(block)) if _has_missing(block) else block
        numbers, counts = _distinct(held(present, kind).to_numpy())
        return as_arrow(numbers), counts
    else:
        found = block.value_counts()
        values, counts = found.field(0), found.field(1).to_numpy()
    if _has_missing(values):
        present = _present(values)
        values, counts = values.filter(present), counts[present.to_numpy(zero_copy_only=False)]
    return held(values, kind), counts


def _plain(values: pa.Array) -> pa.Array:
    """The same values in a type that kernels take: no extension, no view."""
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    views = pt.is_string_view(values.type) or pt.is_binary_view(values.type)
    return values.cast(counted_type(values.type)) if views else values


def _has_missing(values: pa.Array) -> bool:
    return bool(values.null_count) or pt.is_floating(values.type)


def _present(values: pa.Array) -> pa.Array:
    return pc.invert(pc.is_null(values, nan_is_null=True))


def _distinct(numbers: I64) -> tuple[I64, I64]:
    """The different numbers, ascending, and how often each occurs."""
    if not len(numbers):
        return numbers, np.zeros(0, np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < len(numbers):
        counts = np.bincount(numbers - low)
        found = np.flatnonzero(counts)
        return found + low, counts[found]
    numbers = np.sort(numbers)
    starts = _starts(numbers)
    return numbers[starts], np.diff(starts, append=len(numbers))


def _starts(ascending: npt.NDArray[Any]) -> I64:
    """Where each value begins in a sorted array that is not empty."""
    return np.append(0, np.flatnonzero(ascending[1:] != ascending[:-1]) + 1)


# Tallies.


def _nothing(kind: pa.DataType) -> Tally:
    return pa.nulls(0, _held_type(kind)), np.zeros(0, np.int64)


def _nbytes(tally: Tally) -> int:
    return int(tally[0].nbytes) + tally[1].nbytes


def _taken(tally: Tally, rows: I64) -> Tally:
    return tally[0].take(as_arrow(rows)), tally[1][rows]


def _filtered(tally: Tally, chosen: npt.NDArray[np.bool_]) -> Tally:
    return tally if chosen.all() else _taken(tally, np.flatnonzero(chosen))


def _joined(pieces: Sequence[Tally]) -> Tally:
    """One piece after another; at least one."""
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays([values for values, _ in pieces]), np.concatenate([counts for _, counts in pieces])


def _summed(pieces: Sequence[Tally]) -> Tally:
    """Each value once, with the sum of its counts; at least one row."""
    counts = np.concatenate([counts for _, counts in pieces])
    if pieces[0][0].type == pa.int64():
        numbers = np.concatenate([values.to_numpy() for values, _ in pieces])
        order = np.argsort(numbers)
        numbers = numbers[order]
        starts = _starts(numbers)
        return as_arrow(numbers[starts]), np.add.reduceat(counts[order], starts)
    # All chunks get one dictionary.
    encoded = pa.chunked_array([values for values, _ in pieces]).dictionary_encode().chunks
    values = encoded[0].dictionary
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, np.concatenate([chunk.indices.to_numpy() for chunk in encoded]), counts)
    return values, sums


def _at_least(tally: Tally, least: int) -> Tally:
    return _filtered(tally, tally[1] >= least)


def _without(tally: Tally, known: pa.Array) -> Tally:
    return _filtered(tally, ~pc.is_in(tally[0], value_set=known).to_numpy(zero_copy_only=False))


def _counts_of(values: pa.Array, tally: Tally) -> I64:
    """How often values occur, int64 [n]; 0 for those that are not in the tally."""
    if not len(values) or not len(tally[1]):
        return np.zeros(len(values), np.int64)
    places = pc.index_in(values, value_set=tally[0])
    found = tally[1][pc.fill_null(places, 0).to_numpy()]
    return np.where(places.is_valid(), found, 0)


def _most_frequent(tallies: Iterable[Tally], most: int | None) -> Tally:
    """So many values (None: all) of the tallies, the most frequent ones, among equals the least; in no order.

    Args:
        tallies: at least one; no value occurs twice. No more than twice `most` values of them are held.
        most: number of values.
    """
    kept: list[Tally] = []
    for tally in tallies:
        kept.append(tally if most is None else _first(tally, most))
        if most is not None and sum(len(counts) for _, counts in kept) > 2 * most:
            kept = [_first(_joined(kept), most)]
    return _joined(kept) if most is None else _first(_joined(kept), most)


def _first(tally: Tally, most: int) -> Tally:
    values, counts = tally
    if len(counts) <= most:
        return tally
    if most == 0:
        return _taken(tally, np.zeros(0, np.int64))
    last = np.partition(counts, len(counts) - most)[len(counts) - most]  # the count of the last value that is kept
    above, equal = np.flatnonzero(counts > last), np.flatnonzero(counts == last)
    least = pc.bottom_k_unstable(values.take(as_arrow(equal)), k=most - len(above)).to_numpy().astype(np.int64)
    return _taken(tally, np.append(above, equal[least]))


def _ordered(tally: Tally, order: Literal["count", "value"]) -> Tally:
    """In the order of ids: by descending count, then ascending value; or by value."""
    values, counts = tally
    # numpy sorts numbers faster, Arrow sorts text by its bytes.
    numbers = values.type == pa.int64()
    rows = np.argsort(values.to_numpy()) if numbers else pc.sort_indices(values).to_numpy().astype(np.int64)
    if order == "count":
        rows = rows[np.argsort(-counts[rows], kind="stable")]
    return _taken(tally, rows)


# Tables and files.


def _table(tally: Tally, kind: pa.DataType) -> pa.Table:
    return pa.table([typed(tally[0], kind), as_arrow(tally[1])], names=["value", "count"])


def _read(table: pa.Table, kind: pa.DataType) -> Tally:
    """The counts of a table that may come from anywhere.

    Raises:
        ValueError: they are none.
    """
    names, types = table.schema.names, table.schema.types
    if names != ["value", "count"] or types != [kind, pa.int64()]:
        columns = listed(f"{name} ({of})" for name, of in zip(names, types, strict=True))
        raise ValueError(f"counts are a table with the columns value ({kind}), count (int64), not {columns}.")
    if not len(table):
        return _nothing(kind)
    if table["value"].null_count or table["count"].null_count:
        raise ValueError("a table of counts holds a null.")
    values, column = (pa.concat_arrays(column.chunks) for column in table.columns)
    counts = column.to_numpy()
    if counts.min() < 1:
        raise ValueError(f"a table of counts holds the count {counts.min()}: counts are at least 1.")
    once, sums = _summed([(held(values, kind), counts)])
    if len(sums) < len(counts):
        raise ValueError(f"a table of counts holds {len(counts) - len(sums)} values more than once.")
    return once, sums


def _write(tally: Tally, path: Path) -> None:
    values, counts = tally
    table = pa.table([values, as_arrow(counts)], names=["value", "count"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _of_file(path: Path) -> Tally:
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all()
    values, counts = (pa.concat_arrays(column.chunks) for column in table.columns)
    return values, counts.to_numpy()
