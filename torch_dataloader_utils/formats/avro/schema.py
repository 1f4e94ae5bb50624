"""Converts Avro schemas to Arrow types, and to Avro schemas with plain numbers for dates and times.

pyiceberg's own conversion rejects fields without an Iceberg id, and imported files have no ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import UnsupportedTypeError

FIELD_ID = b"PARQUET:field_id"  # key of the Iceberg id in Arrow's metadata, as for Parquet in pyarrow

_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_INSTANTS = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


def arrow_schema(schema: Any) -> pa.Schema:
    """The Arrow schema of a file's records; Iceberg's field ids become metadata of the fields.

    Args:
        schema: the file's Avro schema, parsed from JSON.

    Raises:
        UnsupportedTypeError: a union of several types, a type that contains itself, or a top-level type other than a
            record.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise UnsupportedTypeError(f"the Avro schema {str(schema)[:100]}: expected a record.")
    return pa.schema(list(_Reading().type(schema, "")))


def without_logical_types(schema: Any) -> Any:
    """The schema with dates and times as plain numbers and UUIDs as plain values; decimals are kept.

    Python's dates end at the year 9999 and its times stop at microseconds; Arrow accepts the plain numbers.
    """
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: without_logical_types(schema[key]) for key in ("type", "items", "values") if key in schema}
    if "fields" in schema:
        plain["fields"] = [without_logical_types(field) for field in schema["fields"]]
    dropped = ("aliases", "default", "doc", *(() if schema.get("logicalType") == "decimal" else ("logicalType",)))
    return {key: plain.get(key, value) for key, value in schema.items() if key not in dropped}


class _Reading:
    """The types named so far in one schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = dict(_PLAIN)

    def type(self, schema: Any, namespace: str) -> pa.DataType:
        """The Arrow type of an Avro type other than a union."""
        if isinstance(schema, str):
            kind = self._named.get(schema, self._named.get(f"{namespace}.{schema}"))
            if kind is None:
                raise UnsupportedTypeError(f"the Avro type {schema!r} contains itself, or is defined nowhere.")
            return kind
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type(kind, namespace)
        if kind in ("record", "enum", "fixed"):
            return self._name(schema, namespace)
        if kind == "array":
            return self._array(schema, namespace)
        if kind == "map":
            key = pa.field("key", pa.string(), False, _id(schema, "key-id"))
            return pa.map_(key, self._field("value", schema["values"], _id(schema, "value-id"), namespace))
        return _logical(schema) or self.type(kind, namespace)

    def _field(self, name: str, schema: Any, metadata: dict[bytes, bytes] | None, namespace: str) -> pa.Field:
        """A field, which is nullable if its type is a union with null."""
        branches = schema if isinstance(schema, list) else [schema]
        kinds = [branch for branch in branches if branch != "null"] or ["null"]
        if len(kinds) > 1:
            raise UnsupportedTypeError(f"field {name!r} is a union of several types, {str(kinds)[:100]}.")
        return pa.field(name, self.type(kinds[0], namespace), "null" in branches, metadata)

    def _name(self, schema: Mapping[str, Any], namespace: str) -> pa.DataType:
        """The type of a record, enum or fixed, which is then known by its full name."""
        name = schema["name"]
        full = name if "." in name else ".".join(filter(None, [schema.get("namespace", namespace), name]))
        self._named[full] = _logical(schema) or self._made(schema, full.rpartition(".")[0])
        return self._named[full]

    def _made(self, schema: Mapping[str, Any], namespace: str) -> pa.DataType:
        if schema["type"] == "enum":
            return pa.string()
        if schema["type"] == "fixed":
            return pa.binary(schema["size"])
        fields = schema["fields"]
        return pa.struct([self._field(f["name"], f["type"], _id(f, "field-id"), namespace) for f in fields])

    def _array(self, schema: Mapping[str, Any], namespace: str) -> pa.DataType:
        """A list, or a map, which Iceberg may write as an array of key-value records."""
        element = self._field("element", schema["items"], _id(schema, "element-id"), namespace)
        if _takes_no_bytes(element.type):
            raise UnsupportedTypeError("an array of values that take no bytes, so that nothing limits its length.")
        return pa.map_(*element.type) if schema.get("logicalType") == "map" else pa.list_(element)


def _takes_no_bytes(kind: pa.DataType) -> bool:
    if pt.is_struct(kind):
        return all(_takes_no_bytes(field.type) for field in kind)
    return bool(pt.is_null(kind) or (pt.is_fixed_size_binary(kind) and kind.byte_width == 0))


def _logical(schema: Mapping[str, Any]) -> pa.DataType | None:
    name = schema.get("logicalType")
    if name == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if name in _INSTANTS:
        # Iceberg writes timestamps without a zone as instants with the property adjust-to-utc=false.
        return pa.timestamp(_INSTANTS[name], "UTC" if schema.get("adjust-to-utc", True) else None)
    return _TIMES.get(name or "")


def _id(schema: Mapping[str, Any], key: str) -> dict[bytes, bytes] | None:
    return {FIELD_ID: str(schema[key]).encode()} if key in schema else None
