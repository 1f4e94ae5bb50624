"""The files in the plan of an Iceberg table: frozen, picklable, with all the table information that readers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pyarrow as pa

from torch_dataloader_utils.model import FileLayout


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file (or a part of one) that deletes rows of data files.

    Attributes:
        kind: "positions" (file path and position of each row), "vector" (a bitmap of positions) or "equality" (values).
        path: its path in the storage.
        format: "parquet", "orc", "avro" or "puffin".
        size: file size in bytes according to the manifest: a hint.
        offset: start of a vector's blob in the file, in bytes.
        length: length of the blob, in bytes.
        equality_ids: field ids of the compared columns, for equality deletes.
        sequence_number: its data sequence number.
        record_count: its rows, or a vector's positions; -1 if the manifest does not record them.
        seen: actual file size in bytes, if the file was read during planning; otherwise 0.
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
        table_path: its path as spelled in the manifest, which positional deletes use.
        record_count: physical rows, or -1 if the manifest does not record them.
        sequence_number: its data sequence number.
        deletes: the deletes that apply to it.
        constants: (field id, value for Arrow) for identity partition columns, which may be absent from the file.
        first_row_id: `_row_id` of its first row, in tables with row lineage.
        inner: its own layout, or None if its footer is read when it is opened.
        whole: whether a single segment represents all segments of the file, because planning did not read its footer.
        near: whether its footer is cheap to read: if so, `inner` is dropped when this is sent to another process.
        seen: actual file size in bytes, if planning read the footer; otherwise 0.
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
    """Information shared by all files of a table.

    Attributes:
        schema: the columns that can be read, including requested metadata columns such as `_pos`; each field, nested
            ones too, has its id in the field metadata b"PARQUET:field_id".
        defaults: field id -> initial default, for files written before the field was added.
        keys: field id -> field, for the columns that equality deletes compare, from any schema of the table.
        name_mapping: field ids by name, for files without field ids: the parsed `schema.name-mapping.default` of the
            table.
        ids: field ids in data files: "preferred" to names, "required", or "ignored" for a table that matches by name.
    """

    schema: pa.Schema
    defaults: Mapping[int, Any] = field(default_factory=dict)
    keys: Mapping[int, pa.Field] = field(default_factory=dict)
    name_mapping: Any = None
    ids: Literal["preferred", "required", "ignored"] = "preferred"
