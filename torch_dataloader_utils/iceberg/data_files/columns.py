"""Builds each column of the table for one data file: from a column of the file, a constant, or row numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.iceberg.data_files.fields import FileField, field_id, places_by_id
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.projection import Projection
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.options.sources import FILE, POSITION, SHARES
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.schemas.merge import without_dictionaries

# The specification reserves these.
FILE_ID, POSITION_ID = 2147483646, 2147483645
ROW_ID, SEQUENCE_ID = 2147483540, 2147483539
SHARE_ID = -1  # of how often a row is drawn, which no file holds
NAME_IDS = {FILE: FILE_ID, POSITION: POSITION_ID, SHARES: SHARE_ID}

# Stands for the physical row numbers among a file's columns; no column can have this name.
ROW_NUMBERS = "\0row numbers"
# The column of a row's place, as its number in the file.
NUMBERS = pa.field(PLACE, pa.int64(), metadata={"PARQUET:field_id": str(POSITION_ID)})

Build = Callable[[Sequence[pa.ChunkedArray], int], pa.ChunkedArray]  # (sources, number of rows) -> column


@dataclass(frozen=True)
class TableColumn:
    """A column of the table, in one data file.

    Attributes:
        field: its name and the type in which it is returned.
        sources: the columns of the file that it is built from, or `ROW_NUMBERS`.
        build: builds it from these.
        as_stored: whether it is its one source, unchanged.
    """

    field: pa.Field
    sources: tuple[str, ...]
    build: Build
    as_stored: bool = False


def projection_of(file: IcebergFile, table: IcebergTable, path: str) -> Projection:
    """The projection from the file's fields to the table's."""
    return Projection(path, {**dict(file.constants), FILE_ID: file.table_path}, table.defaults)


def table_columns(
    wanted: pa.Schema, file: IcebergFile, table: IcebergTable, fields: Sequence[FileField], projection: Projection
) -> dict[str, TableColumn]:
    """The requested columns of the table, by name.

    Args:
        wanted: the names; dictionaries of strings or bytes, or lists of these, ask for that if the file can provide it.
        file: the data file.
        table: the table.
        fields: the data file's fields, as its reader returns them.
        projection: the data file's projection.

    Raises:
        SchemaMismatchError: a column cannot be built from the file; the message names both.
    """
    columns, known, places = {}, set(table.schema.names), places_by_id(fields)
    for item in wanted:
        if item.name not in known:
            continue
        field = table.schema.field(item.name)
        place = places.get(field_id(field))
        source = None if place is None else fields[place]
        if source is not None and source.type.equals(item.type) and item.type != without_dictionaries(item.type):
            field = field.with_type(item.type)
        columns[item.name] = _lineage(field, source, file) or _plain(field, source, projection)
    return columns


def encoded_fields(wanted: pa.Schema, table: IcebergTable, fields: Sequence[FileField]) -> pa.Schema:
    """The file's columns for the requested ones, by their names in the file, with the requested types."""
    known = set(table.schema.names)
    kinds: Mapping[int | None, pa.DataType] = {
        field_id(table.schema.field(item.name)): item.type for item in wanted if item.name in known
    }
    return pa.schema([pa.field(field.name, kinds[field.id]) for field in fields if field.id in kinds])


def _plain(field: pa.Field, source: FileField | None, projection: Projection) -> TableColumn:
    if source is None:
        make = projection.absent(field)
        return TableColumn(field, (), lambda columns, rows: pa.chunked_array([make(rows)], field.type))
    if source.type.equals(field.type) and not pt.is_nested(field.type):
        return TableColumn(field, (source.name,), lambda columns, rows: columns[0], as_stored=True)
    convert = projection.of(source, field)

    def build(columns: Sequence[pa.ChunkedArray], rows: int) -> pa.ChunkedArray:
        return pa.chunked_array([convert(chunk) for chunk in columns[0].chunks], field.type)

    return TableColumn(field, (source.name,), build)


def _lineage(field: pa.Field, source: FileField | None, file: IcebergFile) -> TableColumn | None:
    """Columns derived from a row's position or the file's sequence number, unless the file stores them; else None.

    A file stores the id of a row, and the sequence number of its last change, if the row was copied into the file when
    other rows changed. Otherwise they are derived from the file's first row id and its own sequence number.
    """
    number, first = field_id(field), file.first_row_id
    sources = () if source is None else (source.name,)
    if number == POSITION_ID:
        return TableColumn(field, (ROW_NUMBERS,), lambda columns, rows: columns[0])
    if number not in (ROW_ID, SEQUENCE_ID):
        return None
    if first is None:
        return TableColumn(field, (), lambda columns, rows: pa.chunked_array([pa.nulls(rows, field.type)]))

    def build(columns: Sequence[pa.ChunkedArray], rows: int) -> pa.ChunkedArray:
        inherited = pc.add(columns[-1], first) if number == ROW_ID else pa.repeat(file.sequence_number, rows)
        if source is None:
            return pa.chunked_array([inherited]) if isinstance(inherited, pa.Array) else inherited
        return pc.coalesce(columns[0], inherited)

    return TableColumn(field, (*sources, ROW_NUMBERS), build)
