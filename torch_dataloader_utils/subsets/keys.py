"""Rows chosen by the values of key columns, evaluated where the filter is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.hashing import U64, Choice, mixed, name_hash, value_hashes
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.schemas.columns import available_columns, find_path, project, type_at
from torch_dataloader_utils.schemas.merge import is_text

_LOG = logging.getLogger("torch_dataloader_utils")
_NULL = name_hash("null")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class ChosenKeys:
    """The rows whose keys a choice holds; picklable. Warns of the first null."""

    def __init__(self, choice: Choice, columns: Sequence[str]) -> None:
        self.choice = choice
        self.columns = tuple(columns)
        self._warned = False

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows are chosen: Arrow bools [rows]."""
        keys = project(table, self.columns)
        if not self._warned:
            self._warn_of_nulls(keys)
        return as_arrow(self.choice.holds(key_hashes(keys.columns)))

    def _warn_of_nulls(self, keys: pa.Table) -> None:
        for name in self.columns:
            if keys.column(name).null_count:
                self._warned = True
                _LOG.warning("by: column %r has nulls; all of them are one key, so they share a subset", name)


def key_hashes(columns: Sequence[pa.ChunkedArray]) -> U64:
    """The hash of each row's key, shape [rows]: that of its values in these columns, in order."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        parts = [_array_hashes(chunk) for chunk in column.chunks]
        hashes = mixed(hashes + np.uint64(1)) ^ np.concatenate([*parts, np.zeros(0, np.uint64)])
    return hashes


def check_keys(columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that rows can be chosen by these columns.

    Raises:
        ColumnNotFoundError: there is no such column.
        OptionError: a column's type has no exact keys, such as floats.
    """
    for name in columns:
        path = find_path(schema, name)
        if path is None:
            raise ColumnNotFoundError(f"by: no column {name!r}: {available_columns(schema, name)}")
        kind = type_at(schema, path)
        if _hasher(kind) is None:
            why = "floats are not exact" if pa.types.is_floating(kind) else "values of this type are not hashed"
            raise OptionError(
                f"by: column {name!r} has type {kind}: {why}. Expected whole numbers, strings, bytes, dates, "
                "timestamps or bools."
            )


def _array_hashes(array: pa.Array) -> U64:
    if pa.types.is_dictionary(array.type):
        # A large dictionary may come with few rows.
        if len(array.dictionary) > len(array):
            return _array_hashes(array.dictionary_decode())
        known: U64 = np.append(_array_hashes(array.dictionary), np.uint64(_NULL))
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
