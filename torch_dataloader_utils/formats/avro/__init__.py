"""Avro: a segment is a run of blocks, found by walking over their headers; values come through fastavro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.formats.avro.container import find_runs, read_header, read_records
from torch_dataloader_utils.formats.avro.schema import arrow_schema
from torch_dataloader_utils.formats.base import Pruner, keep_all
from torch_dataloader_utils.formats.packing import pack_index, unpack_index
from torch_dataloader_utils.formats.sizes import counted_segments
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Naming, Storage

_INDEX = ("offset", "stored", "rows")
_HEADER = "header"


@dataclass(frozen=True)
class AvroIndex:
    """What a reader needs of a file besides its blocks.

    Attributes:
        header: that of a file with the same blocks, whose schema has plain numbers for dates and times.
        schema: of the records.
        runs: (offset, bytes, rows) of each segment.
    """

    header: bytes
    schema: pa.Schema
    runs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class AvroFormat:
    """The Avro format."""

    name: str = "avro"
    segment_name: str = "run of blocks"
    typed: bool = True
    columnar: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """None: Avro has neither checksums nor dialects."""
        return {}

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """Runs of blocks of about 1 MiB, with the `AvroIndex` as the layout's metadata, and the file's schema."""
        with Naming(file.path, "header"), storage.open_data(file) as source:
            header, given, at = read_header(source)
            runs = find_runs(source, at, header, storage.local)
            index = AvroIndex(header, arrow_schema(given), tuple(runs))
            return _layout(index), index.schema

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
    ) -> AvroReader:
        """A reader that takes the header from the layout; `schema` names the columns that it keeps of each record."""
        with Naming(file.path):
            return AvroReader(file, layout.metadata, storage, schema.names)

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A pruner that drops nothing: Avro keeps no statistics."""
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """No column: nothing is proven without statistics."""
        return frozenset()

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """The header, the runs and the schema."""
        index: AvroIndex = layout.metadata
        numbers = {name: [run[i] for run in index.runs] for i, name in enumerate(_INDEX)}
        return pack_index(schema.serialize().to_pybytes(), {**numbers, _HEADER: list(index.header)})

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """The layout and schema that were packed."""
        packed, found = unpack_index(data, (*_INDEX, _HEADER))
        schema = pa.ipc.read_schema(pa.py_buffer(packed))
        runs = tuple(zip(*(found[name] for name in _INDEX), strict=True))
        return _layout(AvroIndex(bytes(found[_HEADER]), schema, runs)), schema


FORMAT = AvroFormat()


class AvroReader:
    """An open Avro file. Used by one thread at a time.

    A segment is decoded once for all columns wanted, which wait here until they are asked for, once each.

    Attributes:
        schema: the file's top-level columns, as `read` gives them.
    """

    def __init__(self, file: DataFileInfo, index: AvroIndex, storage: Storage, wanted: Sequence[str]) -> None:
        self.path = file.path
        self.schema = index.schema
        self._index = index
        self._wanted = wanted
        self._source = storage.open_data(file)
        self._waiting: dict[int, dict[str, pa.Array]] = {}

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these runs of blocks, with a chunk per run."""
        with Naming(self.path, f"runs of blocks {', '.join(map(str, segment_numbers))}"):
            if self._waiting.keys().isdisjoint(segment_numbers):
                self._waiting.clear()  # of another task: nobody will ask for the rest
            parts = [self._taken(number, columns) for number in segment_numbers]
            kinds = [self.schema.field(name).type for name in columns]
            return [pa.chunked_array([part[i] for part in parts], kind) for i, kind in enumerate(kinds)]

    def _taken(self, number: int, columns: Sequence[str]) -> list[pa.Array]:
        """The segment's columns: those that wait, or all decoded anew; none is given twice, as callers own them."""
        waiting = self._waiting.pop(number, {})
        if not set(columns) <= set(waiting):
            waiting = self._decoded(number, {*self._wanted, *columns})
        found = {name: waiting.pop(name) for name in set(columns)}
        if waiting:
            self._waiting[number] = waiting
        return [found[name] for name in columns]

    def _decoded(self, number: int, names: set[str]) -> dict[str, pa.Array]:
        offset, stored, rows = self._index.runs[number]
        self._source.seek(offset)
        blocks = self._source.read(stored)
        records = read_records(self._index.header, blocks)
        if len(records) != rows:
            raise ValueError(f"{len(records)} rows in {stored} bytes at {offset}, where {rows} were planned.")
        fields = [field for field in self.schema if field.name in names]
        return {field.name: pa.array([r[field.name] for r in records], field.type) for field in fields}

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._source.close()


def _layout(index: AvroIndex) -> FileLayout:
    parts = ((rows, stored) for _, stored, rows in index.runs)
    return FileLayout(counted_segments(parts, index.schema), metadata=index)
