"""Frozen hashes of the values of Arrow arrays: one value has one hash, whatever its width, unit or encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import U64, mixed, name_hash, value_hashes
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.merge import is_text

_NULL = name_hash("null")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def key_hashes(columns: Sequence[pa.ChunkedArray]) -> U64:
    """The hash of each row's key, shape [rows]: that of its values in these columns, in order."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        parts = [array_hashes(chunk) for chunk in column.chunks]
        hashes = mixed(hashes + np.uint64(1)) ^ np.concatenate([*parts, np.zeros(0, np.uint64)])
    return hashes


def is_hashed(kind: pa.DataType) -> bool:
    """Whether values of this type have exact hashes: whole numbers, text, bytes, dates, times and bools."""
    return _hasher(kind) is not None


def array_hashes(array: pa.Array) -> U64:
    """The hash of each value, shape [n]; null has its own."""
    if pa.types.is_dictionary(array.type):
        # A large dictionary may come with few rows.
        if len(array.dictionary) > len(array):
            return array_hashes(array.dictionary_decode())
        known: U64 = np.append(array_hashes(array.dictionary), np.uint64(_NULL))
        places = pc.fill_null(array.indices.cast(pa.int64()), len(array.dictionary))
        return known[np.asarray(places, np.int64)]
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    hasher = _hasher(array.type)
    assert hasher is not None
    hashes = hasher(array)
    if array.null_count:
        hashes[pc.indices_nonzero(pc.is_null(array)).to_numpy()] = _NULL
    return hashes


def _hasher(kind: pa.DataType) -> Callable[[pa.Array], U64] | None:
    """The function that hashes an array of this type; None if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return _hasher(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _hasher(kind.storage_type)
    if types.is_integer(kind) or types.is_boolean(kind):
        return _hash_numbers
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _hash_times
    if is_text(kind):
        return _hash_bytes
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _hash_bytes
    return None


def _hash_numbers(array: pa.Array) -> U64:
    """Whole numbers as 64 bits: one number has one hash, whatever its width."""
    wide = pa.uint64() if pa.types.is_unsigned_integer(array.type) else pa.int64()
    return _hash_int64(pc.fill_null(array.cast(wide), 0).to_numpy().view(np.int64))


def _hash_int64(numbers: npt.NDArray[np.int64]) -> U64:
    # A bijection alone would leave 0 as it is.
    return mixed(numbers.view(np.uint64) + np.uint64(_NULL))


def _hash_times(array: pa.Array) -> U64:
    """Times by seconds and nanoseconds: one time has one hash, whatever its unit, and a date that of its midnight."""
    kind = array.type
    stored = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    numbers = pc.fill_null(stored, 0).to_numpy()
    if pa.types.is_date32(kind):
        return mixed(_hash_int64(numbers * 86_400))
    per_second = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
    seconds = numbers // per_second
    nanoseconds = (numbers - seconds * per_second) * (10**9 // per_second)
    return mixed(_hash_int64(seconds) + nanoseconds.view(np.uint64))


def _hash_bytes(array: pa.Array) -> U64:
    """Strings and bytes by their bytes."""
    wide = array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array
    wide = wide.cast(pa.large_string() if pa.types.is_string_view(wide.type) else _large(wide.type))
    _, offsets, data = wide.buffers()
    if not len(wide):
        return np.zeros(0, np.uint64)
    ends = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return value_hashes(held, ends - ends[0])


def _large(kind: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else pa.large_string()
