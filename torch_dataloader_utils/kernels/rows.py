"""Rows taken by number or put in their places: by the compiled library, or by numpy and Arrow, with equal results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.kernels.library import library
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.seeding import WindowOrder

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Memory: TypeAlias = Callable[[int], Bytes]  # a writable array of so many bytes
Ranges: TypeAlias = tuple[Bytes, npt.NDArray[np.int64]]  # bytes of rows, and offsets [n + 1]; the first row begins them

_NUMBERED = 1 << 32  # rows that a uint32 can number
_TAKEN = 1 << 20  # rows that numpy takes at a time: their places as int64 fill 8 MB


def compiled() -> bool:
    """Whether the compiled library is used."""
    return library() is not None


def take(source: Array, places: Array, out: Array, memory: Memory | None = None) -> None:
    """Set `out[i] = source[places[i]]`.

    Args:
        source: shape [n, ...], contiguous.
        places: integers [m] in `[0, n)`; uint32 needs no copy if there is a compiled library, int64 needs none without.
        out: shape [m, ...], of the dtype of `source`, contiguous.
        memory: makes the array for a copy of some places; None: numpy does.
    """
    found = library()
    if found is not None and places.dtype == np.uint32:
        found.tdu_take(*addresses(out, source, places), len(places), width_of(source))
        return
    for first in range(0, len(places), _TAKEN):
        part = places[first : first + _TAKEN]
        if part.dtype != np.intp:  # numpy takes by int64 only
            part = (memory or fresh)(8 * len(part)).view(np.intp)
            part[:] = places[first : first + _TAKEN]
        # "clip" because every place is in range, and numpy's default mode copies the output once more.
        np.take(source, part, axis=0, out=out[first : first + _TAKEN], mode="clip")


def put(rows: Array, targets: npt.NDArray[np.int64], out: Array) -> None:
    """Set `out[targets[i]] = rows[i]`, shapes [m, ...] and [n, ...], where `targets[i]` (int64 [n]) is not negative."""
    found = library()
    if found is not None and rows.flags.c_contiguous and out.flags.c_contiguous:
        found.tdu_put(*addresses(out, rows, targets), len(rows), width_of(rows))
        return
    delivered = targets >= 0
    if delivered.all():
        out[targets] = rows
    else:
        out[targets[delivered]] = rows[delivered]


def take_ranges(parts: Sequence[Ranges], places: Array, memory: Memory | None = None) -> Ranges:
    """The rows with these numbers, where rows are ranges of bytes of any length.

    Args:
        parts: the rows, one part after another; the offsets of each may begin anywhere.
        places: integers [m] in `[0, n)`.
        memory: makes the arrays of what is taken; None: numpy or Arrow does.

    Returns:
        Their bytes, and their offsets, int64 [m + 1], from 0.
    """
    found = library()
    if found is None or sum(len(offsets) - 1 for _, offsets in parts) > _NUMBERED:
        return _arrow_ranges(parts, places)
    make, counts = memory or fresh, [len(offsets) - 1 for _, offsets in parts]
    ranges, last = make(16 * sum(counts)).view(np.int64).reshape(-1, 2), 0
    for (values, offsets), count in zip(parts, counts, strict=True):
        first, last = last, last + count
        np.add(offsets[:-1], values.ctypes.data - offsets[0], out=ranges[first:last, 0])
        np.subtract(offsets[1:], offsets[:-1], out=ranges[first:last, 1])
    chosen = np.ascontiguousarray(places, np.uint32)
    ends, starts = make(8 * len(chosen) + 8).view(np.int64), make(8 * len(chosen)).view(np.int64)
    found.tdu_ranges(*addresses(ends, starts, ranges, chosen), len(chosen))
    out = make(int(ends[-1]))
    found.tdu_take_ranges(*addresses(out, ends, starts), len(chosen))
    return out, ends


def _arrow_ranges(parts: Sequence[Ranges], places: Array) -> Ranges:
    values = np.concatenate([values for values, _ in parts]) if len(parts) > 1 else parts[0][0]
    starts = join_offsets([offsets for _, offsets in parts])
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(values)]
    rows = pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers)
    _, ends, data = rows.take(as_arrow(places.astype(np.int64, copy=False))).buffers()
    taken = np.frombuffer(ends, np.int64, len(places) + 1)
    size = int(taken[-1])
    return np.frombuffer(data, np.uint8, size) if size else np.empty(0, np.uint8), taken


def join_offsets(parts: Sequence[Array]) -> npt.NDArray[np.int64]:
    """Offsets int64 [n + 1], from 0, of the rows of all `parts` one after another (each [n_i + 1], from anywhere)."""
    joined = np.zeros(1 + sum(len(part) - 1 for part in parts), np.int64)
    at = 1
    for part in parts:
        joined[at : at + len(part) - 1] = part[1:] + (joined[at - 1] - part[0])
        at += len(part) - 1
    return joined


def addresses(*arrays: Array) -> list[int]:
    """Where their values begin."""
    return [int(array.ctypes.data) for array in arrays]


def width_of(array: Array) -> int:
    """Bytes of one row."""
    return array.itemsize * math.prod(array.shape[1:])


def fresh(nbytes: int) -> Bytes:
    """A new array of so many bytes."""
    return np.empty(nbytes, np.uint8)


# Columns side by side.

_STACKED = 1 << 19  # bytes of rows that numpy writes at a time: they stay in the processor's cache


def stack(columns: Sequence[Array], out: Array) -> None:
    """Set `out[:, i] = columns[i]`.

    Args:
        columns: of numbers, each [n] of one dtype, contiguous.
        out: shape [n, number of columns], of their dtype, contiguous.
    """
    found = library()
    if found is not None:
        sources = np.array(addresses(*columns), np.uint64)
        found.tdu_stack(*addresses(out, sources), *out.shape, out.itemsize)
        return
    step = max(1, _STACKED // (out.itemsize * len(columns)))
    for start in range(0, len(out), step):
        rows = out[start : start + step]
        for number, column in enumerate(columns):
            rows[:, number] = column[start : start + step]


# Interleaves rows: batches that each have some consecutive rows of several parts, part by part.


def interleave(columns: Sequence[Sequence[Array]], quotas: I64, outs: Sequence[Array]) -> None:
    """Interleave columns of fixed width.

    Args:
        columns: of each column, its rows in each part, [rows, ...] of one dtype and shape, contiguous.
        quotas: the rows of each part in each batch, int64 [batches, parts], contiguous.
        outs: of each column, where its rows are written, likewise.
    """
    found = library()
    if found is None:
        for column, out in zip(columns, outs, strict=True):
            np.concatenate([column[part][first:last] for part, first, last in chunks(quotas)], out=out)
        return
    sources = np.array([addresses(*column) for column in columns], np.uint64)
    targets, widths = np.array(addresses(*outs), np.uint64), np.array([width_of(out) for out in outs], np.uint64)
    found.tdu_interleave(*addresses(targets, sources, widths), len(outs), *addresses(quotas), *quotas.shape)


def interleave_ranges(parts: Sequence[Ranges], quotas: I64, item: int = 1, memory: Memory | None = None) -> Ranges:
    """Interleave a column whose rows are ranges of items of any number.

    Args:
        parts: its rows in each part, with offsets that count items.
        quotas: as above.
        item: bytes of an item.
        memory: makes the array of all bytes; None: numpy does.

    Returns:
        All bytes, and the offsets of their items, int64 [rows + 1], from 0.
    """
    offsets = np.zeros(1 + int(quotas.sum()), np.int64)
    interleave([[np.diff(ends) for _, ends in parts]], quotas, [offsets[1:]])
    np.cumsum(offsets, out=offsets)
    places = np.cumsum(quotas, axis=0)
    bounds = [(ends[np.append(0, place)] - ends[0]) * item for (_, ends), place in zip(parts, places.T, strict=True)]
    out = (memory or fresh)(int(offsets[-1]) * item)
    sizes = np.ascontiguousarray(np.diff(bounds).T)
    interleave([[values for values, _ in parts]], sizes, [out])
    return out, offsets


def chunks(quotas: I64) -> list[tuple[int, int, int]]:
    """Consecutive rows of one part in one batch: part, first row, and the row after the last; in order of delivery."""
    ends = np.cumsum(quotas, axis=0)
    part = np.broadcast_to(np.arange(quotas.shape[1]), quotas.shape)
    return list(zip(part.ravel().tolist(), (ends - quotas).ravel().tolist(), ends.ravel().tolist(), strict=True))


# Puts columns of large shuffle windows in order in two steps, neither of which reaches beyond the caches.

Counts: TypeAlias = npt.NDArray[np.uint32]


class BucketOrder:
    """The order of a window, by the compiled library: rows go into buckets as they arrive, then buckets are permuted.

    Args:
        library: the compiled functions.
        n: rows of the window; `WindowOrder.orders(n)`.
        key: the window's.
        runs: how many rows arrive together, which sum up to `n`; runs may arrive in any order.
    """

    def __init__(self, library: Any, n: int, key: int, runs: Sequence[int]) -> None:
        self._library = library
        self._order = order = WindowOrder.drawn(n, key, self._count, self._select)
        starts = np.concatenate([np.zeros(1, np.uint32), order.ends[:-1]])
        self._largest = int((order.ends - starts).max())
        self._runs: dict[tuple[int, int], Counts] = {}  # by first row and end: where the rows go in each bucket
        for first, last in pairwise(accumulate(runs, initial=0)):
            self._runs[first, last] = starts
            starts = starts + self._count(order.buckets[first:last], len(starts))

    @staticmethod
    def drawn(n: int, key: int, runs: Sequence[int]) -> BucketOrder | None:
        """The order of a window; None if it is small, or if there is no compiled library."""
        found = library()
        return BucketOrder(found, n, key, runs) if found is not None and WindowOrder.orders(n) else None

    def put(self, first: int, rows: Array, out: Array) -> None:
        """Put a run's rows into their buckets.

        Args:
            first: number of its first row.
            rows: shape [m, ...].
            out: shape [n, ...], of the same dtype, contiguous: the buckets.

        Raises:
            ValueError: the run has other rows than planned, for which there is no room.
        """
        if (first, first + len(rows)) not in self._runs:
            raise ValueError(f"{len(rows)} rows from row {first} of a window on were read, where others were planned.")
        rows, following = np.ascontiguousarray(rows), self._runs[first, first + len(rows)].copy()
        buckets = self._order.buckets[first : first + len(rows)]
        found = addresses(out, following, rows, buckets)
        self._library.tdu_into_buckets(*found, len(rows), width_of(rows), _wide(buckets))

    def permute(self, out: Array, memory: Memory | None = None) -> None:
        """Bring `out` into the window's order, once all runs were put; `memory` makes the array for one bucket."""
        width = width_of(out)
        spare = (memory or fresh)(self._largest * width)
        found = addresses(out, spare, self._order.local, self._order.ends)
        self._library.tdu_within_buckets(*found, len(self._order.ends), width)

    def places(self) -> npt.NDArray[np.uint32]:
        """The row that is delivered first, second, ...: uint32 [n], as `seeding.window_order` has them."""
        out = np.empty(len(self._order.local), np.uint32)
        for first, last in self._runs:
            self.put(first, np.arange(first, last, dtype=np.uint32), out)
        self.permute(out)
        return out

    def _count(self, buckets: npt.NDArray[Any], number: int) -> Counts:
        sizes = np.empty(number, np.uint32)
        self._library.tdu_count(*addresses(sizes, buckets), len(buckets), number, _wide(buckets))
        return sizes

    def _select(self, base: npt.NDArray[np.uint16], factor: int, shift: int, out: npt.NDArray[np.uint16]) -> None:
        self._library.tdu_select(*addresses(out, base), len(out), len(base), factor, shift)


def _wide(buckets: npt.NDArray[Any]) -> bool:
    """Whether buckets are numbered by uint16, not uint8."""
    return buckets.itemsize > 1
