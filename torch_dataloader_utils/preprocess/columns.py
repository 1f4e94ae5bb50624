"""Columns as transforms see them: their kinds, the elements of lists, and numbers as float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.preprocess.kinds import ColumnKind, ColumnType
from torch_dataloader_utils.preprocess.transforms import F64
from torch_dataloader_utils.schemas.merge import is_text

_EXACT_DIGITS = 15  # an integer of so many digits, and the power of ten that divides it, are exact as float64


def kind_of(type_: pa.DataType) -> ColumnKind:
    """The kind of columns of an Arrow type."""
    type_ = plain_type(type_)
    if pt.is_fixed_size_list(type_):
        return ColumnKind(_kind_of_values(plain_type(type_.value_type)), "fixed")
    if pt.is_list(type_) or pt.is_large_list(type_):
        return ColumnKind(_kind_of_values(plain_type(type_.value_type)), "list")
    return ColumnKind(_kind_of_values(type_))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type without dictionary and extension."""
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    return plain_type(type_.value_type) if pt.is_dictionary(type_) else type_


def _kind_of_values(type_: pa.DataType) -> str:
    if pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_) or pt.is_decimal(type_):
        return "number"
    if is_text(type_):
        return "text"
    if pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_fixed_size_binary(type_) or pt.is_binary_view(type_):
        return "bytes"
    if pt.is_date(type_):
        return "date"
    if pt.is_time(type_):
        return "time"
    if pt.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "zoned"
    return "other"


def elements(array: pa.Array) -> tuple[pa.Array, Callable[[pa.Array], pa.Array]]:
    """The values of a column, and what puts others, as many, into its lists.

    Null lists become empty ones; null lists of one size, lists of missing values.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type_ = array.type
    if pt.is_fixed_size_list(type_):
        size = type_.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:
            there = np.repeat(np.asarray(array.is_valid()), size)
            values = pc.if_else(pa.array(there), values, pa.scalar(None, values.type))
        return values, lambda made: pa.FixedSizeListArray.from_arrays(made, size)
    if pt.is_list(type_) or pt.is_large_list(type_):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        large = pa.LargeListArray if pt.is_large_list(type_) else pa.ListArray
        width = np.int64 if pt.is_large_list(type_) else np.int32
        offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths))]).astype(width)
        return array.flatten(), lambda made: large.from_arrays(pa.array(offsets), made)
    return array, lambda made: made


def in_lists(type_: pa.DataType, made: pa.DataType) -> pa.DataType:
    """The type of a column whose values become ones of type `made`."""
    type_ = plain_type(type_)
    if pt.is_fixed_size_list(type_):
        return pa.list_(made, type_.list_size)
    if pt.is_large_list(type_):
        return pa.large_list(made)
    return pa.list_(made) if pt.is_list(type_) else made


def value_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values: in lists, of their elements; without encodings."""
    type_ = plain_type(type_)
    nested = pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)
    return plain_type(type_.value_type) if nested else type_


@dataclass(frozen=True, slots=True)
class NumberView:
    """Numbers of any type, of which parts are read as float64.

    Attributes:
        values: shape [n], of any dtype.
        valid: which are not null, bools [n]; None for all.
    """

    values: npt.NDArray[Any]
    valid: npt.NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.values)

    def into(self, out: F64, first: int) -> None:
        """Write the numbers from `first` on, as many as `out` has, with NaN for null and 0.0 for -0.0."""
        last = first + len(out)
        out[:] = self.values[first:last]
        if self.valid is not None:
            out[~self.valid[first:last]] = np.nan
        out += 0.0

    def all(self) -> F64:
        """All of them, in memory of their own."""
        out = np.empty(len(self))
        self.into(out, 0)
        return out


