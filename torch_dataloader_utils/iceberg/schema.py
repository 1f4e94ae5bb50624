"""A table's columns as Arrow fields, with their field ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.iceberg.data_files.columns import FILE_ID, POSITION_ID, ROW_ID, SEQUENCE_ID, SHARE_ID
from torch_dataloader_utils.iceberg.data_files.files import IcebergTable
from torch_dataloader_utils.iceberg.metadata import OpenTable
from torch_dataloader_utils.options.sources import FILE, POSITION, SHARES
from torch_dataloader_utils.reading.row_names import FILE_TYPE
from torch_dataloader_utils.schemas.columns import named_columns
from torch_dataloader_utils.sources.row_names import check_asked

_TYPES: dict[type[IcebergType], Callable[[Any], pa.DataType]] = {
    BooleanType: lambda kind: pa.bool_(),
    IntegerType: lambda kind: pa.int32(),
    LongType: lambda kind: pa.int64(),
    FloatType: lambda kind: pa.float32(),
    DoubleType: lambda kind: pa.float64(),
    DecimalType: lambda kind: pa.decimal128(kind.precision, kind.scale),
    DateType: lambda kind: pa.date32(),
    TimeType: lambda kind: pa.time64("us"),
    TimestampType: lambda kind: pa.timestamp("us"),
    TimestamptzType: lambda kind: pa.timestamp("us", "UTC"),
    TimestampNanoType: lambda kind: pa.timestamp("ns"),
    TimestamptzNanoType: lambda kind: pa.timestamp("ns", "UTC"),
    StringType: lambda kind: pa.string(),
    UUIDType: lambda kind: pa.binary(16),
    BinaryType: lambda kind: pa.binary(),
    FixedType: lambda kind: pa.binary(len(kind)),
    UnknownType: lambda kind: pa.null(),
    StructType: lambda kind: pa.struct([arrow_field(item) for item in kind.fields]),
    ListType: lambda kind: pa.list_(arrow_field(kind.element_field)),
    MapType: lambda kind: pa.map_(arrow_field(kind.key_field), arrow_field(kind.value_field)),
}
# Columns that describe a row's location and history, with the ids that the specification reserves.
METADATA_COLUMNS: Mapping[str, tuple[int, pa.DataType]] = {
    FILE: (FILE_ID, FILE_TYPE),
    POSITION: (POSITION_ID, pa.int64()),
    "_row_id": (ROW_ID, pa.int64()),
    "_last_updated_sequence_number": (SEQUENCE_ID, pa.int64()),
    SHARES: (SHARE_ID, pa.float32()),  # read as nulls, then set
}
_LINEAGE = ("_row_id", "_last_updated_sequence_number")


def arrow_field(field: NestedField) -> pa.Field:
    """The Arrow field, with its id in its metadata; the same for nested fields.

    Raises:
        KeyError: a type has no Arrow equivalent.
    """
    kind = _TYPES[type(field.field_type)](field.field_type)
    return pa.field(field.name, kind, nullable=not field.required, metadata={"PARQUET:field_id": str(field.field_id)})


def arrow_type(kind: IcebergType) -> pa.DataType | None:
    """The Arrow type of an Iceberg type; None if it has no equivalent."""
    return _TYPES[type(kind)](kind) if type(kind) in _TYPES else None


def table_schema(
    schema: Schema, foreign: Mapping[int, str], columns: Sequence[str] | None, metadata_columns: Sequence[str]
) -> pa.Schema:
    """The columns that can be read, followed by the requested metadata columns.

    Args:
        schema: the table's schema.
        foreign: field id -> type, for fields whose types pyiceberg does not know.
        columns: names and patterns of the columns to read; None for all.
        metadata_columns: names from `METADATA_COLUMNS`.

    Raises:
        UnsupportedTypeError: a requested column has an unsupported type.
        ColumnNotFoundError: `columns` names a metadata column that `metadata_columns` does not, or a pattern matches
            no column.
    """
    check_asked([item.name for item in schema.fields], columns, metadata_columns, METADATA_COLUMNS)
    unsupported = unreadable_columns(schema, foreign)
    metadata = [_metadata_field(name, schema) for name in metadata_columns]
    # Patterns match columns with unsupported types too.
    fields = [
        pa.field(item.name, pa.null()) if item.name in unsupported else arrow_field(item) for item in schema.fields
    ]
    for name in unsupported if columns is None else named_columns(pa.schema([*fields, *metadata]), columns):
        top = name if name in unsupported else name.partition(".")[0]
        if top in unsupported:
            readable = [item.name for item in schema.fields if item.name not in unsupported]
            raise UnsupportedTypeError(
                f"column {top!r} of the table has the type {unsupported[top]}, which cannot be read here: name the "
                f"columns to read, such as columns={readable[:5]}."
            )
    return pa.schema([*(item for item in fields if item.name not in unsupported), *metadata])


def unreadable_columns(schema: Schema, foreign: Mapping[int, str]) -> dict[str, str]:
    """Column -> type, for the table's columns with unsupported types; `foreign` as in `table_schema`."""
    return {item.name: kind for item in schema.fields if (kind := _unsupported(item, foreign)) is not None}


