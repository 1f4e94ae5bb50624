"""Sums of a target by category and fold: exact, and a function of the rows' multiset, whatever their order and parts.

A number is cut into digits of 40 bits, which int64 adds exactly; few digits are not 0: one for targets of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.columns import categories_of, category_type, kind_of, naming, plain_values
from torch_dataloader_utils.preprocess.counts import counted_type, held, typed
from torch_dataloader_utils.preprocess.fitted import Vocabulary
from torch_dataloader_utils.preprocess.numbers import numbers_of
from torch_dataloader_utils.preprocess.partitions import KeyPartitions, rows_by_partition
from torch_dataloader_utils.preprocess.steps import F64
from torch_dataloader_utils.preprocess.target import TargetEncode, TargetTotals, Whole
from torch_dataloader_utils.preprocess.transforms import I64, Fitted
from torch_dataloader_utils.storage.locks import ForkLock

Digits: TypeAlias = dict[int, I64]  # by place: number i is the sum of digits[place][i] << 40 * place

_BITS = 40
_MASK = (1 << _BITS) - 1
_HALF = 1 << (_BITS - 1)
_BLOCK = 1 << 16  # rows added at a time: an int64 holds the sum of as many digits
_SMALL = float(1 << (_BITS // 2))  # whole numbers below it, and their squares, are one digit
_LEAST = 1 << 16  # rows of partial sums that are not worth a compaction
_MOST_BYTES = 64 << 20  # of sums that are in no partition
_MOST_CLASSES = 1_000
_KEYS = ("value", "fold", "class")


class TargetSums:
    """Counts rows, and sums a target and its squares, by category and fold; of classes, counts rows of each.

    Sums of several parts of the rows merge to those of all of them. Threads may add to one object; it pickles, with
    all sums. They take about 40 bytes and the value for each category and fold; those of many categories are held in
    partitions, of which some go to a temporary folder if they do not fit into memory. `close`, and the object's end,
    remove it.

    Args:
        link: the transform.
        kind: the type of the categories.
        target: the type of the target.
        memory: bytes that the sums may take, about.

    Raises:
        UnsupportedTypeError: decimals that are categories or classes may have a fraction.
    """

    def __init__(self, link: TargetEncode, kind: pa.DataType, target: pa.DataType, memory: int = 2 << 30) -> None:
        self.link, self.memory = link, memory
        self.type = counted_type(kind)
        averaged = kind_of(target).values == "number" and not link.classes
        with self._naming():
            self.classes = None if averaged else counted_type(category_type(target))
        self._begin()

    def _begin(self) -> None:
        self._adding = ForkLock()
        self._pieces: list[pa.Table] = []  # of rows that are in no partition
        self._rows = self._compacted = 0
        nothing = pa.nulls(0, self.type), pa.nulls(0, self.classes or pa.float64()), np.zeros(0, np.int64)
        self._form = _SummedTables(self._block(*nothing))
        self._partitions: KeyPartitions[pa.Table] | None = None  # None: there are few categories

    def __getstate__(self) -> dict[str, Any]:
        held = {name: value for name, value in vars(self).items() if name in ("link", "memory", "type", "classes")}
        return {**held, "tables": list(self._tables())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = state.pop("tables")
        vars(self).update(state)
        self._begin()
        for table in tables:
            self._keep(table)

    def add(self, values: pa.Array, target: pa.Array, hashes: npt.NDArray[np.uint64]) -> None:
        """Add rows.

        Args:
            values: of the category, as ids are made of them.
            target: of the target.
            hashes: of the rows' places or keys, uint64 [rows].

        Raises:
            UnsupportedTypeError: a value is no category, or no class.
        """
        for first in range(0, len(values), _BLOCK):
            block = slice(first, first + _BLOCK)
            self._keep(self._block(values[block], target[block], self.link.folds_of(hashes[block])))

    def _block(self, values: pa.Array, target: pa.Array, folds: I64) -> pa.Table:
        codes, known = _coded(values, self.type)
        keys = {"value": codes, "fold": folds}
        names = {"value": pa.concat_arrays([known, pa.nulls(1, known.type)])}
        sizes = [len(known) + 1, self.link.folds]
        if self.classes is None:
            y = numbers_of(target).all()
            counted = np.isfinite(y)
        else:
            with self._naming():
                keys["class"], names["class"] = _coded(categories_of(target), self.classes)
            sizes.append(len(names["class"]))
            counted = keys["class"] < sizes[-1]
        groups, found = _groups([key[counted] for key in keys.values()], sizes)
        made = {key: as_arrow(of) for key, of in zip(keys, found, strict=True)}
        made |= {key: held_as.take(made[key]) for key, held_as in names.items()}
        made["n"] = as_arrow(np.bincount(groups, minlength=len(found[0])))
        if self.classes is None:
            for name, digits in zip("sq", _power_digits(y[counted], groups, len(found[0])), strict=True):
                made |= {f"{name}{place}": as_arrow(numbers) for place, numbers in digits.items()}
        return pa.table(made)

    def _naming(self) -> AbstractContextManager[None]:
        return naming(f"the target {self.link.target!r}")

    def _keep(self, piece: pa.Table) -> None:
        if not piece.num_rows:
            return
        with self._adding:
            self._pieces.append(piece)
            self._rows += piece.num_rows
            if self._rows > max(_LEAST, 2 * self._compacted) or self._nbytes() > self.memory // 4:
                self._compact()
                if self._nbytes() > min(_MOST_BYTES, self.memory // 8):
                    self._distribute()

    def _nbytes(self) -> int:
        return sum(map(self._form.nbytes, self._pieces))

    def _compact(self) -> None:
        if len(self._pieces) > 1:
            self._pieces = [self._form.summed(self._pieces)]
        self._rows = self._compacted = sum(map(self._form.rows, self._pieces))

    def _distribute(self) -> None:
        """Append to the partitions."""
        if self._partitions is None:
            self._partitions = KeyPartitions(self._form, self.memory)
        table = self._form.joined(self._pieces).combine_chunks()
        self._pieces, self._rows, self._compacted = [], 0, 0
        keys = typed(_one_array(table.column("value")), self.type)
        for partition, rows in zip(self._partitions, rows_by_partition(keys), strict=True):
            if len(rows):
                partition.append(table.take(as_arrow(rows)).combine_chunks())
        self._partitions.shrink()

    def _tables(self) -> Iterator[pa.Table]:
        """The sums, each category and fold once; those of a category are in one table. At least one table."""
        with self._adding:
            self._compact()
            if self._partitions is not None:
                self._distribute()
                self._partitions.settle()
        held = [] if self._partitions is None else (partition.held() for partition in self._partitions)
        found = False
        for table in held if self._partitions is not None else self._pieces:
            if table.num_rows:
                found = True
                yield table
        if not found:
            yield self._form.nothing

    def merge(self, other: TargetSums) -> None:
        """Add what another one has summed, which stays as it is."""
        for table in other._tables():
            self._keep(table)

    def close(self) -> None:
        """Remove the temporary folder, if there is one: nothing can be learned then."""
        if self._partitions is not None:
            self._partitions.close()

    @property
    def rows(self) -> int:
        """Number of rows that have a target."""
        return sum(int(np.sum(_numbers(table, "n"))) for table in self._tables())

    def learned(self, output: str) -> Fitted:
        """What the transform learns: the categories, ascending, the classes, and what they become.

        The last two rows of the encoding are those of an unseen value and of null, so that -2 and -1 are their places.

        Raises:
            OptionError: the target has too many classes.
        """
        classes = None if self.classes is None else self._all_classes(output)
        unit = min((place for table in self._tables() for place in _places(table)), default=0)
        overall = reduce(np.add, (self._totals(table, classes, unit).overall for table in self._tables()))
        known, made, missing = [], [], None
        for table in self._tables():
            totals = self._totals(table, classes, unit)
            own = totals.encoded(self.link.smooth, overall)  # of the values, null and an unseen value
            known.append(_ascending(table.column("value"))[1])
            made.append(own[:-2])
            missing, unseen = own[-2:-1] if totals.counts[-1].any() else missing, own[-1:]
        values = pa.concat_arrays(known)
        order = pc.sort_indices(values)
        return {
            "vocabulary": Vocabulary.of(typed(values.take(order), self.type)),
            "classes": [] if self.classes is None else typed(classes, self.classes).to_pylist(),
            "encoding": np.concatenate(
                [np.concatenate(made)[order.to_numpy()], unseen, unseen if missing is None else missing]
            ),
        }

    def _all_classes(self, output: str) -> pa.Array:
        """The classes of the target, ascending."""
        found = pa.nulls(0, self._form.nothing.schema.field("class").type)
        for table in self._tables():
            found = pa.concat_arrays([found, _ascending(table.column("class"))[1]]).unique()
            if len(found) > _MOST_CLASSES:
                raise OptionError(
                    f"output {output!r}: the target {self.link.target!r} has {len(found):,} classes or more: expected "
                    f"at most {_MOST_CLASSES:,}. A target of numbers, without classes=True, is averaged."
                )
        return found.take(pc.sort_indices(found))

    def _totals(self, table: pa.Table, classes: pa.Array | None, unit: int) -> TargetTotals:
        """Those of a table; the last row is null's."""
        codes, known = _ascending(table.column("value"))
        at = codes, table.column("fold").to_numpy()
        if classes is not None:
            return _class_totals(table, at, len(known) + 1, self.link.folds, classes)
        shape = len(known) + 1, self.link.folds
        digits = [
            {int(name[1:]): _numbers(table, name) for name in table.column_names if name[0] == kind} for kind in "sq"
        ]
        whole = [_whole(of, unit * power, len(table)) for power, of in enumerate(digits, 1)]
        counts, sums, squares = (
            _placed(numbers, at, shape) for numbers in (table.column("n").to_numpy().astype(object), *whole)
        )
        return TargetTotals(counts, sums[..., None], squares[..., None], unit * _BITS)