def numbers_of(array: pa.Array) -> NumberView:
    """The numbers of an array; decimals are rounded once.

    Raises:
        UnsupportedTypeError: it holds none.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type_ = array.type
    if pt.is_dictionary(type_):
        array = array.dictionary_decode()
        type_ = array.type
    if pt.is_null(type_):
        return NumberView(np.full(len(array), np.nan), None)
    valid = np.asarray(array.is_valid()) if array.null_count else None
    if pt.is_boolean(type_):
        return NumberView(np.asarray(pc.fill_null(array, False)).view(np.uint8), valid)
    if pt.is_decimal(type_):
        return NumberView(_of_decimals(array), valid)
    if not (pt.is_integer(type_) or pt.is_floating(type_)):
        raise UnsupportedTypeError(f"values of type {type_} are no numbers.")
    width = type_.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return NumberView(np.zeros(len(array), type_.to_pandas_dtype()), valid)
    held = np.frombuffer(data, type_.to_pandas_dtype(), len(array), array.offset * width)
    return NumberView(held, valid)


def _of_decimals(array: pa.Array) -> F64:
    """The nearest float64 of each decimal; Arrow's own cast may be one off."""
    type_ = array.type
    if type_.precision <= _EXACT_DIGITS and 0 <= type_.scale <= _EXACT_DIGITS:
        unscaled = array.cast(pa.decimal128(type_.precision, type_.scale))
        data = np.frombuffer(unscaled.buffers()[1], np.int64)[2 * unscaled.offset :: 2][: len(unscaled)]
        return data / np.float64(10**type_.scale)
    return np.array([0.0 if value is None else float(value) for value in array.to_pylist()], np.float64)


def words_of(type_: pa.DataType) -> list[str]:
    """The words by which a spec names a column's type, the most exact one first."""
    type_ = value_type(type_)
    if pt.is_boolean(type_):
        return ["bool"]
    if pt.is_integer(type_):
        return [str(type_)]
    if pt.is_floating(type_):
        return [f"float{type_.bit_width}"]
    if pt.is_decimal(type_):
        return ["decimal"]
    if pt.is_duration(type_):
        return ["duration"]
    kind = _kind_of_values(type_)
    return {"text": ["string"], "bytes": ["binary"], "zoned": ["timestamp"], "other": []}.get(kind, [kind])


def column_type(type_: pa.DataType) -> ColumnType:
    """The type of a fitted column: one stands for all of the same kind, whatever their width, unit and encoding."""
    values = value_type(type_)
    kind = _kind_of_values(values)
    zone = values.tz if kind == "zoned" else None
    if kind == "number":
        made = values if pt.is_boolean(values) else pa.int64() if pt.is_integer(values) else pa.float64()
    else:
        made = pa.timestamp("us", zone) if zone is not None else _CANONICAL.get(kind, pa.null())
    return ColumnType(str(in_lists(type_, made)), kind_of(type_), zone)


def widened(values: pa.Array) -> pa.Array:
    """Distinct values without null, in the type that stands for all of their kind.

    Raises:
        pyarrow.ArrowInvalid: a float is not whole.
    """
    type_ = values.type
    if is_text(type_):
        return values.cast(pa.large_string())
    if pt.is_uint64(type_) and len(values) and pc.max(values).as_py() > _MOST_INT:
        return values
    if pt.is_integer(type_) or pt.is_floating(type_):
        return values.cast(pa.int64())
    if pt.is_timestamp(type_):
        try:
            return values.cast(pa.timestamp("us", type_.tz))
        except pa.ArrowInvalid:  # it has nanoseconds, or lies millennia away
            return values
    kind = _kind_of_values(type_)
    return values.cast({"bytes": pa.large_binary(), "date": pa.date32()}.get(kind, type_))


def type_named(text: str) -> pa.DataType:
    """The type of this name, of those that are saved.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(text, str) or len(text) > _LONGEST_NAME:
        raise ValueError(f"the type {text!r}")
    for prefix, made in _NESTED.items():
        if text.startswith(prefix):
            inner, _, rest = text[len(prefix) :].rpartition(">")
            return made(type_named(inner), rest)
    if text.startswith("timestamp[") and ", tz=" in text:
        unit, zone = text[len("timestamp[") : -1].split(", tz=")
        return pa.timestamp(unit, zone)
    return pa.null() if text == "null" else pa.type_for_alias(text)


_MOST_INT = 2**63 - 1
_LONGEST_NAME = 200
_NESTED: Mapping[str, Callable[[pa.DataType, str], pa.DataType]] = {
    "list<item: ": lambda item, _: pa.list_(item),
    "large_list<item: ": lambda item, _: pa.large_list(item),
    "fixed_size_list<item: ": lambda item, size: pa.list_(item, int(size.strip("[]"))),
}


_CANONICAL = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
}
