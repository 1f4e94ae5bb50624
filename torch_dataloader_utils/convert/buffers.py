"""Converts Arrow buffers to numpy: views where the memory is ours, copies elsewhere; slices are handled here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.columns import Array
from torch_dataloader_utils.late_imports import pc


@dataclass(slots=True)
class Origin:
    """The source of columns: which buffers of the table batches may use, and how errors name its rows and columns.

    Attributes:
        owned: True if all buffers are ours alone, False if none are; else the addresses of those that are.
        shared: addresses of buffers that overlap within the table: views of both would alias two columns.
        where: names the rows, such as "file x.parquet, row groups 3-4".
        key: the output key of the column that is converted; set for one after another.
    """

    owned: bool | frozenset[int]
    shared: frozenset[int]
    where: str
    key: str = ""

    def may_keep(self, buffer: pa.Buffer) -> bool:
        """Whether a batch may be a writable view of `buffer`."""
        if self.owned is False or not buffer.is_mutable or buffer.address in self.shared:
            return False
        return self.owned is True or buffer.address in self.owned


def overlapping(table: pa.Table) -> frozenset[int]:
    """Addresses of the buffers of `table` that share bytes with another of its buffers."""
    # Numbers alone: with thousands of columns, a pair for each would keep the garbage collector busy.
    numbers = [
        number
        for column in table.itercolumns()
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
        for number in (buffer.address, buffer.size)
    ]
    starts, sizes = np.array(numbers, np.int64).reshape(-1, 2).T
    order = np.argsort(starts)
    starts, ends = starts[order], (starts + sizes)[order]
    if (starts[1:] >= ends[:-1]).all():
        return frozenset()
    shared: set[int] = set()
    last, end = 0, 0
    for start, stop in zip(starts.tolist(), ends.tolist(), strict=True):
        if start < end:
            shared.update((last, start))
        if stop > end:
            last, end = start, stop
    return frozenset(shared)


def unpack(bitmap: pa.Buffer, offset: int, rows: int) -> Array:
    """Bits `[offset, offset + rows)` of an Arrow bitmap as fresh bool [rows]."""
    first = offset // 8
    packed = np.frombuffer(bitmap, np.uint8, (offset + rows + 7) // 8 - first, first)
    bits: Array = np.unpackbits(packed, bitorder="little").view(np.bool_)
    return bits[offset % 8 : offset % 8 + rows]


def fixed(buffer: pa.Buffer | None, dtype: np.dtype[Any], offset: int, count: int) -> Array:
    """Values `[offset, offset + count)` of a buffer of `dtype`, as a view (writable where the buffer is)."""
    if count == 0 or buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def valid_rows(chunks: Sequence[pa.Array]) -> Array | None:
    """Mask of the rows that have a value, fresh bool [n], or None if all have one; for types with a null bitmap."""
    if not any(chunk.null_count for chunk in chunks):
        return None
    parts = []
    for chunk in chunks:
        bitmap = chunk.buffers()[0] if chunk.null_count else None
        parts.append(np.ones(len(chunk), np.bool_) if bitmap is None else unpack(bitmap, chunk.offset, len(chunk)))
    return np.concatenate(parts)


def offsets_from_zero(chunk: pa.Array, wide: bool) -> Array:
    """Offsets int64 [n + 1], from 0, of a string, binary or list array with int32 (`wide`: int64) offsets."""
    if len(chunk) == 0:
        return np.zeros(1, np.int64)
    raw = fixed(chunk.buffers()[1], np.dtype(np.int64 if wide else np.int32), chunk.offset, len(chunk) + 1)
    offsets: Array = np.subtract(raw, raw[0], dtype=np.int64)
    return offsets


def offsets_from_lengths(chunk: pa.Array) -> Array:
    """Offsets int64 [n + 1], from 0, of `chunk.flatten()`: null lists are empty, whatever values they cover."""
    lengths = pc.fill_null(pc.list_value_length(chunk), 0)
    offsets = np.zeros(len(chunk) + 1, np.int64)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    return offsets


def _from_view(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """A view array converted to values and offsets."""
    try:
        return array.cast(type_)
    except pa.ArrowNotImplementedError:  # old pyarrow has no such cast
        return pa.array(array.to_pylist(), type_)


_STEPS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "storage": lambda array: array.storage,
    "bool8": lambda array: array.storage.cast(pa.bool_()),
    "dictionary": lambda array: array.dictionary_decode(),
    "run_end": lambda array: pc.run_end_decode(array),
    "string_view": lambda array: _from_view(array, pa.large_string()),
    "binary_view": lambda array: _from_view(array, pa.large_binary()),
    "fixed_size_binary": lambda array: array.cast(pa.binary()),
}

_BOOL8 = "arrow.bool8"  # a bool per byte
# Other extension types become Python objects.
_STORED = ("arrow.uuid", "arrow.json", "arrow.fixed_shape_tensor")


@lru_cache(maxsize=256)  # many columns are of few types
def unencoded(type_: pa.DataType) -> tuple[pa.DataType, tuple[str, ...]]:
    """The type without encodings (dictionary, run-end, view, extension), and the steps by which `plain` gets there."""
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name in _STORED:
        step, inner = "storage", type_.storage_type
    elif isinstance(type_, pa.BaseExtensionType) and type_.extension_name == _BOOL8:
        step, inner = "bool8", pa.bool_()
    elif pt.is_dictionary(type_):
        step, inner = "dictionary", type_.value_type
    elif pt.is_run_end_encoded(type_):
        step, inner = "run_end", type_.value_type
    elif pt.is_string_view(type_) or pt.is_binary_view(type_):
        step, inner = str(type_), pa.large_string() if pt.is_string_view(type_) else pa.large_binary()
    elif pt.is_fixed_size_binary(type_):
        step, inner = "fixed_size_binary", pa.binary()
    else:
        return type_, ()
    bare, steps = unencoded(inner)
    return bare, (step, *steps)


def plain(array: pa.Array, steps: Sequence[str]) -> pa.Array:
    """`array` without its encodings, of the type that `unencoded` returned with these steps."""
    for step in steps:
        array = _STEPS[step](array)
    return array


def plain_chunks(chunks: Sequence[pa.Array], steps: Sequence[str]) -> Sequence[pa.Array]:
    """The arrays without their encodings."""
    return [plain(chunk, steps) for chunk in chunks] if steps else chunks


def is_binary(type_: pa.DataType) -> bool:
    """Whether values are bytes, with offsets."""
    return bool(pt.is_binary(type_) or pt.is_large_binary(type_))
