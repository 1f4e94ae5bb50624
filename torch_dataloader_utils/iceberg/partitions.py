"""The partition values of files, according to the specs with which they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform, UnknownTransform
from pyiceberg.types import IcebergType, UnknownType

from torch_dataloader_utils.iceberg.delete_index import PartitionKey
from torch_dataloader_utils.iceberg.manifests import Entry
from torch_dataloader_utils.iceberg.schema import arrow_type, plain_value


@dataclass(frozen=True, slots=True)
class Partition:
    """The values of one partition.

    Attributes:
        values: name of the partition field -> value as a Python object, for users and strategies.
        constants: (field id of the column, value for Arrow), for columns partitioned by identity.
    """

    values: Mapping[str, Any]
    constants: tuple[tuple[int, Any], ...]


class Partitions:
    """The partitions of a table's files; equal partitions share one object."""

    def __init__(self, specs: Mapping[int, PartitionSpec], schema: Schema) -> None:
        self._specs = specs
        self._types = {number: _types(spec, schema) for number, spec in specs.items()}
        self._columns = schema.field_ids
        self._found: dict[PartitionKey, Partition] = {}

    def place(self, entry: Entry) -> PartitionKey:
        """The spec and values of a file's partition, as a key: NaNs are equal, -0.0 differs from 0.0."""
        values = tuple(value.hex() if isinstance(value, float) else value for value in entry.file.partition._data)
        return entry.spec_id, values

    def of(self, place: PartitionKey, entry: Entry) -> Partition:
        """The partition of a file at this place."""
        partition = self._found.get(place)
        if partition is None:
            partition = self._found[place] = self._read(entry)
        return partition

    def _read(self, entry: Entry) -> Partition:
        spec, types = self._specs[entry.spec_id], self._types[entry.spec_id]
        values = [plain_value(value) for value in entry.file.partition._data]
        return Partition(
            {item.name: _shown(value, kind) for item, kind, value in zip(spec.fields, types, values, strict=True)},
            tuple(
                (item.source_id, value)
                for item, value in zip(spec.fields, values, strict=True)
                if isinstance(item.transform, IdentityTransform) and item.source_id in self._columns
            ),
        )


def _types(spec: PartitionSpec, schema: Schema) -> list[pa.DataType | None]:
    """The types of a partition's values; None if the transform is unknown or its column was dropped."""
    fields = spec.partition_type(schema).fields
    return [_type(item.transform, typed.field_type) for item, typed in zip(spec.fields, fields, strict=True)]


def _type(transform: Transform[Any, Any], kind: IcebergType) -> pa.DataType | None:
    known = not isinstance(transform, UnknownTransform) and not isinstance(kind, UnknownType)
    return arrow_type(kind) if known else None


def _shown(value: Any, kind: pa.DataType | None) -> Any:
    """The value as a Python object, such as a date for days; unchanged if Python has none or `kind` is None."""
    if value is None or kind is None:
        return value
    try:
        return pa.scalar(value, kind).as_py()
    except (OverflowError, ValueError):
        return value
