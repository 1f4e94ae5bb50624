"""Avro: a segment is a run of blocks, found by walking from header to header; fastavro decodes the values."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import fastavro
import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, UnsupportedTypeError
from torch_dataloader_utils.formats.avro.container import (
    BLOCK_SCHEMA,
    MOST_BYTES,
    SYNC,
    TooLarge,
    check_rows,
    find_runs,
    of_plain_blocks,
    read_header,
)
from torch_dataloader_utils.formats.avro.schema import arrow_schema
from torch_dataloader_utils.formats.base import BatchReader, Format
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Storage

# Reads the records of Avro blocks within a limit: fastavro decompresses a block to any size.

_ROWS = 2**12  # records that are Python objects at a time
_PIECE = 2**20  # bytes decompressed at a time
_XZ_MEMORY = 2**28  # bytes; the strongest preset needs a quarter

_Decompressor = Callable[[bytes, int], bytes]


def read_records(header: bytes, blocks: bytes, offset: int) -> Iterator[list[Any]]:
    """The records in these blocks, as Python values, a few thousand at a time.

    Args:
        header: of their file.
        blocks: adjacent ones.
        offset: of the first one, for errors.

    Raises:
        TooLarge: the blocks expand to more than `MOST_BYTES`.
        ValueError: they have more rows than bytes.
    """
    plain_header, codec = of_plain_blocks(header)
    if codec in _DECOMPRESSORS:
        header, blocks = plain_header, _decompressed(blocks, _DECOMPRESSORS[codec], offset)
    records = fastavro.reader(io.BytesIO(header + blocks))
    while some := list(islice(records, _ROWS)):
        yield some


def _decompressed(blocks: bytes, decompress: _Decompressor, offset: int) -> bytes:
    """The same records as one uncompressed block."""
    source, parts, rows, size = io.BytesIO(blocks), [], 0, 0
    while source.tell() < len(blocks):
        head = fastavro.schemaless_reader(source, BLOCK_SCHEMA, None)
        part = decompress(source.read(head["size"]), MOST_BYTES + 1 - size)
        rows, size = rows + head["rows"], size + len(part)
        if size > MOST_BYTES:
            raise TooLarge(offset)
        parts.append(part)
        source.seek(SYNC, io.SEEK_CUR)
    check_rows(rows, size)
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, BLOCK_SCHEMA, {"rows": rows, "size": size})
    return b"".join([sink.getvalue(), *parts, blocks[-SYNC:]])


def _snappy(data: bytes, most: int) -> bytes:
    """Up to `most` bytes of a block whose last four bytes are a checksum."""
    size = 0
    for place, byte in enumerate(data[:5]):  # the block begins with its size, in groups of seven bits
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if size >= most:
        return bytes(most)  # too many, whatever they are
    plain: bytes = pa.Codec("snappy").decompress(data[:-4], size).to_pybytes()
    return plain


def _zstandard(data: bytes, most: int) -> bytes:
    stream, parts = pa.CompressedInputStream(pa.BufferReader(data), "zstd"), []
    # Not `read`: it allocates all that may come at once, and never frees that if the data is damaged.
    while most and (part := stream.read_buffer(min(most, _PIECE))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


# By codec. No block of the other codecs expands so much.
_DECOMPRESSORS: dict[bytes, _Decompressor] = {
    b"deflate": lambda data, most: zlib.decompressobj(-15).decompress(data, most),
    b"bzip2": lambda data, most: bz2.BZ2Decompressor().decompress(data, most),
    b"xz": lambda data, most: lzma.LZMADecompressor(memlimit=_XZ_MEMORY).decompress(data, most),
    b"snappy": _snappy,
    b"zstandard": _zstandard,
}


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
