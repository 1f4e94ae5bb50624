"""Sums of a target by category and fold: exact, and a function of the rows' multiset, whatever their order and parts.

A number is cut into digits of 40 bits, which int64 adds exactly; few digits are not 0: one for targets of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
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
_MOST_CLASSES = 1_000
_KEYS = ("value", "fold", "class")


class TargetSums:
    """Counts rows, and sums a target and its squares, by category and fold; of classes, counts rows of each.

    Sums of several parts of the rows merge to those of all of them. Threads may add to one object; it pickles. It takes
    about 40 bytes and the value for each category and fold.

    Args:
        link: the transform.
        kind: the type of the categories.
        target: the type of the target.

    Raises:
        UnsupportedTypeError: decimals that are categories or classes may have a fraction.
    """

    def __init__(self, link: TargetEncode, kind: pa.DataType, target: pa.DataType) -> None:
        self.link = link
        self.type = counted_type(kind)
        averaged = kind_of(target).values == "number" and not link.classes
        with self._naming():
            self.classes = None if averaged else counted_type(category_type(target))
        self._pieces: list[pa.Table] = []
        self._rows = self._compacted = 0
        self._adding = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_adding": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _adding=ForkLock())

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
            if self._rows > max(_LEAST, 2 * self._compacted):
                self._compact()

    def _compact(self) -> None:
        if len(self._pieces) > 1:
            self._pieces = [_summed(self._pieces)]
        self._rows = self._compacted = sum(piece.num_rows for piece in self._pieces)

    def merge(self, other: TargetSums) -> None:
        """Add what another one has summed, which stays as it is."""
        for piece in list(other._pieces):
            self._keep(piece)

    def learned(self, output: str) -> Fitted:
        """What the transform learns: the categories, ascending, the classes, and what they become.

        The last two rows of the encoding are those of an unseen value and of null, so that -2 and -1 are their places.

        Raises:
            OptionError: the target has too many classes.
        """
        with self._adding:
            self._compact()
            table = self._pieces[0] if self._pieces else self._block(*_nothing(self))
        codes, known = _ascending(table.column("value"))
        classes = [] if self.classes is None else _ascending(table.column("class"))[1]
        if len(classes) > _MOST_CLASSES:
            raise OptionError(
                f"output {output!r}: the target {self.link.target!r} has {len(classes):,} classes: expected at most "
                f"{_MOST_CLASSES:,}. A target of numbers, without classes=True, is averaged."
            )
        totals = (
            self._class_totals(table, codes, len(known)) if self.classes else self._totals(table, codes, len(known))
        )
        made = totals.encoded(self.link.smooth)  # of the values, null and an unseen value
        missing = made[-2:-1] if totals.counts[-1].any() else made[-1:]
        return {
            "vocabulary": Vocabulary.of(typed(known, self.type)),
            "classes": typed(classes, self.classes).to_pylist() if self.classes else [],
            "encoding": np.concatenate([made[:-2], made[-1:], missing]),
        }

    def _totals(self, table: pa.Table, codes: I64, known: int) -> TargetTotals:
        """Those of numbers; the last row is null's."""
        at = codes, table.column("fold").to_numpy()
        shape = known + 1, self.link.folds
        digits = [
            {int(name[1:]): _numbers(table, name) for name in table.column_names if name[0] == kind} for kind in "sq"
        ]
        places = [*digits[0], *(place // 2 for place in digits[1])]
        unit = min(places, default=0)
        whole = [_whole(of, unit * power, len(table)) for power, of in enumerate(digits, 1)]
        counts, sums, squares = (
            _placed(numbers, at, shape) for numbers in (table.column("n").to_numpy().astype(object), *whole)
        )
        return TargetTotals(counts, sums[..., None], squares[..., None], unit * _BITS)

    def _class_totals(self, table: pa.Table, codes: I64, known: int) -> TargetTotals:
        """Those of 0 and 1 for each class but the first of two; the last row is null's."""
        of_rows, classes = _ascending(table.column("class"))
        shape = known + 1, self.link.folds, max(len(classes), 1)
        counts = _placed(
            table.column("n").to_numpy().astype(object), (codes, table.column("fold").to_numpy(), of_rows), shape
        )
        sums = counts[..., 1:] if shape[2] == 2 else counts
        return TargetTotals(counts.sum(axis=2), sums, sums, 0)


def _nothing(sums: TargetSums) -> tuple[pa.Array, pa.Array, I64]:
    return pa.nulls(0, sums.type), pa.nulls(0, sums.classes or pa.float64()), np.zeros(0, np.int64)


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


def _summed(pieces: Sequence[pa.Table]) -> pa.Table:
    """Each category and fold once, with its sums."""
    joined = pa.concat_tables(pieces, promote_options="default")
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
