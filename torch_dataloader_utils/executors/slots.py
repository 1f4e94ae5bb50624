"""Shared-memory slots: a worker process packs converted blocks into them, and the main process wraps them uncopied.

A slot is an anonymous file (memfd on Linux), created by the worker and passed over its pipe. It has no name, cannot be
left behind, and is not limited by the 64 MB of a container's /dev/shm. It is reused once its last view in the main
process has died. Whole blocks are sent, because a tensor for each column and batch would cost a file descriptor each.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column, rebuild
from torch_dataloader_utils.events import NO_WORK, Work, recorder, recording
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, BlockReader

_ALIGN = 64  # bytes: a cache line, which torch and Arrow kernels prefer
_PAGE = 1 << 20  # slots grow in whole mebibytes, so that blocks of similar size can use the same one


@dataclass(frozen=True, slots=True)
class Packed:
    """Where a block's arrays are in a slot; all that the pipe carries for a block.

    Attributes:
        rows: the number of rows of the block.
        nbytes: the size of the block.
        columns: key -> (header, [(first byte, dtype, shape), ...]); None for an Arrow stream that begins at byte 0.
        size: the number of bytes of the slot in use.
        work: the time that reading and packing took.
        left_out: as of the block.
    """

    rows: int
    nbytes: int
    columns: dict[str, tuple[Any, list[tuple[int, str, tuple[int, ...]]]]] | None
    size: int
    work: Work = NO_WORK
    left_out: npt.NDArray[np.int64] | None = None


def anonymous_file() -> int:
    """The descriptor of a new unnamed file, for shared memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tdu-slot", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class WritableSlot:
    """A slot in the worker; `size` is 0 until memory is first reserved."""

    def __init__(self) -> None:
        self.fd = anonymous_file()
        self.size = 0
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """The slot's memory, uint8 of at least `size` bytes; it grows and never shrinks."""
        if size > self.size or self._map is None:
            # Grow by at least a quarter: a new slot grows a few times, then keeps its size.
            self.size = -(-max(size, self.size * 5 // 4, _PAGE) // _PAGE) * _PAGE
            os.ftruncate(self.fd, self.size)
            self._map = mmap.mmap(self.fd, self.size)
        return np.frombuffer(self._map, dtype=np.uint8)


class Packer:
    """Copies columns into a slot one after another.

    Args:
        reserve: returns the slot's memory, of at least the given number of bytes, with its content kept.
    """

    def __init__(self, reserve: Callable[[int], npt.NDArray[np.uint8]]) -> None:
        self._reserve = reserve
        self._places: dict[str, tuple[Any, list[tuple[int, str, tuple[int, ...]]]]] = {}
        self._at = 0
        self._nbytes = 0

    def add(self, columns: dict[str, Column]) -> None:
        """Copy these columns into the slot, after the earlier ones."""
        noted = recorder()
        stage = noted.enter("pack")
        for key, column in columns.items():
            header, parts = column.parts()
            self._places[key] = (header, [self._copied(array) for array in parts])
            self._nbytes += column.nbytes
        noted.enter(stage)

    def packed(self, rows: int) -> Packed:
        """The places of all columns, for a block of this many rows."""
        return Packed(rows, self._nbytes, self._places, self._at)

    def _copied(self, array: npt.NDArray[Any]) -> tuple[int, str, tuple[int, ...]]:
        start, end = self._at, self._at + array.nbytes
        self._at = -(-end // _ALIGN) * _ALIGN
        self._reserve(self._at)[start:end].view(array.dtype).reshape(array.shape)[...] = array
        return start, array.dtype.str, array.shape


def pack(
    reader: BlockReader, task: Task, reserve: Callable[[int], npt.NDArray[np.uint8]], queue_full: float = 0.0
) -> Packed:
    """Read a task into reserved memory, after `queue_full` seconds of waiting for room; returns where its parts are."""
    with recording() as noted:
        packed = _packed(reader, task, reserve)
        if task.pad:
            noted.count("repeats", packed.rows)
        return replace(packed, work=packed.work + noted.work(queue_full))


def _packed(reader: BlockReader, task: Task, reserve: Callable[[int], npt.NDArray[np.uint8]]) -> Packed:
    packer = Packer(reserve)
    rows = reader.read_columns(task, packer.add)
    if rows is not None:
        return packer.packed(rows)
    block = reader.block(task)
    if block.columns is None:
        return replace(_pack_table(block, reserve), left_out=block.left_out)
    packer.add(block.columns)
    # The work of a shared read, which records it itself.
    return replace(packer.packed(block.rows), work=block.work, left_out=block.left_out)


def _pack_table(block: Block, reserve: Callable[[int], npt.NDArray[np.uint8]]) -> Packed:
    recorder().enter("pack")
    counter = pa.MockOutputStream()
    _write(block.table, counter)
    size = int(counter.size())
    _write(block.table, pa.FixedSizeBufferWriter(pa.py_buffer(reserve(size))))
    return Packed(block.rows, block.nbytes, None, size)


def _write(table: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)


def unpack(packed: Packed, memory: npt.NDArray[np.uint8]) -> Block:
    """The block as views of `memory`."""
    if packed.columns is None:
        table = pa.ipc.open_stream(pa.py_buffer(memory[: packed.size])).read_next_batch()
        return Block(packed.rows, None, table, packed.nbytes, packed.work, packed.left_out)
    columns: dict[str, Column] = {
        key: rebuild(header, [_view(memory, *place) for place in places])
        for key, (header, places) in packed.columns.items()
    }
    return Block(packed.rows, columns, None, packed.nbytes, packed.work, packed.left_out)


def _view(memory: npt.NDArray[np.uint8], start: int, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    return memory[start : start + size].view(kind).reshape(shape)


class MappedSlot:
    """A slot in the main process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._size = 0
        weakref.finalize(self, os.close, fd).atexit = False

    def lease(self, size: int, release: Callable[[], None]) -> npt.NDArray[np.uint8]:
        """The slot's first `size` bytes, writable; `release` is called after the last view of them has died."""
        if self._map is None or size > self._size:
            self._size = os.fstat(self._fd).st_size
            self._map = mmap.mmap(self._fd, self._size)
        array = np.frombuffer(self._map, dtype=np.uint8)
        weakref.finalize(array, release).atexit = False
        return array[:size]


def dump_error(error: BaseException, trace: str) -> bytes:
    """A pickled exception for the pipe, with the worker's traceback as a note; a stand-in if it cannot be pickled."""
    from torch_dataloader_utils.errors import WorkerError

    error.add_note(f"\nIn a worker process:\n{trace}")
    try:
        data = pickle.dumps(error)
        again = pickle.loads(data)
        if type(again) is type(error):
            return data
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as problem:
        error.add_note(f"(the original could not be pickled: {problem})")
    stand_in = WorkerError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        stand_in.add_note(note)
    return pickle.dumps(stand_in)
