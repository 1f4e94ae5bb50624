"""Rows taken by number or put in their places: by the compiled library, or by numpy and Arrow, with equal results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.kernels.library import library
from torch_dataloader_utils.late_imports import as_arrow

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
        memory: makes the array of the bytes taken; None: numpy or Arrow does.

    Returns:
        Their bytes, and their offsets, int64 [m + 1], from 0.
    """
    found = library()
    if found is None or sum(len(offsets) - 1 for _, offsets in parts) > _NUMBERED:
        return _arrow_ranges(parts, places)
    starts = np.concatenate([offsets[:-1] + (values.ctypes.data - offsets[0]) for values, offsets in parts])
    sizes = np.concatenate([np.diff(offsets) for _, offsets in parts])
    chosen = np.ascontiguousarray(places, np.uint32)
    ends = np.empty(len(chosen) + 1, np.int64)
    found.tdu_offsets(*addresses(ends, sizes, chosen), len(chosen))
    out = (memory or fresh)(int(ends[-1]))
    found.tdu_take_ranges(*addresses(out, ends, starts, chosen), len(chosen))
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
