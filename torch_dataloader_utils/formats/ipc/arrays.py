"""Checks arrays decoded from IPC messages, and makes them writable if their memory is ours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.formats.ipc.messages import buffer_ranges
from torch_dataloader_utils.schemas.depth import has_values, types_in

_INLINE = 12  # the bytes of a string that fit into its view
_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def buffer_starts(schema: pa.Schema) -> list[int]:
    """The number of the first buffer that a record batch stores for each field, followed by the total number.

    Batches have more buffers than this if they contain string views, or unions from a version before 1.0.
    """
    return list(accumulate((_buffer_count(field.type) for field in schema), initial=0))


@lru_cache(maxsize=1024)
def _buffer_count(kind: pa.DataType) -> int:
    """The number of buffers that a record batch stores for a column without rows."""
    # What pyarrow has no arrays of is counted within a struct, which has one buffer itself.
    alone = has_values(kind)
    batch = pa.record_batch([pa.nulls(0, kind if alone else pa.struct([("", kind)]))], ["column"])
    return len(buffer_ranges(batch.serialize().to_pybytes())) - (not alone)


def check_types(schema: pa.Schema) -> None:
    """Reject unions without types: pyarrow crashes the process when it makes nulls of them.

    Raises:
        ValueError: there is one; the message names the column.
    """
    for field in schema:
        if any(pt.is_union(kind) and not kind.num_fields for kind in types_in(field.type)):
            raise ValueError(f"column {field.name!r} is a union without types.")


def check(column: pa.Array) -> None:
    """Check that an array does not point outside its memory or miscount its nulls.

    Does not check that text is UTF-8, which the code that decodes it does: `RecordBatch.validate(full=True)` takes 7
    times as long.

    Raises:
        pa.ArrowInvalid: the array is invalid; the message says why.
    """
    if column.type in _AS_BYTES:
        column = column.view(_AS_BYTES[column.type])
    column.validate(full=True)
    if _holds_views(column.type):
        for part in _parts(column):
            _check_views(part)


@lru_cache(maxsize=1024)
def _holds_views(kind: pa.DataType) -> bool:
    return any(map(_is_view, types_in(kind)))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pt.is_string_view(kind) or pt.is_binary_view(kind))


def _parts(array: pa.Array) -> Iterator[pa.Array]:
    """The array and all arrays within it."""
    yield array
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        inner = [array.storage]
    elif pt.is_dictionary(kind):
        inner = [array.dictionary]
    elif pt.is_struct(kind) or pt.is_union(kind):
        inner = [array.field(number) for number in range(kind.num_fields)]
    elif pt.is_map(kind):
        inner = [array.keys, array.items]
    else:
        inner = [array.values] if pt.is_nested(kind) else []
    for part in inner:
        yield from _parts(part)


def _check_views(array: pa.Array) -> None:
    """Check the views of nulls, too: pyarrow does not validate them, but follows them when it casts or concatenates."""
    if not (_is_view(array.type) and array.null_count):
        return
    _, views, *texts = array.buffers()
    stop = array.offset + len(array)
    length, _, number, start = np.frombuffer(views, "<i4").reshape(-1, 4)[array.offset : stop].T.astype(np.int64)
    sizes = np.array([text.size for text in texts] + [-1])  # the last for no buffer
    size = sizes[np.where((number >= 0) & (number < len(texts)), number, -1)]
    if ((length < 0) | (length > _INLINE) & ((start < 0) | (start + length > size))).any():
        raise pa.ArrowInvalid("the view of a null points outside its memory")


def writable(array: pa.Array, memory: npt.NDArray[np.uint8], address: int) -> pa.Array:
    """The same array, with its buffers in our memory marked as mutable, so that the converter need not copy them.

    pyarrow marks all parts of a larger buffer as immutable. Arrays of types with more parts are returned unchanged.

    Args:
        array: an array without offset.
        memory: our memory, uint8.
        address: the address of its first byte.
    """
    kind = array.type
    children = None
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        children = [writable(array.values, memory, address)]
    elif kind not in _AS_BYTES and (not pt.is_primitive(kind) and not pt.is_binary(kind)):
        return array
    buffers = [_mutable(buffer, memory, address) for buffer in array.buffers()[: kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(array), buffers, children=children)


def _mutable(buffer: pa.Buffer | None, memory: npt.NDArray[np.uint8], address: int) -> pa.Buffer | None:
    """The buffer as a mutable slice of `memory` if it lies there, else unchanged."""
    if buffer is None or buffer.is_mutable:
        return buffer
    start = buffer.address - address
    stop = start + buffer.size
    return pa.py_buffer(memory[start:stop]) if start >= 0 and stop <= len(memory) else buffer