def _class_totals(table: pa.Table, at: tuple[I64, ...], known: int, folds: int, classes: pa.Array) -> TargetTotals:
    """Those of 0 and 1 for each class but the first of two."""
    of_rows = pc.index_in(_one_array(table.column("class")), value_set=classes).to_numpy()
    shape = known, folds, max(len(classes), 1)
    counts = _placed(table.column("n").to_numpy().astype(object), (*at, of_rows), shape)
    sums = counts[..., 1:] if shape[2] == 2 else counts
    return TargetTotals(counts.sum(axis=2), sums, sums, 0)


def _places(table: pa.Table) -> list[int]:
    """Those of the digits of sums; of squares, half of them."""
    return [int(name[1:]) // " sq".index(name[0]) for name in table.column_names if name not in (*_KEYS, "n")]


class _SummedTables:
    """Tables of sums by category and fold, as pieces of partitions.

    Attributes:
        nothing: the table of no rows.
    """

    def __init__(self, nothing: pa.Table) -> None:
        self.nothing = nothing

    def rows(self, table: pa.Table) -> int:
        """See `PieceForm`."""
        return int(table.num_rows)

    def nbytes(self, table: pa.Table) -> int:
        """See `PieceForm`."""
        return int(table.nbytes)

    def joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """See `PieceForm`."""
        return pa.concat_tables(tables, promote_options="default") if tables else self.nothing

    def summed(self, tables: Sequence[pa.Table]) -> pa.Table:
        """See `PieceForm`."""
        return _summed(self.joined(tables))

    def write(self, table: pa.Table, path: Path) -> None:
        """See `PieceForm`."""
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)

    def read(self, path: Path) -> pa.Table:
        """See `PieceForm`."""
        with pa.OSFile(str(path)) as source:
            return pa.ipc.open_stream(source).read_all()


