"""A set of rows for lookups: built once, then queried for each block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.iceberg.data_files.key_hash import HASH_BITS, Hashes, row_hashes
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.sources.deleted_rows import Mask

Numbers = npt.NDArray[np.int64]


class KeySet:
    """A set of rows over several columns. As in Iceberg's library, nulls are equal, NaNs are equal, -0.0 is not 0.0.

    Why not `pyarrow.compute.is_in`: it hashes the keys again in each call, so a block of 125,000 rows takes 4 times as
    long with 100,000 keys, and 13 times as long with a million. Here the keys are sorted by hash once; a directory of
    the hashes' upper bits, at most a quarter full, maps a hash to the position to search from.

    Args:
        columns: at least one, of scalar types.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        order = _each_once(columns, hashes, np.argsort(hashes))
        self._keys = [column.take(order) for column in columns]
        self._hashes: Hashes = np.append(hashes[order], np.uint64(1 << HASH_BITS))  # greater than any hash
        bits = max(4, (4 * len(order)).bit_length())
        self._shift = np.uint64(HASH_BITS - bits)
        counts = np.bincount(self._slots(hashes[order]), minlength=1 << bits)
        self._starts = (np.cumsum(counts) - counts).astype(np.int32)

    @property
    def nbytes(self) -> int:
        """Its size in memory, in bytes."""
        return int(self._hashes.nbytes + self._starts.nbytes + sum(key.nbytes for key in self._keys))

    def contains(self, columns: Sequence[pa.Array]) -> Mask:
        """Which rows of these columns are in the set: bool [n]. The order and types must be those of the keys."""
        columns = [_comparable(column) for column in columns]
        hashes = row_hashes(columns)
        result = np.zeros(len(hashes), np.bool_)
        places = self._places(hashes)
        rows = np.flatnonzero(self._hashes[places] == hashes)
        while len(rows):  # more than once only if different keys have the same hash
            same = _same([column.take(rows) for column in columns], [key.take(places[rows]) for key in self._keys])
            result[rows[same]] = True
            rows = rows[~same]
            places[rows] += 1
            rows = rows[self._hashes[places[rows]] == hashes[rows]]
        return result

    def _places(self, hashes: Hashes) -> Numbers:
        """For each row, the position of the first key whose hash is not less than the row's: int64 [n]."""
        places = self._starts[self._slots(hashes)].astype(np.int64)
        rows = np.flatnonzero(self._hashes[places] < hashes)
        while len(rows):
            places[rows] += 1
            rows = rows[self._hashes[places[rows]] < hashes[rows]]
        return places

    def _slots(self, hashes: Hashes) -> Numbers:
        return (hashes >> self._shift).view(np.int64)


def _each_once(columns: Sequence[pa.Array], hashes: Hashes, order: Numbers) -> Numbers:
    """The rows in `order`, which is sorted by hash, without rows equal to the previous one."""
    places = 1 + np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    one, other = ([column.take(order[rows]) for column in columns] for rows in (places, places - 1))
    return np.delete(order, places[_same(one, other)])


def _comparable(column: pa.Array) -> pa.Array:
    """The column with equal bytes for equal values: floats become their bits, with a single bit pattern for NaN."""
    if not pt.is_floating(column.type):
        return column
    column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _same(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Mask:
    """Which rows are equal in all columns, with nulls equal to each other: bool [n]."""
    result = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        equal = pc.equal(a, b).fill_null(False)
        if a.null_count and b.null_count:
            equal = pc.or_(equal, pc.and_(a.is_null(), b.is_null()))
        result &= equal.to_numpy(zero_copy_only=False)
    return result
