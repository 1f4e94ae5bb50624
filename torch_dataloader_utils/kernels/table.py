"""The places of values among keys that differ: by the compiled library, or by numpy and Arrow, with equal results."""

from __future__ import annotations

from ctypes import CDLL, c_int, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import U64, value_hashes
from torch_dataloader_utils.kernels.library import loaded
from torch_dataloader_utils.kernels.rows import Array, Bytes, addresses
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.rows import I64

_SOURCE = Path(__file__).with_name("table.c")
_ARGUMENTS = {
    "tdu_build": (c_void_p, c_uint64, c_void_p, c_void_p, c_int, c_size_t, c_void_p),
    "tdu_find": (c_void_p, c_void_p, c_void_p, c_int, c_size_t, c_void_p, c_uint64, c_void_p, c_void_p, c_int),
}
_MOST = (1 << 31) - 1  # keys, whose slots 32 bits of a hash reach
_FEW = 1_000  # keys for which Arrow takes less time to build a table anew than numpy takes to look up a block
_CACHED = 1 << 15  # sorted keys that stay in the processor's cache, where queries need no order


class ByteKeys(NamedTuple):
    """Values that are bytes of any number.

    Attributes:
        data: the bytes of all values.
        offsets: where value i begins and value i + 1 begins in them, int32 or int64 [n + 1], contiguous, from anywhere.
    """

    data: Bytes
    offsets: Array


Keys: TypeAlias = I64 | ByteKeys  # int64 [n], contiguous, or bytes


class KeyTable(Protocol):
    """Finds values among keys; any number of threads may do so at once.

    Attributes:
        duplicate: the first key that is equal to one before it, by its place; None if all differ. If it is a number,
            nothing can be found.
        nbytes: memory that the table takes, beside keys that are views of others' memory.
    """

    duplicate: int | None
    nbytes: int

    def places_of(self, queries: Any) -> I64:
        """The place of each query, of the kind of the keys, among them: int64 [m], -1 where it is unknown."""
        ...


@lru_cache(maxsize=1)
def library() -> CDLL | None:
    """That of table.c, whose functions release the GIL; None if there is none for this source and machine."""
    return loaded(_SOURCE, _ARGUMENTS, "numpy does its work, and looking up values takes longer")


def table_of(keys: Keys) -> KeyTable:
    """The table of these keys, which must stay as they are.

    Raises:
        ValueError: there are 2**31 keys or more.
    """
    *_, count = _arguments(keys)
    if count > _MOST:
        raise ValueError(f"a table has room for {_MOST:,} keys: got {count:,}.")
    found = library()
    if found is not None:
        return SlotTable(found, keys)
    if count <= _FEW:
        return ArrowTable(keys)
    return SortedBytes(keys) if isinstance(keys, ByteKeys) else SortedInts(keys)


