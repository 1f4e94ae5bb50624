"""Columns as transforms see them: their kinds, the elements of lists, and numbers as float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.preprocess.kinds import ColumnKind, ColumnType
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.schemas.columns import column_at, find_path, type_at
from torch_dataloader_utils.schemas.merge import is_text, plain_type, without_views


def kind_of(type_: pa.DataType) -> ColumnKind:
    """The kind of columns of an Arrow type."""
    type_ = plain_type(type_, extensions=True)
    if pt.is_fixed_size_list(type_):
        return ColumnKind(_kind_of_values(plain_type(type_.value_type, extensions=True)), "fixed")
    if pt.is_list(type_) or pt.is_large_list(type_):
        return ColumnKind(_kind_of_values(plain_type(type_.value_type, extensions=True)), "list")
    return ColumnKind(_kind_of_values(type_))


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


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array | pa.ChunkedArray | None:
    """The column of this name, or the field of a struct, as in "parent.child"; None if there is none."""
    path = find_path(rows.schema, name)
    return None if path is None else column_at(rows, path)


def with_fields(rows: Any, names: Sequence[str]) -> Any:
    """A table or record batch with the fields of structs that are named, as in "parent.child", as columns, too."""
    for name in names:
        found = None if name in rows.schema.names else column_of(rows, name)
        rows = rows if found is None else rows.append_column(name, found)
    return rows


def types_by_name(schema: pa.Schema, named: Sequence[str]) -> dict[str, pa.DataType]:
    """The types of the columns of a schema, and of the fields of structs that are named."""
    found = {item.name: item.type for item in schema}
    for name in named:
        path = None if name in found else find_path(schema, name)
        if path is not None:
            found[name] = type_at(schema, path)
    return found


def known_type(type_: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column; of one in which all is null, that of a column of `other` values."""
    return in_lists(type_, other) if pt.is_null(value_type(type_)) else type_


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors of types that are raised within say what they are about."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{what}: {error}") from error


def category_type(type_: pa.DataType) -> pa.DataType:
    """The type of values as ids are made of them: decimals without a fraction are integers.

    Raises:
        UnsupportedTypeError: decimals may have a fraction.
    """
    if not pt.is_decimal(type_):
        return type_
    if type_.scale > 0:
        raise UnsupportedTypeError(
            f"values of type {type_} have no ids, as they may not be whole: cast them to int64 or string, or use "
            "Bucketize."
        )
    return pa.int64()


def categories_of(values: pa.Array) -> pa.Array:
    """Values as ids are made of them; dictionaries stay.

    Raises:
        UnsupportedTypeError: decimals may have a fraction, or are no int64.
    """
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    plain = plain_type(values.type, extensions=True)
    if not pt.is_decimal(plain):
        return values
    values = values.dictionary_decode() if pt.is_dictionary(values.type) else values
    try:
        return values.cast(pa.decimal128(38, plain.scale)).cast(category_type(plain))
    except pa.ArrowInvalid as error:
        raise UnsupportedTypeError(f"values of type {plain} have ids if they fit into int64: {error}") from error


def plain_values(values: pa.Array) -> pa.Array:
    """The values without encodings and views, with null for NaN."""
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    values = values.dictionary_decode() if pt.is_dictionary(values.type) else values
    plain = without_views(values.type)
    values = values if values.type == plain else values.cast(plain)
    if not pt.is_floating(values.type):
        return values
    nan = pc.is_nan(values)
    return pc.if_else(nan, pa.scalar(None, values.type), values) if pc.any(nan).as_py() else values


def scalar_of(value: Any, type_: pa.DataType) -> pa.Scalar:
    """A value as one of this type.

    Raises:
        OptionError: it has none that is equal.
    """
    value = Decimal(repr(value)) if pt.is_decimal(type_) and isinstance(value, float) else value
    try:
        made = pa.scalar(value, type_)
        if pt.is_floating(type_) or made.as_py() == value:
            return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    raise OptionError(f"{shown(value)} is not a value of the column's type, {type_}.")


def zero_of(type_: pa.DataType) -> Any:
    """What stands for missing values of a column that has no value."""
    kind = kind_of(type_).values
    if kind == "text":
        return ""
    if kind == "bytes":
        return bytes(type_.byte_width) if pt.is_fixed_size_binary(type_) else b""
    # 0 as a date or time is the beginning of 1970.
    return pa.nulls(1, type_).fill_null(False if pt.is_boolean(type_) else 0)[0].as_py()


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
    type_ = plain_type(type_, extensions=True)
    if pt.is_fixed_size_list(type_):
        return pa.list_(made, type_.list_size)
    if pt.is_large_list(type_):
        return pa.large_list(made)
    return pa.list_(made) if pt.is_list(type_) else made


def value_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column's values: in lists, of their elements; without encodings."""
    type_ = plain_type(type_, extensions=True)
    nested = pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)
    return plain_type(type_.value_type, extensions=True) if nested else type_


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


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column
