"""What all worker processes get alike: a pickle, and its large buffers in a file that they map instead of copying them.

So a vocabulary of millions of values, and the table that finds them, are in memory once for all workers of a rank. The
file is an anonymous one, as slots are: no name is left behind, however processes end. A worker maps it privately: what
it writes there, such as a transform that keeps an array, is its own.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle, send_handle
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.ids import IdTable
from torch_dataloader_utils.executors.slots import anonymous_file
from torch_dataloader_utils.values import Value

_LARGE = 1 << 16  # bytes of a buffer that is worth a place in the file
_MANY = 10_000  # values of an option that are worth a buffer
_ALIGN = 64  # bytes: where buffers begin, as Arrow prefers


class BufferPlace(NamedTuple):
    """Where a buffer is in the file, in bytes."""

    start: int
    size: int


class Parcel:
    """An object to send to processes of this machine, pickled once.

    Args:
        value: the object.

    Raises:
        RuntimeError: it can only be passed when a process starts, as locks and similar objects.
    """

    def __init__(self, value: Any) -> None:
        self._file: int | None = None
        self._places: list[BufferPlace] = []
        # By address and size: arrays of the same memory are sent once. Kept, because freed memory is used again.
        self._written: dict[tuple[int, int], tuple[BufferPlace, pickle.PickleBuffer]] = {}
        stream = io.BytesIO()
        try:
            _ParcelPickler(stream, 5, True, self._kept_in_pickle).dump(value)
        except BaseException:
            self.close()
            raise
        self._written.clear()
        self._data = stream.getbuffer()

    def send(self, conn: Connection) -> None:
        """Send it to a process that will have it `received`."""
        conn.send(self._places)
        if self._file is not None:
            send_handle(conn, self._file, None)
        conn.send_bytes(self._data)

    def close(self) -> None:
        """Let go of the file, which lives as long as a process maps it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        """The parcel."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _kept_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer is a part of the pickle; others are written to the file."""
        with buffer.raw() as memory:
            if memory.nbytes < _LARGE:
                return True
            identity = np.frombuffer(memory, np.uint8).ctypes.data, memory.nbytes
            if identity not in self._written:
                self._written[identity] = self._write(memory), buffer
        self._places.append(self._written[identity][0])
        return False

    def _write(self, memory: memoryview) -> BufferPlace:
        """Append to the file."""
        if self._file is None:
            self._file = anonymous_file()
        end = os.lseek(self._file, 0, os.SEEK_END)
        start = os.lseek(self._file, -(-end // _ALIGN) * _ALIGN, os.SEEK_SET)
        with open(self._file, "wb", closefd=False) as file:
            file.write(memory)
        return BufferPlace(start, memory.nbytes)


def received(conn: Connection) -> Callable[[], Any]:
    """A parcel that another process sends: a function that makes the object of it.

    Raises:
        EOFError: that process has ended.
    """
    places: list[BufferPlace] = conn.recv()
    buffers: list[memoryview] = []
    if places:
        file = recv_handle(conn)
        try:
            mapped = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_COPY))
        finally:
            os.close(file)
        buffers = [mapped[place.start : place.start + place.size] for place in places]
    return partial(pickle.loads, conn.recv_bytes(), buffers=buffers)


class _ParcelPickler(ForkingPickler):
    """Pickles tables of ids with what was built of them, and options that hold very many values without these."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._long: dict[int, LongValues | None] = {}  # by the id of a tuple

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, IdTable):
            return value.shared()
        if isinstance(value, LongValues):
            return LongValues, (value.array,)
        if isinstance(value, Value):
            fields = {name: self._shared(item) for name, item in vars(value).items()}
            if any(fields[name] is not item for name, item in vars(value).items()):
                return _value, (type(value), fields)
        return NotImplemented

    def _shared(self, item: Any) -> Any:
        if isinstance(item, dict):
            own = {name: self._shared(value) for name, value in item.items()}
            return own if any(own[name] is not value for name, value in item.items()) else item
        if type(item) is not tuple or len(item) < _MANY:
            return item
        if id(item) not in self._long:
            self._long[id(item)] = LongValues.of(item)
        found = self._long[id(item)]
        return item if found is None else found


class LongValues(Sequence[Any]):
    """Very many values, such as those of a vocabulary, in memory that processes share; elsewhere it pickles as a tuple.

    A worker has options for its errors alone, which show some of the values.
    """

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> LongValues | None:
        """These values; None if they are of several types, or of one that Arrow does not keep."""
        kind = _ARROW.get(next(iter(kinds))) if len(kinds := set(map(type, values))) == 1 else None
        try:
            return None if kind is None else cls(pa.array(values, kind))
        except (OverflowError, UnicodeEncodeError):
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.array.to_pylist(),)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        found = self.array[place]
        return tuple(found.to_pylist()) if isinstance(place, slice) else found.as_py()

    def __repr__(self) -> str:
        return repr(list(self))  # as an option shows its values


_ARROW = {str: pa.large_string(), bytes: pa.large_binary(), int: pa.int64()}


def _value(kind: type[Value], fields: dict[str, Any]) -> Value:
    made = kind.__new__(kind)
    vars(made).update(fields)
    return made
