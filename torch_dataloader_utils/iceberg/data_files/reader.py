"""Reads a data file of an Iceberg table: returns the table's columns, without deleted rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.events import during
from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.formats.parquet.guards import FLOORED
from torch_dataloader_utils.iceberg.data_files.columns import (
    NUMBERS,
    ROW_NUMBERS,
    encoded_fields,
    projection_of,
    table_columns,
)
from torch_dataloader_utils.iceberg.data_files.deletes import deleted_positions
from torch_dataloader_utils.iceberg.data_files.equality import EqualityDeletes, equality_deletes
from torch_dataloader_utils.iceberg.data_files.fields import data_fields
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.hints import own_layout
from torch_dataloader_utils.iceberg.data_files.inner import inner_format, inner_options, layout_schema
from torch_dataloader_utils.iceberg.data_files.pruning import value_ranges
from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.reading.decoding import numbers_of
from torch_dataloader_utils.reading.places import FileKeys, PlacedOpener
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder
from torch_dataloader_utils.sources.deleted_rows import Mask, live_mask
from torch_dataloader_utils.storage import Naming, Storage


@dataclass(frozen=True)
class IcebergOpener:
    """Opens the data files of a table.

    Attributes:
        table: the table.
        segment_name: the name of a segment in messages.
        columnar: whether a column can be read without its neighbours.
    """

    table: IcebergTable
    segment_name: str = "row group"
    columnar: bool = True

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> IcebergReader:
        """A reader of the table's columns in `schema`; the layout is from `iceberg_layout` or `whole_file`."""
        with Naming(file.path):
            return IcebergReader(file, layout, storage, self.table, options, schema)

    def placed(self, keys: FileKeys) -> PlacedOpener:
        """The opener that also reads the places of rows, by their numbers in the file as written."""
        table = replace(self.table, schema=self.table.schema.append(NUMBERS))
        return PlacedOpener(replace(self, table=table), keys, numbered=True)

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The ranges from the file's statistics and its partition values."""
        return value_ranges(layout, number, names, self.table)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """As the format of the file says of the columns that have the same name in it."""
        file: IcebergFile = layout.metadata
        form = inner_format(file.format)
        return "" if file.inner is None else form.decoder(file.inner, names, inner_options(form, options))

    def list_values(self, layout: FileLayout, name: str) -> None:
        """None: a column of the table may have another name in the file, or be missing in it."""
        return


