"""Writes Arrow tables as Avro files, with Iceberg's field ids, as Iceberg's own writers do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from fastavro.write import Writer

_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    pa.timestamp("ns"): {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
}


def write_avro(table: pa.Table, path: Path, block_rows: int = 1 << 20, codec: str = "null") -> None:
    """Write the table in blocks of so many rows."""
    schema = {"type": "record", "name": "r", "fields": [_field(f, f"r{i}") for i, f in enumerate(table.schema)]}
    columns = [_raw(table[name].combine_chunks()) for name in table.column_names]
    with path.open("wb") as sink:
        writer = Writer(sink, schema, codec, sync_interval=1 << 30)
        for row in range(table.num_rows):
            writer.write({name: column[row] for name, column in zip(table.column_names, columns, strict=True)})
            if (row + 1) % block_rows == 0:
                writer.flush()
        writer.flush()


def avro_type(kind: pa.DataType, name: str) -> Any:
    if pt.is_struct(kind):
        return {"type": "record", "name": name, "fields": [_field(f, f"{name}_{i}") for i, f in enumerate(kind)]}
    if pt.is_map(kind):
        entry = {"type": "record", "name": name, "fields": [_field(kind.key_field, f"{name}_k")]}
        entry["fields"].append(_field(kind.item_field, f"{name}_v"))
        return {"type": "array", "logicalType": "map", "items": entry}
    if pt.is_list(kind):
        element = kind.value_field
        return {"type": "array", "items": _nullable(element, name), **_id(element, "element-id")}
    if pt.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if pt.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _NAMES[kind]


def _field(field: pa.Field, name: str) -> dict[str, Any]:
    return {"name": field.name, "type": _nullable(field, name), **_id(field, "field-id")}


def _nullable(field: pa.Field, name: str) -> Any:
    kind = avro_type(field.type, name)
    return ["null", kind] if field.nullable else kind


def _id(field: pa.Field, key: str) -> Mapping[str, int]:
    number = (field.metadata or {}).get(b"PARQUET:field_id")
    return {} if number is None else {key: int(number)}


def _raw(array: pa.Array) -> list[Any]:
    """The values as Avro stores them: dates and times as numbers, maps as lists of entries."""
    kind = array.type
    if pt.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    values = array.to_pylist()
    if pt.is_map(kind):
        return [None if value is None else [{"key": k, "value": v} for k, v in value] for value in values]
    return values
