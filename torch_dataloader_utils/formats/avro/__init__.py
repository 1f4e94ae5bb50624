"""Avro: a segment is a run of blocks, found by walking from header to header; fastavro decodes the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, UnsupportedTypeError
from torch_dataloader_utils.formats.avro.blocks import read_records
from torch_dataloader_utils.formats.avro.container import MOST_BYTES, TooLarge, find_runs, read_header
from torch_dataloader_utils.formats.avro.schema import arrow_schema
from torch_dataloader_utils.formats.base import BatchReader, Format
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, printable


@dataclass(frozen=True)
class AvroIndex:
    """The parts of a file besides its blocks that a reader needs.

    Attributes:
        header: the header of a file with the same blocks whose schema has plain numbers for dates and times.
        schema: the schema of the records.
        runs: (offset, bytes, rows) for each segment.
    """

    header: bytes
    schema: pa.Schema
    runs: tuple[tuple[int, int, int], ...]


class AvroReader(BatchReader):
    """An open Avro file.

    A segment is decoded once for all requested columns, which are kept here until each is returned once.
    """

    segments = "runs of blocks"

    def __init__(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> None:
        super().__init__(file, layout, storage, options, schema)
        self.schema = self.metadata.schema
        self._wanted = schema.names
        self._waiting: dict[int, dict[str, pa.Array]] = {}

    def batches(self, numbers: list[int], columns: list[str]) -> Sequence[pa.RecordBatch]:
        """The runs of blocks, with these columns."""
        if self._waiting.keys().isdisjoint(numbers):
            self._waiting.clear()  # from another task: nobody will request the rest
        return [pa.record_batch(self._taken(number, columns)) for number in numbers]

    def _taken(self, number: int, columns: Sequence[str]) -> dict[str, pa.Array]:
        """The segment's columns: kept ones, or all decoded again; none is returned twice, because callers own them."""
        waiting = self._waiting.pop(number, {})
        if not set(columns) <= set(waiting):
            waiting = self._decoded(number, {*self._wanted, *columns})
        taken = {name: waiting.pop(name) for name in set(columns)}
        if waiting:
            self._waiting[number] = waiting
        return taken

    def _decoded(self, number: int, names: set[str]) -> dict[str, pa.Array]:
        offset, stored, _ = self.metadata.runs[number]
        self.source.seek(offset)
        fields = [field for field in self.schema if field.name in names]
        arrays: dict[str, list[pa.Array]] = {field.name: [] for field in fields}
        with _limited(self.path):
            for records in read_records(self.metadata.header, self.source.read(stored), offset):
                for field in fields:
                    arrays[field.name].append(pa.array([r[field.name] for r in records], field.type))
        return {name: parts[0] if len(parts) == 1 else pa.concat_arrays(parts) for name, parts in arrays.items()}


@contextmanager
def _limited(path: str) -> Iterator[None]:
    """A context in which blocks that are too large become an error that names the file."""
    try:
        yield
    except TooLarge as error:
        raise FileReadError(
            f"{printable(path)}, the blocks from byte {error.offset} on: hold more than {MOST_BYTES} bytes when "
            "decompressed. If that is right, write the file in smaller blocks, or without compression if it expands so "
            "much."
        ) from error


class AvroFormat(Format):
    """The Avro format: segments are runs of blocks of about 1 MiB; the layout's metadata is an `AvroIndex`."""

    name = "avro"
    segment_name = "run of blocks"
    columnar = False
    described = "header"
    reader = AvroReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The runs, and the schema of the records."""
        header, given, at = read_header(source)
        try:
            schema = arrow_schema(given)
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(f"{file.path}: {error}") from error
        with _limited(file.path):
            index = AvroIndex(header, schema, tuple(find_runs(source, at, header)))
        parts = ((rows, stored) for _, stored, rows in index.runs)
        return counted_layout(parts, index.schema, index), index.schema

    def pack_metadata(self, metadata: AvroIndex) -> tuple[Any, bytes]:
        """The runs and the header."""
        return metadata.runs, metadata.header

    def unpack_metadata(self, plain: Any, blob: bytes, schema: pa.Schema) -> AvroIndex:
        """The index."""
        return AvroIndex(blob, schema, tuple(map(tuple, plain)))


FORMAT = AvroFormat()