class IcebergReader:
    """An open data file. Used by one thread at a time.

    Attributes:
        schema: the requested columns of the table, as `read` returns them.
    """

    def __init__(
        self,
        info: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        table: IcebergTable,
        options: Mapping[str, Any],
        wanted: pa.Schema,
    ) -> None:
        file: IcebergFile = layout.metadata
        form = inner_format(file.format)
        given = inner_options(form, options)
        info, inner = _planned(form, info, file, storage, given)
        self.path = info.path
        self._whole = file.whole
        self._segments = {segment.number: segment for segment in inner.segments}
        with during("delete"):
            self._positions = deleted_positions(file, storage, sum(segment.rows or 0 for segment in inner.segments))
        hints = _hints(inner, wanted, table, file.format)
        self._inner: Reader = form.open(info, inner, storage, {**given, FLOORED: True}, hints)
        try:
            self._decide(info, file, table, storage, wanted)
        except BaseException:
            self._inner.close()
            raise

    def _decide(
        self, info: DataFileInfo, file: IcebergFile, table: IcebergTable, storage: Storage, wanted: pa.Schema
    ) -> None:
        """Determine how columns are built, and which equality deletes apply."""
        fields = data_fields(self._inner.schema, table, file.format)
        projection = projection_of(file, table, info.path)
        self._columns = table_columns(wanted, file, table, fields, projection)
        self.schema: pa.Schema = pa.schema([column.field for column in self._columns.values()])
        with during("delete"):
            by_value = equality_deletes(file.deletes, table, fields, projection, storage)
        wanted_sources = {name for column in self._columns.values() for name in column.sources}
        self._by_value = None if by_value is None else _ByValue(self._inner, by_value, wanted_sources)
        self._masked: tuple[list[int], pa.Array | None] = ([], None)  # the last mask, with its segments

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the remaining rows of these segments, in the table's types."""
        return self._read(segment_numbers, columns)

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> dict[str, pa.ChunkedArray]:
        """Those of the columns that are stored as a column of which the file's reader reads some rows."""
        segments = self._read_segments(segment_numbers)
        live = self._live(segments)
        stored = rows if live is None else numbers_of(live)[rows]
        sources = {name: self._columns[name].sources for name in columns if len(self._columns[name].sources) == 1}
        wanted = list(dict.fromkeys(source for (source,) in sources.values() if source != ROW_NUMBERS))
        found = self._inner.read_rows([segment.number for segment in segments], wanted, stored)
        with Naming(self.path, f"columns {', '.join(columns)}"):
            return {
                name: self._columns[name].build([found[source]], len(rows))
                for name, (source,) in sources.items()
                if source in found
            }

    def _read_segments(self, numbers: Sequence[int]) -> list[Segment]:
        return [self._segments[number] for number in (self._segments if self._whole else numbers)]

    def _live(self, segments: Sequence[Segment]) -> pa.Array | None:
        """Which rows of these segments are left: Arrow bools; None for all."""
        numbers = [segment.number for segment in segments]
        if numbers != self._masked[0]:
            with during("delete"):
                dead = {} if self._by_value is None else self._by_value.dead(segments)
                self._masked = (numbers, live_mask(segments, self._positions, dead))
        return self._masked[1]

    def _read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        segments = self._read_segments(segment_numbers)
        made = [self._columns[name] for name in columns]
        live = self._live(segments)
        names = dict.fromkeys(name for column in made for name in column.sources)
        by_name = self._sources(segments, list(names))
        rows = sum(segment.rows or 0 for segment in segments)
        with Naming(self.path, f"columns {', '.join(columns)}"):
            arrays = [column.build([by_name[name] for name in column.sources], rows) for column in made]
            if live is None:
                return arrays
            with during("delete"):
                return [array.filter(live) for array in arrays]

    def together(self, columns: Sequence[str], rows: int) -> list[str]:
        """The columns that are stored as columns of the file which its reader decodes together."""
        by_source = {self._columns[name].sources: name for name in columns}
        stored = [source[0] for source in by_source if len(source) == 1]
        return [by_source[(name,)] for name in self._inner.together(stored, rows)]

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """As `chunks`: those that are unchanged, if no row is deleted."""
        names = self._unchanged(columns)
        return {names[name]: codes for name, codes in self._inner.codes(segment_numbers, list(names)).items()}

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of columns of the file that are columns of the table unchanged, if no row is deleted."""
        names = self._unchanged(columns)
        return {names[name]: chunks for name, chunks in self._inner.chunks(segment_numbers, list(names)).items()}

    def _unchanged(self, columns: Sequence[str]) -> dict[str, str]:
        """Those of the columns that are columns of the file, by the file's name; none if rows are deleted."""
        if self._whole or len(self._positions) or self._by_value is not None:
            return {}
        return {self._columns[name].sources[0]: name for name in columns if self._columns[name].as_stored}

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Fetch these segments; as the file's own reader."""
        return self._inner.prefetch(list(self._segments) if self._whole else segment_numbers)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        self._inner.confirm()

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._inner.close()

    def _sources(self, segments: Sequence[Segment], names: list[str]) -> dict[str, pa.ChunkedArray]:
        """The file's columns with these names, including `ROW_NUMBERS`, before rows are deleted."""
        numbers = [segment.number for segment in segments]
        columns = {} if self._by_value is None else self._by_value.take(numbers, names)
        if ROW_NUMBERS in names:
            spans = [np.arange(s.first_row, s.first_row + (s.rows or 0)) for s in segments]
            columns[ROW_NUMBERS] = pa.chunked_array([as_arrow(span) for span in spans], pa.int64())
        rest = [name for name in names if name not in columns]
        if rest:
            columns.update(zip(rest, self._inner.read(numbers, rest), strict=True))
        return columns


class _ByValue:
    """Rows removed by equality deletes in the segments being read, and the key columns that were read to find them.

    Both are kept until another task's segments are requested, because columns are requested in several calls. A key
    column is returned only once, because the caller then owns it.
    """

    def __init__(self, inner: Reader, deletes: EqualityDeletes, wanted: set[str]) -> None:
        self._inner = inner
        self._deletes = deletes
        self._wanted = wanted
        self._dead: dict[int, Mask] = {}
        self._read: dict[int, dict[str, pa.ChunkedArray]] = {}

    def dead(self, segments: Sequence[Segment]) -> dict[int, Mask]:
        """Which rows are deleted, by segment number: bool [rows]."""
        if self._dead.keys().isdisjoint(segment.number for segment in segments):
            self._dead.clear()
            self._read.clear()
        names = self._deletes.sources
        for segment in segments:
            if segment.number not in self._dead:
                arrays = self._inner.read([segment.number], names) if names else []
                columns = dict(zip(names, arrays, strict=True))
                self._dead[segment.number] = self._deletes.dead(columns, segment.rows or 0)
                self._read[segment.number] = {n: array for n, array in columns.items() if n in self._wanted}
        return self._dead

    def take(self, numbers: Sequence[int], names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The requested columns that were read for all these segments and have not been returned yet."""
        columns = {}
        for name in names:
            if numbers and all(name in self._read.get(number, {}) for number in numbers):
                parts = [self._read[number].pop(name) for number in numbers]
                columns[name] = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
        return columns


def _planned(
    form: Format, info: DataFileInfo, file: IcebergFile, storage: Storage, options: Mapping[str, Any]
) -> tuple[DataFileInfo, FileLayout]:
    """The file with its actual size, and its layout: read now if the plan does not contain it."""
    if file.inner is None:
        return own_layout(form, info, file, storage, options)
    return replace(info, file_size=file.seen), file.inner


def _hints(inner: FileLayout, wanted: pa.Schema, table: IcebergTable, form: str) -> pa.Schema:
    """The file's columns that will be requested, as far as its layout describes them."""
    schema = layout_schema(inner)
    if schema is None:
        return pa.schema([])
    return encoded_fields(wanted, table, data_fields(schema, table, form))