def _coded(values: pa.Array, kind: pa.DataType) -> tuple[I64, pa.Array]:
    """The place of each value among the different ones, as they are held; null is behind them."""
    encoded = plain_values(values).dictionary_encode()
    known = held(encoded.dictionary, kind)
    return np.asarray(pc.fill_null(encoded.indices, len(known)), np.int64), known


def _groups(keys: Sequence[I64], sizes: Sequence[int]) -> tuple[I64, list[I64]]:
    """The group of each row, and the keys of groups; key i is below `sizes[i]`."""
    joined = np.zeros(len(keys[0]), np.int64)
    for key, size in zip(keys, sizes, strict=True):
        joined = joined * size + key
    if (most := int(np.prod(sizes))) <= 4 * _BLOCK:
        there = np.bincount(joined, minlength=most) > 0
        found, groups = np.flatnonzero(there), (np.cumsum(there) - 1)[joined]
    else:
        found, groups = np.unique(joined, return_inverse=True)
    return groups, [np.asarray(key, np.int64) for key in np.unravel_index(found, sizes)]


def _power_digits(y: F64, groups: I64, count: int) -> tuple[Digits, Digits]:
    """The digits of the sums of numbers, and of their squares, by group."""
    if (small := y.astype(np.int64) if (np.abs(y) < _SMALL).all() else None) is not None and (small == y).all():
        return _sums([(0, small)], groups, count), _sums([(0, small * small)], groups, count)
    fractions, exponents = np.frexp(y)
    signs = np.where(y < 0, np.int64(-1), np.int64(1))
    bits = np.abs(np.ldexp(fractions, 53)).astype(np.int64)
    at = exponents.astype(np.int64) - 53
    high, low = bits >> 27, bits & (1 << 27) - 1
    squares = ((high * high, 2 * at + 54), (2 * high * low, 2 * at + 27), (low * low, 2 * at))
    first = _sums(((place, signs * digit) for place, digit in _cut(bits, at)), groups, count)
    return first, _sums((cut for part in squares for cut in _cut(*part)), groups, count)


