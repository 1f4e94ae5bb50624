"""The converted columns of a block: numpy arrays to slice batches from, and values that become Python objects late.

A column is rows `[0, n)` of one output key. `slice` returns views; `concat` (for batches that cross blocks) and `take`
(rows by number, in any order) return fresh memory. `parts` is what a worker process sends: a tiny picklable header, and
arrays whose bytes may be placed anywhere, such as in one packed shared buffer; `rebuild(header, arrays)` restores the
column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.convert.layouts import Padding
from torch_dataloader_utils.kernels import join_offsets, take_ranges
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.schemas.columns import python_values

Array: TypeAlias = npt.NDArray[Any]
Memory: TypeAlias = Callable[[int], npt.NDArray[np.uint8]]  # a writable array of so many bytes
Header: TypeAlias = tuple[Any, ...]  # rebuilds the column from its arrays; opaque elsewhere


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Values of one dtype and shape per row.

    Attributes:
        array: shape [n] or [n, ...]; in a converted block writable, contiguous and not shared.
    """

    array: Array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.array.nbytes

    def slice(self, first: int, last: int) -> Dense:
        """Rows `[first, last)`, as a view."""
        return Dense(self.array[first:last])

    @staticmethod
    def concat(columns: Sequence[Dense]) -> Dense:
        """The rows of all `columns` in fresh memory."""
        return Dense(np.concatenate([column.array for column in columns]))

    def take(self, places: Array, memory: Memory | None = None) -> Dense:
        """The rows with these numbers (integers [m]), in fresh memory or in `memory`."""
        out = array_in(memory, len(places), self.array)
        # "clip" because every number is in range, and numpy's default mode copies the output once more.
        np.take(self.array, places, axis=0, out=out, mode="clip")
        return Dense(out)

    def parts(self) -> tuple[Header, list[Array]]:
        """A header and the one array."""
        return (Dense,), [self.array]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of unequal length: row i is `values[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]`.

    `values` begins with the first row and ends with the last one, in slices too; `offsets` begins at 0 in a whole
    block and may begin higher in a slice, so a batch subtracts `offsets[0]` into fresh memory.

    Attributes:
        values: shape [sum], writable and not shared.
        offsets: int64 [n + 1].
        layout: its form in a batch: "ragged" (values and offsets), "flat" (values), a `Padding` or "nested"; for
            lengths of runs, "ends" (where each run of the batch ends, after a 0) or "longest" (the largest, a number).
    """

    values: Array
    offsets: Array
    layout: str | Padding = "ragged"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of these rows, offsets included."""
        return self.values.nbytes + self.offsets.nbytes

    def slice(self, first: int, last: int) -> Ragged:
        """Rows `[first, last)`, as views."""
        return Ragged(*_cut(self.values, self.offsets, first, last), self.layout)

    @staticmethod
    def concat(columns: Sequence[Ragged]) -> Ragged:
        """The rows of all `columns` in fresh memory; offsets begin at 0."""
        values = np.concatenate([column.values for column in columns])
        return Ragged(values, join_offsets([column.offsets for column in columns]), columns[0].layout)

    def take(self, places: Array) -> Ragged:
        """The rows with these numbers (integers [m]), in fresh memory; offsets begin at 0."""
        return Ragged.taken([self], places)

    @staticmethod
    def taken(columns: Sequence[Ragged], places: Array, memory: Memory | None = None) -> Ragged:
        """As `concat(columns).take(places)`, with a single copy, to `memory` if given."""
        like = columns[0].values
        item = like.itemsize * math.prod(like.shape[1:])
        if not item:  # each value is empty, so that rows have lengths only
            sizes = np.concatenate([np.diff(column.offsets) for column in columns])
            offsets = np.concatenate([[0], np.cumsum(sizes[places])])
            return Ragged(np.empty((offsets[-1], *like.shape[1:]), like.dtype), offsets, columns[0].layout)
        starts = [column.offsets if item == 1 else column.offsets * item for column in columns]
        parts = [(column.values.reshape(-1).view(np.uint8), own) for column, own in zip(columns, starts, strict=True)]
        data, offsets = take_ranges(parts, places, memory)
        ends = offsets if item == 1 else offsets // item
        return Ragged(data.view(like.dtype).reshape(-1, *like.shape[1:]), ends, columns[0].layout)

    def parts(self) -> tuple[Header, list[Array]]:
        """A header (with the layout), values and offsets."""
        return (Ragged, self.layout), [self.values, self.offsets]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Strings or bytes, one per row or None; they become Python objects only in `to_list`, batch by batch.

    Attributes:
        values: uint8 [sum], the bytes of all rows, placed by the offsets as in `Ragged`. Never written to.
        offsets: int64 [n + 1].
        valid: bool [n], False where a row is None; None when every row has a value.
        binary: whether the rows are bytes, not str.
    """

    values: Array
    offsets: Array
    valid: Array | None
    binary: bool

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of these rows, offsets and null mask included."""
        return sum(array.nbytes for array in self.parts()[1])

    def slice(self, first: int, last: int) -> Text:
        """Rows `[first, last)`, as views."""
        valid = None if self.valid is None else self.valid[first:last]
        return Text(*_cut(self.values, self.offsets, first, last), valid, self.binary)

    @staticmethod
    def concat(columns: Sequence[Text]) -> Text:
        """The rows of all `columns` in fresh memory."""
        values = np.concatenate([column.values for column in columns])
        offsets = join_offsets([column.offsets for column in columns])
        masks = Text.masks(columns)
        return Text(values, offsets, None if masks is None else np.concatenate(masks), columns[0].binary)

    @staticmethod
    def masks(columns: Sequence[Text]) -> list[Array] | None:
        """The null mask of each column, bool [n]; None if none has one."""
        if all(column.valid is None for column in columns):
            return None
        return [np.ones(len(column), np.bool_) if column.valid is None else column.valid for column in columns]

    def take(self, places: Array) -> Text:
        """The rows with these numbers (integers [m]), in fresh memory."""
        return Text.taken([self], places)

    @staticmethod
    def taken(columns: Sequence[Text], places: Array, memory: Memory | None = None) -> Text:
        """As `concat(columns).take(places)`, with a single copy, to `memory` if given."""
        values, offsets = take_ranges([(column.values, column.offsets) for column in columns], places, memory)
        masks = Text.masks(columns)
        return Text(values, offsets, None if masks is None else np.concatenate(masks)[places], columns[0].binary)

    def to_list(self, first: int = 0, last: int | None = None) -> list[str | None] | list[bytes | None]:
        """The rows `[first, last)` as str or bytes, None where a row is null."""
        part = self.slice(first, len(self) if last is None else last)
        bitmap = None
        if part.valid is not None:
            bitmap = pa.py_buffer(np.packbits(part.valid, bitorder="little"))
        offsets = part.offsets - part.offsets[0]
        array = pa.Array.from_buffers(
            pa.large_binary() if self.binary else pa.large_string(),
            len(part),
            [bitmap, pa.py_buffer(offsets), pa.py_buffer(part.values)],
        )
        # Three times as fast as decoding one by one: Arrow creates all the Python strings in C++.
        objects: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return objects

    def parts(self) -> tuple[Header, list[Array]]:
        """A header, values, offsets, and the null mask if any value is null."""
        if self.valid is None:
            return (Text, None, self.binary), [self.values, self.offsets]
        return (Text, self.binary), [self.values, self.offsets, self.valid]


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Rows that become Python objects (dicts, lists, ...) in `to_list`, batch by batch.

    Kept as Arrow until then: hundreds of thousands of live Python objects would keep the garbage collector busy.

    Attributes:
        chunks: the rows, of any Arrow type.
    """

    chunks: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in Arrow memory."""
        return int(self.chunks.nbytes)

    def slice(self, first: int, last: int) -> Objects:
        """Rows `[first, last)`, as a view; places beyond the end are ignored."""
        return Objects(self.chunks.slice(first, max(0, last - first)))

    @staticmethod
    def concat(columns: Sequence[Objects]) -> Objects:
        """The rows of all `columns`; not copied, because they are never written to."""
        chunks = [chunk for column in columns for chunk in column.chunks.chunks]
        return Objects(pa.chunked_array(chunks, type=columns[0].chunks.type))

    def take(self, places: Array) -> Objects:
        """The rows with these numbers (int64 [m])."""
        return Objects(take_rows(self.chunks, places))

    def to_list(self, first: int = 0, last: int | None = None) -> list[Any]:
        """The rows `[first, last)` as Python objects, None where a row is null."""
        return python_values(self.slice(first, len(self) if last is None else last).chunks)

    def parts(self) -> tuple[Header, list[Array]]:
        """A header and one uint8 array: the rows as an Arrow IPC stream."""
        table = pa.table([self.chunks], names=["rows"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return (_objects,), [np.frombuffer(sink.getvalue(), np.uint8)]


def _objects(stream: Array) -> Objects:
    """The column whose `parts()` held this array; keeps the array's memory alive."""
    return Objects(pa.ipc.open_stream(pa.py_buffer(stream)).read_all().column(0))


Column: TypeAlias = Dense | Ragged | Text | Objects


def rebuild(header: Header, arrays: Sequence[Array]) -> Column:
    """The column whose `parts()` were `header` and `arrays`; keeps the arrays, without a copy."""
    make, *extra = header
    column: Column = make(*arrays, *extra)
    return column


def array_in(memory: Memory | None, rows: int, like: Array) -> Array:
    """An array of so many rows of the dtype and shape of `like`, in `memory`, by default fresh."""
    shape = (rows, *like.shape[1:])
    if memory is None:
        return np.empty(shape, like.dtype)
    return memory(like.itemsize * math.prod(shape)).view(like.dtype).reshape(shape)


def concat(columns: Sequence[Any]) -> Column:
    """The rows of all `columns` (at least one, all of one kind) as one column in fresh memory."""
    joined: Column = type(columns[0]).concat(columns)
    return joined


def take_rows(chunks: pa.ChunkedArray, places: Array) -> pa.ChunkedArray:
    """The rows with these numbers (int64 [m]), of any Arrow type."""
    try:
        return chunks.take(as_arrow(places))
    except pa.ArrowNotImplementedError:  # such as views and run-end encoded arrays, which can only be sliced
        rows = [chunks.slice(place, 1).chunk(0) for place in places.tolist()]
        return pa.chunked_array([pa.concat_arrays(rows)] if rows else [], type=chunks.type)


def _cut(values: Array, offsets: Array, first: int, last: int) -> tuple[Array, Array]:
    """Views of the values and the offsets of rows `[first, last)`; places beyond the end are ignored."""
    rows = len(offsets) - 1
    first = min(first, rows)
    cut = offsets[first : max(first, min(last, rows)) + 1]
    return values[cut[0] - offsets[0] : cut[-1] - offsets[0]], cut