def check_metadata_columns(names: Sequence[str], format_version: int) -> None:
    """Check that these are metadata columns of tables of this format version.

    Raises:
        OptionError: a name is not.
    """
    for name in names:
        if name not in METADATA_COLUMNS:
            raise OptionError(f"metadata_columns: {name!r}: expected names of {', '.join(METADATA_COLUMNS)}.")
        if name in _LINEAGE and format_version < 3:
            raise OptionError(
                f"metadata_columns: {name!r} exists only in tables of format version 3 or later, and this table has "
                f"version {format_version}."
            )


def iceberg_table(
    columns: pa.Schema, schema: Schema, opened: OpenTable, key_ids: Iterable[int], name_mapping: Any
) -> IcebergTable:
    """The information about the table that readers need.

    Args:
        columns: the columns that can be read.
        schema: their Iceberg schema.
        opened: the table, with all its schemas: equality deletes may compare dropped columns.
        key_ids: field ids of the columns that equality deletes compare.
        name_mapping: the parsed name mapping, or None.

    Raises:
        UnsupportedTypeError: a column that equality deletes compare has an unsupported type.
    """
    newest_first = sorted(opened.metadata.schemas, key=lambda one: one.schema_id, reverse=True)
    keys = {number: _field_of(number, [schema, *newest_first]) for number in sorted(set(key_ids))}
    fields = [*schema.fields, *keys.values()]
    defaults = {
        item.field_id: plain_value(item.initial_default) for item in _walk(fields) if item.initial_default is not None
    }
    for item in _walk(fields):
        if item.field_id in opened.defaults:
            defaults[item.field_id] = pa.scalar(opened.defaults[item.field_id]).cast(arrow_type(item.field_type))
    return IcebergTable(columns, defaults, {number: _key_field(item) for number, item in keys.items()}, name_mapping)


def _unsupported(field: NestedField, foreign: Mapping[int, str]) -> str | None:
    """The first unsupported type in a column, or None."""
    for item in _walk([field]):
        if item.field_id in foreign:
            return foreign[item.field_id]
        if type(item.field_type) not in _TYPES:
            return str(item.field_type)
    return None


def _walk(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    """The fields and all fields nested in them."""
    for field in fields:
        yield field
        yield from _walk(_children(field.field_type))


def _children(kind: IcebergType) -> Sequence[NestedField]:
    if isinstance(kind, StructType):
        return kind.fields  # type: ignore[no-any-return]
    if isinstance(kind, ListType):
        return [kind.element_field]
    return [kind.key_field, kind.value_field] if isinstance(kind, MapType) else []


def _metadata_field(name: str, schema: Schema) -> pa.Field:
    if any(item.name == name for item in schema.fields):
        raise OptionError(f"metadata_columns: {name!r} is a column of the table itself: leave it out.")
    number, kind = METADATA_COLUMNS[name]
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def _field_of(number: int, schemas: Iterable[Schema]) -> NestedField:
    for schema in schemas:
        for item in _walk(schema.fields):
            if item.field_id == number:
                return item
    raise ColumnNotFoundError(f"equality deletes compare field {number}, which is in no schema of the table.")


def _key_field(field: NestedField) -> pa.Field:
    if type(field.field_type) not in _TYPES:
        raise UnsupportedTypeError(f"equality deletes compare {field.name!r} of the type {field.field_type}.")
    return arrow_field(field)


def plain_value(value: Any) -> Any:
    """The value in a form that Arrow accepts: UUIDs become bytes."""
    return value.bytes if isinstance(value, uuid.UUID) else value
