"""A table's columns as Arrow fields, and how they are found in its data files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable

from torch_dataloader_utils.errors import FileReadError, UnsupportedTypeError
from torch_dataloader_utils.iceberg.data_files.columns import NAME_IDS
from torch_dataloader_utils.iceberg.data_files.files import IcebergTable
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.schemas.columns import named_columns
from torch_dataloader_utils.sources.row_names import named_schema

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "void": pa.null(),
}
_MODE = "delta.columnMapping.mode"
_ID, _PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
_FIRST_PARTITION_ID = 2**30  # of columns that are never looked up in a file; above any other

Node = Mapping[str, Any]  # a part of a schema, as the log spells it


@dataclass(frozen=True)
class Columns:
    """The columns that can be read.

    Attributes:
        table: what readers of the data files need.
        partitions: partition column -> its field id.
        physical: column -> its name in the data files and in their statistics.
    """

    table: IcebergTable
    partitions: Mapping[str, int]
    physical: Mapping[str, str]


def columns_of(table: DeltaTable, read: ReadOptions, name: str) -> Columns:
    """The table's columns.

    Columns are found in the data files as the table's column mapping says: by name, by physical name, or by field id.

    Args:
        table: the table.
        read: which columns are read, and whether rows have names.
        name: the table's name, for messages.

    Raises:
        UnsupportedTypeError: a wanted column has a type that is not supported.
        FileReadError: the table has an unknown kind of column mapping.
        OptionError: the table has a column that would be added.
    """
    mode = _mapping_mode(table, name)
    every = json.loads(table.schema().to_json())["fields"]
    added, wanted = read.metadata_columns, read.columns
    nodes = _readable(every, None if wanted is None else [name for name in wanted if name not in added])
    places = {column: _FIRST_PARTITION_ID + place for place, column in enumerate(table.metadata().partition_columns)}
    made = _Fields(mode)
    fields, mapping = [], []
    for node in nodes:
        field, entry = made.field(node)
        if field.name in places:  # the log has its values, so it is not looked up in files
            field = _with_id(field, places[field.name])
        else:
            mapping.append(entry)
        fields.append(field)
    ids: Literal["required", "ignored"] = "required" if mode == "id" else "ignored"
    shared = IcebergTable(_with_names(pa.schema(fields), read), name_mapping=mapping, ids=ids)
    return Columns(shared, places, {node["name"]: made.physical(node) for node in nodes})


def _with_names(schema: pa.Schema, read: ReadOptions) -> pa.Schema:
    """The columns, and those that are to name rows, with the ids by which readers know them."""
    fields = list(named_schema(schema, read))
    return pa.schema([*schema, *(_with_id(field, NAME_IDS[field.name]) for field in fields[len(schema) :])])


def _mapping_mode(table: DeltaTable, name: str) -> str:
    """The table's column mapping: "none", "name" or "id"; set without being required of readers, it does not apply."""
    protocol = table.protocol()
    required = protocol.min_reader_version == 2 or "columnMapping" in (protocol.reader_features or ())
    mode = table.metadata().configuration.get(_MODE, "none") if required else "none"
    if mode not in ("none", "name", "id"):
        raise FileReadError(f"{name}: {_MODE}={mode!r} is not supported: expected none, name or id.")
    return mode


def _readable(nodes: Sequence[Node], wanted: Sequence[str] | None) -> list[Node]:
    """The columns whose types are supported, after a check that no other one is wanted."""
    unsupported = {node["name"]: kind for node in nodes if (kind := _unsupported(node["type"])) is not None}
    every = pa.schema([pa.field(node["name"], pa.null()) for node in nodes])
    names = every.names if wanted is None else named_columns(every, [item.partition(".")[0] for item in wanted])
    for name in names:
        if name in unsupported:
            others = [item for item in every.names if item not in unsupported]
            raise UnsupportedTypeError(
                f"column {name!r} of the table has the type {unsupported[name]}, which cannot be read here: name the "
                f"columns to read, such as columns={others[:5]}."
            )
    return [node for node in nodes if node["name"] not in unsupported]


def _unsupported(kind: Any) -> str | None:
    """The first unsupported type in a type; None if there is none."""
    if isinstance(kind, str):
        return None if kind in _PRIMITIVES or kind.startswith("decimal(") else kind
    return next((found for inner in _inner(kind) if (found := _unsupported(inner)) is not None), None)


def _inner(kind: Node) -> Iterator[Any]:
    if kind["type"] == "struct":
        yield from (node["type"] for node in kind["fields"])
    elif kind["type"] == "array":
        yield kind["elementType"]
    elif kind["type"] == "map":
        yield from (kind["keyType"], kind["valueType"])
    else:
        yield str(kind["type"])


class _Fields:
    """Makes Arrow fields with field ids, and the entries that map names in files to these ids.

    Args:
        mode: the table's column mapping.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._numbers = count(1)

    def physical(self, node: Node) -> str:
        """The name of a field in data files."""
        plain: str = node["name"]
        return plain if self._mode == "none" else str(node["metadata"].get(_PHYSICAL, plain))

    def field(self, node: Node) -> tuple[pa.Field, dict[str, Any]]:
        """A field, and its entry."""
        number = int(node["metadata"][_ID]) if self._mode == "id" else next(self._numbers)
        kind, entries = self._type(node["type"])
        field = _with_id(pa.field(node["name"], kind, nullable=bool(node["nullable"])), number)
        return field, {"names": [self.physical(node)], "field-id": number, "fields": entries}

    def _type(self, kind: Any) -> tuple[pa.DataType, list[dict[str, Any]]]:
        """A type, and the entries of the fields in it."""
        if isinstance(kind, str):
            return _primitive(kind), []
        if kind["type"] == "struct":
            made = [self.field(node) for node in kind["fields"]]
            return pa.struct([field for field, _ in made]), [entry for _, entry in made]
        if kind["type"] == "array":
            inner, entries = self._type(kind["elementType"])
            element = pa.field("element", inner, nullable=bool(kind["containsNull"]))
            return pa.list_(element), [{"names": ["element"], "fields": entries}]
        (key, of_key), (value, of_value) = self._type(kind["keyType"]), self._type(kind["valueType"])
        held = pa.field("value", value, nullable=bool(kind["valueContainsNull"]))
        entries = [{"names": ["key"], "fields": of_key}, {"names": ["value"], "fields": of_value}]
        return pa.map_(pa.field("key", key, nullable=False), held), entries


def _primitive(kind: str) -> pa.DataType:
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _PRIMITIVES[kind]


def _with_id(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(number)})
