"""Recycled memory: large buffers are leased, and return to the pool when the last view of them is gone.

Each fresh multi-megabyte allocation costs a page fault per 4 KiB page; a recycled one costs nothing. The lease is a new
numpy array over the same memory, and a weak reference to it fires only after every numpy slice and tensor made from
it is gone (a view keeps the lease alive as its base).
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.storage.locks import ForkLock

_ROUND = 1 << 16  # bytes: sizes are rounded up, to this or an eighth, so that nearly equal requests share buffers
_SHARED = 1 << 18  # bytes of a lease that several share: few enough that keeping one of them keeps little else alive
_ALIGN = 64  # bytes: where in a lease they begin
_MAPPED = 1 << 22  # bytes from which on numpy asks for huge pages, which take a virtual machine long to find
_PRIVATE: dict[str, Any] = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}  # not Windows

_Memory: TypeAlias = memoryview | mmap.mmap


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A leased array, and its memory. What is called when it is gone is no Python code, in which a Ctrl-C is lost."""

    __slots__ = ("memory",)
    memory: _Memory


class BufferPool:
    """Writable buffers, reused once their last view is gone. Threads may share a pool; it is empty after unpickling.

    Idle and leased buffers together fill at most an eighth more memory than leased ones did at some time: without that,
    a small lease could free a large buffer that is about to be leased again.

    Attributes:
        made: the number of buffers made so far.
        idle_bytes: bytes of buffers that are not leased, as of the last lease.
    """

    def __init__(self) -> None:
        self._out: dict[int, _Lease] = {}  # by id
        self._returned: deque[Any] = deque()  # of these, those whose arrays are gone; appended to on any thread
        self._idle: dict[int, list[_Memory]] = {}  # by size, the most recently used size last
        self._leased = self._most = 0  # bytes leased now, and at most
        self.idle_bytes = 0
        self._lock = ForkLock()
        self.made = 0

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()

    def lease(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """A writable uint8 array, shape [nbytes], whose memory returns to the pool when its last view is gone."""
        step = max(_ROUND, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-max(nbytes, 1) // step) * step
        with self._lock:
            memory = self._recycled(size)
        if memory is None:
            self.made += 1
            memory = self._fresh(size)
        array = np.frombuffer(memory, dtype=np.uint8)
        lease = _Lease(array, self._returned.append)
        lease.memory = memory
        self._out[id(lease)] = lease
        return array[:nbytes]

    def leases(self, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        """Arrays of these sizes. Small ones share a lease, because a lease costs as much as copying several."""
        arrays: list[npt.NDArray[np.uint8]] = []
        ends: list[tuple[int, int]] = []  # of those that will share the next one
        at = 0
        for number, size in enumerate(sizes, 1):
            ends.append((at, at + size))
            at += -(-size // _ALIGN) * _ALIGN
            if at >= _SHARED or number == len(sizes):
                lease = self.lease(at)
                arrays += [lease[start:stop] for start, stop in ends]
                ends, at = [], 0
        return arrays

    def _fresh(self, size: int) -> _Memory:
        """Memory whose pages come when they are first written: a bytearray is cleared at once, holding the GIL."""
        try:
            return np.empty(size, np.uint8).data if size < _MAPPED else mmap.mmap(-1, size, **_PRIVATE)
        except (MemoryError, OSError) as error:
            with self._lock:
                self._leased -= size
            raise MemoryError(f"{size:,} bytes") from error

    def _recycled(self, size: int) -> _Memory | None:
        """An idle buffer that fits, now leased; None if there is none, and the caller makes one of this size."""
        for _ in range(len(self._returned)):
            memory = self._out.pop(id(lease := self._returned.popleft())).memory
            del lease
            self._leased -= len(memory)
            self.idle_bytes += len(memory)
            self._idle.setdefault(len(memory), []).append(memory)
        found = self._fitting(size)
        self.idle_bytes -= len(found or b"")
        self._leased += size if found is None else len(found)
        self._most = max(self._most, self._leased)
        self._free()
        return found

    def _fitting(self, size: int) -> _Memory | None:
        """The smallest idle buffer of at least this size that is at most twice as large; None if there is none."""
        fitting = min((kept for kept in self._idle if size <= kept <= 2 * size), default=None)
        if fitting is None:
            return None
        idle = self._idle.pop(fitting)
        found = idle.pop()
        if idle:
            self._idle[fitting] = idle
        return found

    def _free(self) -> None:
        """Free idle buffers while all fill too much memory, first those of the size that was used least recently."""
        while self.idle_bytes and self._leased + self.idle_bytes > self._most + self._most // 8:
            size = next(iter(self._idle))
            self.idle_bytes -= len(self._idle[size].pop())
            if not self._idle[size]:
                del self._idle[size]


class Scratch:
    """Memory for the intermediate values of one thread: it is written and read again while in the processor's cache."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """The bytes that it keeps."""
        return self._memory.nbytes

    def array(self, rows: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """An array of so many rows of the dtype and shape of `like`; overwritten by the next."""
        memory = self.bytes(rows * like.itemsize * math.prod(like.shape[1:]))
        return memory.view(like.dtype).reshape(rows, *like.shape[1:])

    def bytes(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An array of so many bytes; overwritten by the next."""
        if nbytes > len(self._memory):
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]
