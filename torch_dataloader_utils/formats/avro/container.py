"""The Avro container: finds the header and the blocks of a file, without decompressing the blocks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import MissingExtraError
from torch_dataloader_utils.formats.avro.schema import without_logical_types
from torch_dataloader_utils.formats.buffered import BufferedFile

try:
    import fastavro
except ImportError as _error:
    raise MissingExtraError("Avro files need fastavro: pip install 'torch-dataloader-utils[iceberg]'") from _error

MAGIC = b"Obj\x01"
_SEGMENT_BYTES = 1 << 20  # stored bytes of blocks that are read together
_SEGMENT_ROWS = 1 << 16
_HEADER_BYTES = 1 << 16  # first read for the header
# Bytes per read for the heads of blocks, which are usually tens of kilobytes apart.
_NEAR_READ, _REMOTE_READ = 1 << 12, 1 << 20
SYNC = 16  # bytes of the marker that ends the header and each block
MOST_BYTES = 2**28  # maximum bytes of a block, and decompressed bytes of blocks that are read together
_MOST_EMPTY_ROWS = 2**16
_HEAD = 20  # maximum bytes of two numbers


class TooLarge(Exception):
    """The block at byte `offset`, or blocks read together from there on, exceed `MOST_BYTES`."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the block at byte {offset} is too large")
        self.offset = offset


def _record(**fields: Any) -> Any:
    """The schema of an Avro record, parsed by fastavro."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": "r", "fields": listed})


_FIXED = {"type": "fixed", "name": "magic", "size": len(MAGIC)}, {"type": "fixed", "name": "sync", "size": SYNC}
_HEADER_SCHEMA = _record(magic=_FIXED[0], meta={"type": "map", "values": "bytes"}, sync=_FIXED[1])
BLOCK_SCHEMA = _record(rows="long", size="long")


def read_header(source: pa.NativeFile) -> tuple[bytes, Any, int]:
    """A header with plain numbers for dates and times, the file's own schema, and the offset of the first block.

    That header followed by blocks of the file is again an Avro file.

    Raises:
        ValueError: it is not an Avro file, or ends within the header.
    """
    header, at = _header(source)
    schema = json.loads(header["meta"]["avro.schema"])
    codec = header["meta"].get("avro.codec", b"null")
    plain = json.dumps(without_logical_types(schema)).encode()
    return _written({**header, "meta": {"avro.schema": plain, "avro.codec": codec}}), schema, at


def of_plain_blocks(header: bytes) -> tuple[bytes, bytes]:
    """The header of the same file without compression, and the name of the compression."""
    parts = fastavro.schemaless_reader(io.BytesIO(header), _HEADER_SCHEMA, None)
    codec: bytes = parts["meta"]["avro.codec"]
    return _written({**parts, "meta": {**parts["meta"], "avro.codec": b"null"}}), codec


def _written(header: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, _HEADER_SCHEMA, header)
    return sink.getvalue()


def find_runs(source: pa.NativeFile, at: int, header: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of runs of blocks from byte `at` on, each large enough for one read.

    Args:
        source: the file.
        at: the offset of its first block.
        header: a header that ends with the file's marker.

    Raises:
        ValueError: the file ends within a block, or is damaged.
        TooLarge: a block exceeds `MOST_BYTES`.
    """
    offset, stored, rows = at, 0, 0
    file = BufferedFile(source, _REMOTE_READ if isinstance(source, pa.PythonFile) else _NEAR_READ)
    for start, size, count in _blocks(file, at, header):
        offset = offset if stored else start
        stored, rows = stored + size, rows + count
        if stored >= _SEGMENT_BYTES or rows >= _SEGMENT_ROWS:
            yield offset, stored, rows
            stored, rows = 0, 0
    if stored:
        yield offset, stored, rows


def check_rows(rows: int, size: int) -> None:
    """Check the number of rows that a block declares: their values take bytes, unless all columns are null.

    Raises:
        ValueError: the block has more rows than bytes, and too many rows without values.
    """
    if rows > max(size, _MOST_EMPTY_ROWS):
        raise ValueError(f"a block says {rows} rows in {size} bytes.")


def _header(source: pa.NativeFile) -> tuple[dict[str, Any], int]:
    """The file's header, and the offset of its end."""
    size, wanted = source.size(), _HEADER_BYTES
    while True:
        data = io.BytesIO(source.read_at(min(wanted, size), 0))
        if data.getvalue()[: len(MAGIC)] != MAGIC:
            raise ValueError(f"it begins with {data.getvalue()[:4]!r}, but an Avro file begins with {MAGIC!r}.")
        try:
            return fastavro.schemaless_reader(data, _HEADER_SCHEMA, None), data.tell()
        except EOFError:
            if wanted >= min(size, MOST_BYTES):
                raise ValueError(f"its first {min(wanted, size)} bytes end within the header.") from None
            wanted *= 4


def _blocks(file: BufferedFile, at: int, header: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of each block, including its head and end marker.

    `fastavro.block_reader` returns the same, but decompresses each block, which makes it up to 10 times as slow.
    """
    sync, compressed = header[-SYNC:], of_plain_blocks(header)[1] != b"null"
    while at < file.size:
        data = io.BytesIO(file.at(at, min(_HEAD, file.size - at)))
        try:
            head = fastavro.schemaless_reader(data, BLOCK_SCHEMA, None)
        except EOFError:
            raise ValueError(f"it ends within the head of the block at byte {at}.") from None
        rows, size = head["rows"], head["size"]
        end = at + data.tell() + size + SYNC
        if rows < 0 or size < 0 or end > file.size:
            raise ValueError(f"the block at byte {at} says {rows} rows in {size} bytes; the file ends at {file.size}.")
        if size > MOST_BYTES:
            raise TooLarge(at)
        check_rows(rows, MOST_BYTES if compressed else size)
        if file.at(end - SYNC, SYNC) != sync:
            raise ValueError(f"the block at byte {at} does not end with the file's marker.")
        yield at, end - at, rows
        at = end