class SlotTable:
    """The table of the compiled library: 16 bytes a key."""

    def __init__(self, library: Any, keys: Keys) -> None:
        self._library, self._keys = library, keys
        *of_keys, count = _arguments(keys)
        self._slots, duplicate = np.zeros(2 * count + 1, np.uint64), np.full(1, -1, np.int64)
        slots, found = addresses(self._slots, duplicate)
        library.tdu_build(slots, len(self._slots), *of_keys, count, found)
        self.duplicate = int(duplicate[0]) if duplicate[0] >= 0 else None
        self.nbytes = self._slots.nbytes + _owned(keys)

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process of this machine makes the same table of, if it has the library, too."""
        return _of_slots, (self._keys, self._slots, self.duplicate)

    @classmethod
    def of(cls, library: Any, keys: Keys, slots: U64, duplicate: int | None) -> SlotTable:
        """The table whose slots these are."""
        made = cls.__new__(cls)
        made._library, made._keys, made._slots, made.duplicate = library, keys, slots, duplicate
        made.nbytes = slots.nbytes + _owned(keys)
        return made

    def places_of(self, queries: Keys) -> I64:
        """As `KeyTable`."""
        *of_keys, _ = _arguments(self._keys)
        *of_queries, count = _arguments(queries)
        out = np.empty(count, np.int64)
        to, slots = addresses(out, self._slots)
        self._library.tdu_find(to, *of_queries, count, slots, len(self._slots), *of_keys)
        return out


def _of_slots(keys: Keys, slots: U64, duplicate: int | None) -> KeyTable:
    found = library()
    return table_of(keys) if found is None else SlotTable.of(found, keys, slots, duplicate)


class ArrowTable:
    """Few keys, for Arrow, which builds its own table for each block of queries."""

    def __init__(self, keys: Keys) -> None:
        self._keys = _as_arrow(keys)
        self.nbytes = _owned(keys)
        repeated = _repeated(self._keys)
        self.duplicate = int(repeated[0]) if len(repeated) else None

    def places_of(self, queries: Keys) -> I64:
        """As `KeyTable`."""
        places = pc.index_in(_as_arrow(queries), value_set=self._keys)
        return np.asarray(pc.fill_null(places, -1)).astype(np.int64)


class SortedInts:
    """Keys in ascending order, for numpy: 16 bytes a key."""

    def __init__(self, keys: I64) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        self.nbytes = self._order.nbytes + self._sorted.nbytes
        later = self._order[1:][self._sorted[1:] == self._sorted[:-1]]
        self.duplicate = int(later.min()) if len(later) else None

    def places_of(self, queries: I64) -> I64:
        """As `KeyTable`."""
        if not len(self._sorted):
            return np.full(len(queries), -1, np.int64)
        at = np.minimum(_first(self._sorted, queries), len(self._sorted) - 1)
        return np.where(self._sorted[at] == queries, self._order[at], -1)


class SortedBytes:
    """Hashes of keys in ascending order, for numpy, and the keys, for Arrow: 16 bytes a key."""

    def __init__(self, keys: ByteKeys) -> None:
        self._keys = _as_arrow(keys)
        hashes = _hashes(keys)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]
        self.nbytes = self._order.nbytes + self._sorted.nbytes
        self.duplicate = self._duplicate()

    def places_of(self, queries: ByteKeys) -> I64:
        """As `KeyTable`."""
        values, hashes = _as_arrow(queries), _hashes(queries)
        out = np.full(len(hashes), -1, np.int64)
        rows, at = np.arange(len(hashes)), _first(self._sorted, hashes)
        while True:  # one step, unless keys share a hash
            rows, at = rows[at < len(self._sorted)], at[at < len(self._sorted)]
            alike = self._sorted[at] == hashes[rows]
            rows, at = rows[alike], at[alike]
            if not len(rows):
                return out
            places = self._order[at]
            same = np.asarray(pc.equal(self._keys.take(as_arrow(places)), values.take(as_arrow(rows))))
            out[rows[same]] = places[same]
            rows, at = rows[~same], at[~same] + 1

    def _duplicate(self) -> int | None:
        alike = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        among = np.sort(self._order[np.union1d(alike, alike + 1)])
        repeated = among[_repeated(self._keys.take(as_arrow(among)))]
        return int(repeated[0]) if len(repeated) else None


def _repeated(keys: pa.Array) -> npt.NDArray[np.intp]:
    """The places of keys that are equal to one before them, in ascending order."""
    codes = np.asarray(keys.dictionary_encode().indices)
    return np.delete(np.arange(len(codes)), np.unique(codes, return_index=True)[1])


def _first(ascending: Array, queries: Array) -> npt.NDArray[np.intp]:
    """The place of the first number that is not less than a query, for each of them."""
    if len(ascending) <= _CACHED:
        return np.searchsorted(ascending, queries)
    order = np.argsort(queries)  # neighbours among the queries then find their places in the same memory
    out = np.empty(len(queries), np.intp)
    out[order] = np.searchsorted(ascending, queries[order])
    return out


def _arguments(keys: Keys) -> list[int]:
    """The keys as table.c takes them: their data, their offsets, bytes of an offset, and their number."""
    if isinstance(keys, ByteKeys):
        return [*addresses(keys.data, keys.offsets), keys.offsets.itemsize, len(keys.offsets) - 1]
    return [*addresses(keys), 0, 0, len(keys)]


def _hashes(keys: ByteKeys) -> U64:
    return value_hashes(keys.data, keys.offsets.astype(np.int64, copy=False))


def _as_arrow(keys: Keys) -> pa.Array:
    if not isinstance(keys, ByteKeys):
        return as_arrow(keys)
    offsets = np.ascontiguousarray(keys.offsets, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(keys.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _owned(keys: Keys) -> int:
    """Bytes of keys that are no view of memory that another owner counts."""
    return keys.nbytes if isinstance(keys, np.ndarray) and keys.base is None else 0
