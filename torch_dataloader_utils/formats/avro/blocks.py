"""Reads the records of Avro blocks within a limit: fastavro decompresses a block to any size."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import fastavro
import pyarrow as pa

from torch_dataloader_utils.formats.avro.container import (
    BLOCK_SCHEMA,
    MOST_BYTES,
    SYNC,
    TooLarge,
    check_rows,
    of_plain_blocks,
)

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
