"""Frozen hashes of the values of Arrow arrays: one value has one hash, whatever its width, unit or encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import MASK, NULL, U64, crossed, mixed, whole
from torch_dataloader_utils.kernels.hashes import int_hashes, value_hashes
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.merge import is_text, without_views

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def key_hashes(columns: Sequence[pa.ChunkedArray], *, floats: bool = False) -> U64:
    """The hash of each row's key, shape [rows]: that of its values in these columns, in order.

    Args:
        columns: one or more, of one length.
        floats: as in `array_hashes`, which says what it raises.
    """
    return crossed([_column_hashes(column, floats) for column in columns])


def is_hashed(kind: pa.DataType, *, floats: bool = False) -> bool:
    """Whether values of this type have exact hashes: whole numbers, text, bytes, dates, times and bools.

    Args:
        kind: the type.
        floats: whether floats count as whole numbers.
    """
    return _hasher(kind, floats) is not None


def array_hashes(array: pa.Array, *, floats: bool = False) -> U64:
    """The hash of each value, shape [n]; null has its own.

    Args:
        array: of a type of which values are hashed.
        floats: whether floats are hashed as the whole numbers that they equal (5.0 as 5), and NaN as null.

    Raises:
        UnsupportedTypeError: a float is not whole, or too large; names it.
    """
    if not len(array):  # it may have no memory
        return np.zeros(0, np.uint64)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_dictionary(array.type):
        # A large dictionary may come with few rows.
        if len(array.dictionary) > len(array):
            return array_hashes(array.dictionary_decode(), floats=floats)
        known: U64 = np.append(array_hashes(array.dictionary, floats=floats), np.uint64(NULL))
        array = array.indices
        hashes: U64 = known[_stored(pc.fill_null(array, 0) if array.null_count else array)]
    else:
        hasher = _hasher(array.type, floats)
        assert hasher is not None
        hashes = hasher(array)
    if array.null_count:
        hashes[_nulls(array)] = NULL
    return hashes


def _column_hashes(column: pa.ChunkedArray, floats: bool) -> U64:
    parts = [array_hashes(chunk, floats=floats) for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, np.uint64)])


def _hasher(kind: pa.DataType, floats: bool) -> Callable[[pa.Array], U64] | None:
    """The function that hashes an array of this type, null as any value; None if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return _hasher(kind.value_type, floats)
    if isinstance(kind, pa.BaseExtensionType):
        return _hasher(kind.storage_type, floats)
    if types.is_integer(kind) or types.is_boolean(kind):
        return _hash_numbers
    if types.is_floating(kind) and floats:
        return _hash_floats
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _hash_times
    if types.is_fixed_size_binary(kind):
        return _hash_fixed
    if is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _hash_bytes
    return None


def _stored(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an array that is not empty, without a copy, and whatever is stored at nulls: shape [n]."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _nulls(array: pa.Array) -> npt.NDArray[np.uint64]:
    """The places of its nulls."""
    found: npt.NDArray[np.uint64] = pc.indices_nonzero(pc.is_null(array)).to_numpy()
    return found


def _hash_numbers(array: pa.Array) -> U64:
    """Whole numbers as 64 bits: one number has one hash, whatever its width; 2**63 and above that of a negative one."""
    plain = array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array
    return int_hashes(_stored(plain).astype(np.int64, copy=False))


def _hash_floats(array: pa.Array) -> U64:
    """Floats as the whole numbers of 64 bits that they equal, and NaN as null."""
    values = _stored(array).astype(np.float64, copy=array.null_count > 0)
    if array.null_count:
        values[_nulls(array)] = 0
    with np.errstate(invalid="ignore"):  # of what is not whole, or too large, which follows
        numbers = values.astype(np.int64)
    rest = np.flatnonzero((numbers != values) | (values >= 2.0**63))
    missing = np.isnan(values[rest])
    for row in rest[~missing].tolist():
        numbers.view(np.uint64)[row] = whole(float(values[row])) & MASK
    hashes = int_hashes(numbers)
    hashes[rest[missing]] = NULL
    return hashes


def _hash_times(array: pa.Array) -> U64:
    """Times by seconds and nanoseconds: one time has one hash, whatever its unit, and a date that of its midnight."""
    kind = array.type
    numbers = _stored(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(np.int64, copy=False)
    if pa.types.is_date32(kind):
        return mixed(int_hashes(numbers * 86_400))
    per_second = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
    seconds = numbers // per_second
    nanoseconds = (numbers - seconds * per_second) * (10**9 // per_second)
    return mixed(int_hashes(seconds) + nanoseconds.view(np.uint64))


def _hash_bytes(array: pa.Array) -> U64:
    """Strings and bytes by their bytes."""
    kind = without_views(array.type)
    array = array if array.type == kind else array.cast(kind)
    _, offsets, data = array.buffers()
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    dtype = np.dtype(np.int64 if large else np.int32)
    ends = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return value_hashes(_bytes(data), ends)


def _hash_fixed(array: pa.Array) -> U64:
    """Bytes of one length, as other bytes."""
    ends = np.arange(array.offset, array.offset + len(array) + 1) * array.type.byte_width
    return value_hashes(_bytes(array.buffers()[1]), ends)


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
