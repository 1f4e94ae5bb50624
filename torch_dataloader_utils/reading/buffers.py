"""Recycled memory: large buffers are leased, and return to the pool when the last view of them is gone.

Each fresh multi-megabyte allocation costs a page fault per 4 KiB page; a recycled one costs nothing. The lease is a new
numpy array over the same memory, and `weakref.finalize` on it fires only after every numpy slice and tensor made from
it is gone (a view keeps the lease alive as its base).
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_ROUND = 1 << 16  # bytes: sizes are rounded up, to this or an eighth, so that nearly equal requests share buffers


class BufferPool:
    """Writable buffers, reused once their last view is gone. Threads may share a pool; it is empty after unpickling.

    Args:
        keep: how many idle buffers of one size are kept; any more are freed.
    """

    def __init__(self, keep: int = 4) -> None:
        self._idle: dict[int, deque[bytearray]] = {}
        self._keep = keep
        self.made = 0

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int]]:
        return BufferPool, (self._keep,)

    def lease(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """A writable uint8 array, shape [nbytes], whose memory returns to the pool when its last view is gone."""
        step = max(_ROUND, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-max(nbytes, 1) // step) * step
        idle = self._idle.setdefault(size, deque())
        try:
            memory = idle.pop()
        except IndexError:
            self.made += 1
            memory = bytearray(size)
        array = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(array, self._release, idle, memory).atexit = False
        return array[:nbytes]

    def _release(self, idle: deque[bytearray], memory: bytearray) -> None:
        if len(idle) < self._keep:
            idle.append(memory)


class Scratch:
    """Memory for the intermediate values of one thread: it is written and read again while in the processor's cache."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, rows: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of so many rows of the same dtype and shape; overwritten by the next."""
        nbytes = rows * like.itemsize * math.prod(like.shape[1:])
        if nbytes > len(self._memory):
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes].view(like.dtype).reshape(rows, *like.shape[1:])
