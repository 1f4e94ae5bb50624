"""Arrays decoded from IPC messages: checked, and made writable where their memory is ours."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.formats.sizes import storage_type

_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def buffer_starts(schema: pa.Schema) -> list[int] | None:
    """Number of the first buffer that a record batch stores for each field, and of all; None where numbers differ."""
    counts = [_buffer_count(field.type) for field in schema]
    known = [count for count in counts if count is not None]
    return list(accumulate(known, initial=0)) if len(known) == len(counts) else None


def _buffer_count(kind: pa.DataType) -> int | None:
    kind = storage_type(kind)
    if _is_view(kind):
        return None
    if pt.is_dictionary(kind):
        return 2
    inner = [_buffer_count(kind.field(i).type) for i in range(kind.num_fields)]
    known = [count for count in inner if count is not None]
    # These have no bitmap; pyarrow counts one.
    bare = pt.is_null(kind) or pt.is_union(kind) or pt.is_run_end_encoded(kind)
    return kind.num_buffers - bare + sum(known) if len(known) == len(inner) else None


def check(column: pa.Array) -> None:
    """Refuse an array that points outside of its memory, or miscounts its nulls.

    Raises:
        pa.ArrowInvalid: says what is wrong.
    """
    if column.type in _AS_BYTES:  # whether text is UTF-8, which takes longer, is found out by who decodes it
        column = column.view(_AS_BYTES[column.type])
    column.validate(full=True)


def writable(array: pa.Array, memory: npt.NDArray[np.uint8], address: int) -> pa.Array:
    """The same array, its buffers marked as mutable that lie in memory of ours: the converter need not copy those.

    pyarrow marks all parts of a larger buffer as immutable. Types of many parts are left as they are.

    Args:
        array: an array without offset.
        memory: uint8, ours.
        address: of its first byte.
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
    """The buffer as a part of `memory`, if it is one."""
    if buffer is None or buffer.is_mutable:
        return buffer
    start = buffer.address - address
    stop = start + buffer.size
    return pa.py_buffer(memory[start:stop]) if start >= 0 and stop <= len(memory) else buffer


def _is_view(kind: pa.DataType) -> bool:
    """Whether it is a view of strings or bytes, which has any number of buffers."""
    return kind in (pa.string_view(), pa.binary_view())