def _cut(bits: I64, at: I64) -> Iterator[tuple[Any, I64]]:
    """Numbers below 2**54, times 2**at, as digits and their places, in three parts."""
    places, shifts = np.divmod(at, _BITS)
    yield places, (bits & (np.int64(1) << (_BITS - shifts)) - 1) << shifts
    rest = bits >> (_BITS - shifts)
    yield places + 1, rest & _MASK
    yield places + 2, rest >> _BITS


def _sums(parts: Any, groups: I64, count: int) -> Digits:
    """The digits of the sums by group."""
    made: Digits = {}
    for places, digits in parts:
        rows = np.flatnonzero(digits)
        places = np.broadcast_to(places, len(digits))[rows]
        for place in np.unique(places).tolist():
            chosen = rows[places == place]
            np.add.at(made.setdefault(place, np.zeros(count, np.int64)), groups[chosen], digits[chosen])
    return _carried(made)


def _carried(digits: Digits) -> Digits:
    """The digits from -2**39 to below 2**39, which are those of one number alone; those that are all 0 are left out."""
    made: Digits = {}
    left = dict(digits)
    while left:
        place = min(left)
        numbers = left.pop(place)
        carry = (numbers + _HALF) >> _BITS
        numbers = numbers - (carry << _BITS)
        if numbers.any():
            made[place] = numbers
        if carry.any():
            left[place + 1] = left[place + 1] + carry if place + 1 in left else carry
    return made


def _summed(joined: pa.Table) -> pa.Table:
    """Each category and fold once, with its sums."""
    keys = [name for name in _KEYS if name in joined.column_names]
    sums = [name for name in joined.column_names if name not in keys]
    table = joined.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in sums])
    made = {name: table.column(name) for name in keys} | {"n": table.column("n_sum")}
    for kind in "sq":
        digits = {int(name[1:]): _numbers(table, f"{name}_sum") for name in sums if name[0] == kind}
        made |= {f"{kind}{place}": as_arrow(numbers) for place, numbers in _carried(digits).items()}
    return pa.table(made)


def _numbers(table: pa.Table, name: str) -> I64:
    return np.asarray(pc.fill_null(table.column(name), 0), np.int64)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _ascending(column: pa.ChunkedArray) -> tuple[I64, pa.Array]:
    """The place of each value among the different ones, ascending; null is behind them."""
    known = column.drop_null().unique()
    known = known.take(pc.sort_indices(known))
    places = pc.index_in(column.combine_chunks(), value_set=known)
    return np.asarray(pc.fill_null(places, len(known)), np.int64), known


def _whole(digits: Digits, unit: int, rows: int) -> Whole:
    """The numbers that digits stand for, in units of 2**(40 * unit)."""
    made = np.zeros(rows, object)
    for place, numbers in digits.items():
        made = made + (numbers.astype(object) << _BITS * (place - unit))
    return made


def _placed(numbers: Whole, at: tuple[I64, ...], shape: tuple[int, ...]) -> Whole:
    made = np.zeros(shape, object)
    made[at] = numbers
    return made
