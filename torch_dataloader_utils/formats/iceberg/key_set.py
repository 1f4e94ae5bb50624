"""Rows of values to look others up in: built once, then asked for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.formats.iceberg.key_hash import Hashes, row_hashes

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SPREAD = np.uint64(0xD6E8FEB86659FD93)


class KeySet:
    """A set of rows of some columns. Nulls equal nulls, NaNs equal NaNs, and -0.0 is not 0.0, as in Iceberg's library.

    Args:
        columns: of scalar types, at least one.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        self._layers: list[tuple[_HashTable, list[pa.Array]]] = []
        rest = np.arange(len(hashes))
        while len(rest):  # twice only where different keys have one hash
            chosen = rest[np.unique(hashes[rest], return_index=True)[1]]
            table, keys = _HashTable(hashes[chosen]), [column.take(chosen) for column in columns]
            rows, found = table.find(hashes[rest])
            others = ~_same([column.take(rest[rows]) for column in columns], [key.take(found) for key in keys])
            rest = rest[rows[others]]
            self._layers.append((table, keys))

    @property
    def nbytes(self) -> int:
        """Bytes of it in memory."""
        return sum(table.nbytes + sum(key.nbytes for key in keys) for table, keys in self._layers)

    def contains(self, columns: Sequence[pa.Array]) -> Mask:
        """Which rows of these columns, in the order and of the types of the keys', are in the set: bool [n]."""
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        result = np.zeros(len(hashes), np.bool_)
        for table, keys in self._layers:
            rows, found = table.find(hashes)
            same = _same([column.take(rows) for column in columns], [key.take(found) for key in keys])
            result[rows[same]] = True
        return result


class _HashTable:
    """From hashes to their places in `hashes`, which are distinct: open addressing, at most a quarter full."""

    def __init__(self, hashes: Hashes) -> None:
        bits = max(4, (4 * len(hashes)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._last = (1 << bits) - 1
        self._hashes = hashes
        self._places = np.full(1 << bits, -1, np.int32)
        places, slots = np.arange(len(hashes), dtype=np.int32), self._slots(hashes)
        while len(places):
            free = self._places[slots] < 0
            self._places[slots[free]] = places[free]
            left = self._places[slots] != places
            places, slots = places[left], (slots[left] + 1) & self._last

    @property
    def nbytes(self) -> int:
        """Bytes of it in memory."""
        return self._hashes.nbytes + self._places.nbytes

    def find(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """Which of `hashes` are there, and the place of each of these, in any order: both int64 [found]."""
        slots = self._slots(hashes)
        places = self._places.take(slots)
        rows = np.flatnonzero(places >= 0)
        slots, places = slots[rows], places[rows]
        found = []
        while len(rows):
            hit = self._hashes[places] == hashes[rows]
            found.append((rows[hit], places[hit].astype(np.int64)))
            rows, slots = rows[~hit], (slots[~hit] + 1) & self._last
            places = self._places[slots]
            there = places >= 0
            rows, slots, places = rows[there], slots[there], places[there]
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(r for r, _ in found)]), np.concatenate([none, *(p for _, p in found)])

    def _slots(self, hashes: Hashes) -> Numbers:
        return ((hashes * _SPREAD) >> self._shift).view(np.int64)


def _comparable(column: pa.Array) -> pa.Array:
    """The column with equal bytes for values that are equal: floats as their bits, all NaNs alike."""
    if not pt.is_floating(column.type):
        return column
    column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Where all columns of two sides are equal, two nulls counting as such: bool [n]."""
    result = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        equal = pc.equal(a, b).fill_null(False)
        if a.null_count and b.null_count:
            equal = pc.or_(equal, pc.and_(a.is_null(), b.is_null()))
        result &= equal.to_numpy(zero_copy_only=False)
    return result
