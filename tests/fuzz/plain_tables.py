"""The rows of an Iceberg table by the specification, in plain Python: where pyiceberg reads none, or wrong ones."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyroaring import BitMap64

_ID = b"PARQUET:field_id"
_PATH, _POSITION = 2147483546, 2147483545  # ids of the columns of positional deletes


def current_fields(metadata: Mapping[str, Any]) -> list[Any]:
    """The fields of the current schema of a table's metadata."""
    schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    fields: list[Any] = schemas[metadata["current-schema-id"]]["fields"]
    return fields


# ---------------------------------------------------------------------------------- one table under another schema


def rows_under(fields: list[Any], whole: pa.Table) -> list[Any]:
    """The rows of a table as another schema shows them: the values of each field's id, null where there is none.

    Args:
        fields: those of the other schema.
        whole: the rows, with field ids.
    """
    old = _by_id(whole.schema)
    return [_struct(row, old, fields) for row in whole.to_pylist()]


def _by_id(fields: Any) -> dict[int, pa.Field]:
    return {int(one.metadata[_ID]): one for one in fields}


def _struct(row: Mapping[str, Any], old: Mapping[int, pa.Field], fields: list[Any]) -> dict[str, Any]:
    return {one["name"]: _field(row, old.get(int(one["id"])), one) for one in fields}


def _field(row: Mapping[str, Any], source: pa.Field | None, one: Any) -> Any:
    value = None if source is None else row[source.name]
    return _absent(one) if source is None or value is None else _value(value, source.type, one["type"])


def _value(value: Any, old: pa.DataType, kind: Any) -> Any:
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "struct":
        return _struct(value, _by_id(old), kind.get("fields", []))
    if kind["type"] == "list":
        _same(old.value_field, kind["element-id"])
        return [_value(item, old.value_type, kind["element"]) for item in value]
    _same(old.key_field, kind["key-id"])
    _same(old.item_field, kind["value-id"])
    return [(_value(key, old.key_type, kind["key"]), _value(item, old.item_type, kind["value"])) for key, item in value]


def _same(old: pa.Field, number: Any) -> None:
    if int(old.metadata[_ID]) != int(number):
        raise LookupError(f"an element has another id: {number}")


def _absent(one: Any) -> Any:
    """The value of a field that no file has: null; a struct that is required has only such values."""
    if not one["required"]:
        return None
    if one["type"]["type"] != "struct":
        raise LookupError(f"{one['name']} is required")
    return {child["name"]: _absent(child) for child in one["type"]["fields"]}


# ------------------------------------------------------------------------------------- the deletes of a snapshot


@dataclass
class _Files:
    """The live files of a snapshot, as (sequence number, partition, record)."""

    data: list[tuple[int, Any, Any]] = field(default_factory=list)
    deletes: list[tuple[int, Any, Any]] = field(default_factory=list)


def rows_of(metadata: Path) -> list[Any]:
    """The rows of the current snapshot of a table of plain columns, with its deletes applied."""
    content = json.loads(metadata.read_text())
    fields, files = current_fields(content), _Files()
    (snapshot,) = [one for one in content["snapshots"] if one["snapshot-id"] == content["current-snapshot-id"]]
    for manifest in _records(snapshot["manifest-list"]):
        for entry in _records(manifest["manifest_path"]):
            if entry["status"] != 2:
                _add(files, manifest, entry)
    return [_struct_of(row, fields) for one in files.data for row in _left(files, *one)]


def _add(files: _Files, manifest: Any, entry: Any) -> None:
    number, file = entry.get("sequence_number"), entry["data_file"]
    number = manifest.get("sequence_number", 0) if number is None else number
    content = file.get("content") or 0
    if bool(content) != bool(manifest.get("content")):
        raise ValueError("the manifest holds other files than its list says")
    partition = (manifest["partition_spec_id"], repr(file["partition"])) if file["partition"] else None
    (files.deletes if content else files.data).append((number, partition, file))


def _left(files: _Files, number: int, partition: Any, file: Any) -> Iterator[Mapping[int, Any]]:
    """The rows of a data file, by field id, that no delete file deletes."""
    gone, keys = set[int](), []
    for later, where, delete in files.deletes:
        if delete["content"] == 2 and later > number and where in (None, partition):
            ids = delete["equality_ids"]
            keys.append((ids, {repr([row.get(key) for key in ids]) for row in _by_ids(delete["file_path"])}))
        elif delete["content"] == 1 and later >= number and (where == partition or delete["file_format"] == "PUFFIN"):
            gone |= _positions(delete, file["file_path"])
    for position, row in enumerate(_by_ids(file["file_path"])):
        if position not in gone and not any(repr([row.get(key) for key in ids]) in some for ids, some in keys):
            yield row


def _positions(delete: Any, path: str) -> set[int]:
    named = delete.get("referenced_data_file")
    if delete["file_format"] != "PUFFIN":
        rows = _by_ids(delete["file_path"])
        return {row[_POSITION] for row in rows if row[_PATH] == path} if named in (None, path) else set()
    if named != path:  # the specification: a vector deletes rows of its `referenced_data_file` alone
        return set()
    start = delete["content_offset"]
    blob = _local(delete["file_path"]).read_bytes()[start : start + delete["content_size_in_bytes"]]
    return set(BitMap64.deserialize(blob[8:-4]))


def _struct_of(row: Mapping[int, Any], fields: list[Any]) -> dict[str, Any]:
    return {one["name"]: row.get(one["id"], one.get("initial-default")) for one in fields}


def _by_ids(path: str) -> list[dict[int, Any]]:
    if path.endswith("avro"):
        reader = fastavro.reader(io.BytesIO(_local(path).read_bytes()))
        numbers = [one["field-id"] for one in reader.writer_schema["fields"]]
        return [dict(zip(numbers, row.values(), strict=True)) for row in reader]
    table = orc.ORCFile(_local(path)).read() if path.endswith("orc") else pq.read_table(_local(path))
    numbers = [int(one.metadata.get(_ID) or one.metadata[b"iceberg.id"]) for one in table.schema]
    return [dict(zip(numbers, row.values(), strict=True)) for row in table.to_pylist()]


def _records(path: str) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(_local(path).read_bytes())))


def _local(path: str) -> Path:
    return Path(path.removeprefix("file://").removeprefix("file:"))
