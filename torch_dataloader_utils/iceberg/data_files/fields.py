"""Matches a file's fields to the table's: by field id or, if a file has none, by names or positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import SchemaMismatchError
from torch_dataloader_utils.iceberg.data_files.files import IcebergTable

# Keys under which pyarrow stores the field ids of Parquet and ORC; our Avro reader uses Parquet's.
_ID_KEYS = (b"PARQUET:field_id", b"iceberg.id")


@dataclass(frozen=True, slots=True)
class FileField:
    """A field of a data file.

    Attributes:
        id: its field id in the table, or None if it has none.
        name: in the file.
        type: in the file.
        children: the fields of a struct; a list's element; a map's key and value.
    """

    id: int | None
    name: str
    type: pa.DataType
    children: tuple[FileField, ...] = ()


def field_id(field: pa.Field) -> int | None:
    """The field's id from its metadata, or None."""
    metadata = field.metadata or {}
    return next((int(metadata[key]) for key in _ID_KEYS if key in metadata), None)


def file_fields(schema: pa.Schema, name_mapping: Any, path: str) -> tuple[FileField, ...]:
    """The fields of a delete file, with their ids.

    Args:
        schema: the file's schema.
        name_mapping: the table's parsed name mapping, or None; used for a file in which no field has an id.
        path: the file's path, for messages.

    Raises:
        SchemaMismatchError: the file has no ids, and the table has no name mapping.
    """
    fields = _fields(schema)
    if _have_ids(fields):
        return fields
    if name_mapping is None:
        raise SchemaMismatchError(
            f"{path}: its fields have no Iceberg ids, and the table has no name mapping: set the table property "
            "schema.name-mapping.default, which assigns names in such files to fields."
        )
    return _mapped(fields, name_mapping)


def data_fields(schema: pa.Schema, table: IcebergTable, form: str) -> tuple[FileField, ...]:
    """The fields of a data file, with their ids.

    If neither the file nor a name mapping provides ids, this follows Iceberg's Java library: the columns of Parquet
    files are numbered like those of a new table, and the columns of other files are matched by name.

    Args:
        schema: the file's schema.
        table: the table.
        form: the file's format: "parquet", "orc" or "avro".

    Raises:
        SchemaMismatchError: the file has no ids, which the table requires.
    """
    fields = _fields(schema)
    if table.ids != "ignored" and _have_ids(fields):
        return fields
    if table.ids == "required":
        raise SchemaMismatchError(
            f"a data file with the columns {list(schema.names)} has no field ids, by which the table's column mapping "
            "finds columns: rewrite the file."
        )
    mapping = table.name_mapping
    if mapping is None and form == "parquet":
        known = {field_id(field): field for field in table.schema}
        mapping = [_by_place(field, known.get(place), place) for place, field in enumerate(fields, 1)]
    elif mapping is None:
        mapping = [_by_name(field) for field in table.schema]
    return _mapped(fields, mapping)


def places_by_id(fields: Sequence[FileField]) -> dict[int | None, int]:
    """Field id -> the position of the first field that has it, without fields that have none."""
    places: dict[int | None, int] = {}
    for place, field in enumerate(fields):
        if field.id is not None:
            places.setdefault(field.id, place)
    return places


def find_path(fields: Iterable[FileField], wanted: int) -> tuple[FileField, ...] | None:
    """The fields from the top level down through structs to the one with this id, or None if there is none."""
    for field in fields:
        if field.id == wanted:
            return (field,)
        below = find_path(field.children, wanted) if pt.is_struct(field.type) else None
        if below is not None:
            return (field, *below)
    return None


def children_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct; the element of a list; key and value of a map; none of other types."""
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pt.is_struct(kind):
        return list(kind)
    return [kind.value_field] if is_list(kind) else []


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, in any layout that decoders return."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _from_metadata(field: pa.Field, name: str) -> FileField:
    # Writers use many names for Iceberg's element, key and value.
    names = [child.name for child in children_of(field.type)]
    if is_list(field.type):
        names = ["element"]
    elif pt.is_map(field.type):
        names = ["key", "value"]
    below = zip(children_of(field.type), names, strict=True)
    return FileField(field_id(field), name, field.type, tuple(_from_metadata(*child) for child in below))


def _fields(schema: pa.Schema) -> tuple[FileField, ...]:
    return tuple(_from_metadata(field, field.name) for field in schema)


def _have_ids(fields: Sequence[FileField]) -> bool:
    return not fields or any(field.id is not None for field in _walk(fields))


def _by_place(source: FileField, field: pa.Field | None, number: int | None) -> dict[str, Any]:
    """A name mapping entry that maps a file's field to this field of the table, if any; the same for nested fields."""
    below = zip(source.children, [] if field is None else children_of(field.type), strict=False)
    entries = [_by_place(child, inner, field_id(inner)) for child, inner in below]
    return {"names": [source.name], "field-id": number, "fields": entries}


def _by_name(field: pa.Field) -> dict[str, Any]:
    """A name mapping entry for file fields with the name of this table field."""
    entries = [_by_name(child) for child in children_of(field.type)]
    return {"names": [field.name], "field-id": field_id(field), "fields": entries}


def _walk(fields: Iterable[FileField]) -> Iterator[FileField]:
    for field in fields:
        yield field
        yield from _walk(field.children)


def _mapped(fields: Sequence[FileField], mapping: Sequence[Mapping[str, Any]]) -> tuple[FileField, ...]:
    """The fields, with the ids that the mapping assigns to their names."""
    by_name = {name: entry for entry in mapping for name in entry["names"]}
    mapped = []
    for field in fields:
        entry = by_name.get(field.name, {})
        below = _mapped(field.children, entry.get("fields") or ())
        mapped.append(FileField(entry.get("field-id"), field.name, field.type, below))
    return tuple(mapped)
