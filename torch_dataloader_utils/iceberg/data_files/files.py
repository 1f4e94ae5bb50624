"""What the plan of an Iceberg table says of its files: frozen, picklable, and all that a reader needs of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.model import FileLayout


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file (or a part of one) that deletes rows of data files.

    Attributes:
        kind: "positions" (file path and position of each row), "vector" (a bitmap of positions) or "equality" (values).
        path: as the storage names it.
        format: "parquet", "orc", "avro" or "puffin".
        size: bytes of the file as the manifest says: a hint.
        offset: where a vector's blob begins in the file, in bytes.
        length: of the blob, in bytes.
        equality_ids: field ids of the columns that are compared, for equality deletes.
        sequence_number: its data sequence number.
        record_count: its rows, or positions of a vector; -1 where the manifest does not say.
        seen: bytes of the file, where it was read to plan it; 0: there is only what the manifest says.
    """

    kind: str
    path: str
    format: str
    size: int
    offset: int = 0
    length: int = 0
    equality_ids: tuple[int, ...] = ()
    sequence_number: int = 0
    record_count: int = -1
    seen: int = 0


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file as the manifest lists it: the metadata of its layout.

    Attributes:
        format: "parquet", "orc" or "avro".
        table_path: its path as the manifest spells it, which is how positional deletes name it.
        record_count: physical rows, or -1 where the manifest does not say.
        sequence_number: its data sequence number.
        deletes: those that apply to it.
        constants: (field id, value as Arrow has it) of identity partition columns, which may be absent from the file.
        first_row_id: `_row_id` of its first row, in tables with row lineage.
        inner: its own layout, or None where its footer is read when it is opened.
        whole: whether one segment stands for all those of the file, as its footer was not read to plan it.
        near: whether its footer is cheap to read: then `inner` stays behind when this travels to another process.
        seen: bytes of the file, where its footer was read to plan it; 0: there is only what the manifest says.
    """

    format: str
    table_path: str
    record_count: int
    sequence_number: int = 0
    deletes: tuple[DeleteFile, ...] = ()
    constants: tuple[tuple[int, Any], ...] = ()
    first_row_id: int | None = None
    inner: FileLayout | None = field(default=None, repr=False)
    whole: bool = False
    near: bool = False
    seen: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return IcebergFile, tuple({**values, "inner": None if self.near else self.inner}.values())


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """What is the same for all files of a table.

    Attributes:
        schema: the columns that can be read, metadata columns such as `_pos` among them where they were asked for;
            each field, nested ones too, with its id in the field metadata b"PARQUET:field_id".
        defaults: field id -> initial default, for files written before the field was added.
        keys: field id -> field, of the columns that equality deletes compare, whatever schema they were in.
        name_mapping: field id by names, for files without field ids: the table's `schema.name-mapping.default`, parsed.
    """

    schema: pa.Schema
    defaults: Mapping[int, Any] = field(default_factory=dict)
    keys: Mapping[int, pa.Field] = field(default_factory=dict)
    name_mapping: Any = None
