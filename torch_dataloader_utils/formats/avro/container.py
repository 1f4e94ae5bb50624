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
_SYNC = 16  # bytes of the marker that ends the header and each block
_HEAD = 20  # maximum bytes of two numbers


def _record(**fields: Any) -> Any:
    """The schema of an Avro record, parsed by fastavro."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return fastavro.parse_schema({"type": "record", "name": "r", "fields": listed})


_FIXED = {"type": "fixed", "name": "magic", "size": len(MAGIC)}, {"type": "fixed", "name": "sync", "size": _SYNC}
_HEADER_SCHEMA = _record(magic=_FIXED[0], meta={"type": "map", "values": "bytes"}, sync=_FIXED[1])
_BLOCK_SCHEMA = _record(rows="long", size="long")


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
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, _HEADER_SCHEMA, {**header, "meta": {"avro.schema": plain, "avro.codec": codec}})
    return sink.getvalue(), schema, at


def find_runs(source: pa.NativeFile, at: int, header: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of runs of blocks from byte `at` on, each large enough for one read.

    Args:
        source: the file.
        at: the offset of its first block.
        header: a header that ends with the file's marker.

    Raises:
        ValueError: the file ends within a block, or is damaged.
    """
    offset, stored, rows = at, 0, 0
    file = BufferedFile(source, _REMOTE_READ if isinstance(source, pa.PythonFile) else _NEAR_READ)
    for start, size, count in _blocks(file, at, header[-_SYNC:]):
        offset = offset if stored else start
        stored, rows = stored + size, rows + count
        if stored >= _SEGMENT_BYTES or rows >= _SEGMENT_ROWS:
            yield offset, stored, rows
            stored, rows = 0, 0
    if stored:
        yield offset, stored, rows


def read_records(header: bytes, blocks: bytes) -> list[Any]:
    """The records in these blocks, as Python values."""
    return list(fastavro.reader(io.BytesIO(header + blocks)))


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
            if wanted >= size:
                raise ValueError(f"its {size} bytes end within the header.") from None
            wanted *= 4


def _blocks(file: BufferedFile, at: int, sync: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of each block, including its head and end marker.

    `fastavro.block_reader` returns the same, but decompresses each block, which makes it up to 10 times as slow.
    """
    while at < file.size:
        data = io.BytesIO(file.at(at, min(_HEAD, file.size - at)))
        try:
            head = fastavro.schemaless_reader(data, _BLOCK_SCHEMA, None)
        except EOFError:
            raise ValueError(f"it ends within the head of the block at byte {at}.") from None
        rows, size = head["rows"], head["size"]
        end = at + data.tell() + size + _SYNC
        if rows < 0 or size < 0 or end > file.size:
            raise ValueError(f"the block at byte {at} says {rows} rows in {size} bytes; the file ends at {file.size}.")
        if file.at(end - _SYNC, _SYNC) != sync:
            raise ValueError(f"the block at byte {at} does not end with the file's marker.")
        yield at, end - at, rows
        at = end
