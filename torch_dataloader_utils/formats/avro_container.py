"""The container of Avro files: its header, and where its blocks lie, without reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.formats.avro_schema import without_logical_types

MAGIC = b"Obj\x01"
_SEGMENT_BYTES = 1 << 20  # stored bytes of blocks that are read together
_SEGMENT_ROWS = 1 << 16
_HEADER_BYTES = 1 << 16  # read at once to see the header
_SYNC = 16  # bytes that end the header and each block


def read_header(source: pa.NativeFile) -> tuple[bytes, Any, int]:
    """A header with plain numbers for dates and times, the file's own schema, and where the first block begins.

    Blocks behind that header are an Avro file again.

    Raises:
        ValueError: it is no Avro file, or ends within the header.
    """
    size, wanted = source.size(), _HEADER_BYTES
    while True:
        source.seek(0)
        try:
            metadata, at, sync = _metadata(source.read(min(wanted, size)))
            break
        except IndexError:
            if wanted >= size:
                raise ValueError(f"its {size} bytes end within the header.") from None
            wanted *= 4
    schema = json.loads(metadata["avro.schema"])
    plain = {
        "avro.schema": json.dumps(without_logical_types(schema)).encode(),
        "avro.codec": metadata.get("avro.codec", b"null"),
    }
    return _header(plain, sync), schema, at


def find_runs(source: pa.NativeFile, at: int, header: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of runs of blocks from byte `at` on, each large enough to be read at once.

    Raises:
        ValueError: the file ends within a block, or is damaged.
    """
    offset, stored, rows = at, 0, 0
    for start, size, count in _blocks(source, at, header[-_SYNC:]):
        offset = offset if stored else start
        stored, rows = stored + size, rows + count
        if stored >= _SEGMENT_BYTES or rows >= _SEGMENT_ROWS:
            yield offset, stored, rows
            stored, rows = 0, 0
    if stored:
        yield offset, stored, rows


def _metadata(data: bytes) -> tuple[dict[str, bytes], int, bytes]:
    """The metadata in a header, where the header ends, and the marker at its end.

    Raises:
        IndexError: `data` ends before the header does.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError(f"it begins with {data[:4]!r}, where an Avro file begins with {MAGIC!r}.")
    found, at = {}, len(MAGIC)
    while True:
        count, at = _long(data, at)
        if count == 0:
            break
        if count < 0:
            _, at = _long(data, at)  # the bytes of this part of the map
        for _ in range(abs(count)):
            key, at = _bytes(data, at)
            value, at = _bytes(data, at)
            found[key.decode()] = value
    sync = data[at : at + _SYNC]
    if len(sync) < _SYNC:
        raise IndexError
    return found, at + _SYNC, sync


def _header(metadata: Mapping[str, bytes], sync: bytes) -> bytes:
    entries = [text for key, value in metadata.items() for text in (key.encode(), value)]
    return b"".join([MAGIC, _zigzag(len(metadata)), *(_zigzag(len(t)) + t for t in entries), b"\0", sync])


def _blocks(source: pa.NativeFile, at: int, sync: bytes) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, rows) of each block, its own header and end marker included."""
    size = source.size()
    while at < size:
        source.seek(at)
        head = source.read(20)
        try:
            rows, inside = _long(head, 0)
            length, inside = _long(head, inside)
        except IndexError:
            raise ValueError(f"it ends within the head of the block at byte {at}.") from None
        end = at + inside + length + _SYNC
        if rows < 0 or length < 0 or end > size:
            raise ValueError(f"the block at byte {at} says {rows} rows in {length} bytes; the file ends at {size}.")
        source.seek(end - _SYNC)
        if source.read(_SYNC) != sync:
            raise ValueError(f"the block at byte {at} does not end with the file's marker.")
        yield at, end - at, rows
        at = end


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag-coded number and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        if shift > 63:
            raise ValueError("a number in it has more than 64 bits.")


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    if length < 0:
        raise ValueError("a length in it is negative.")
    if at + length > len(data):
        raise IndexError
    return data[at : at + length], at + length


def _zigzag(value: int) -> bytes:
    """A number that is not negative, as Avro codes it."""
    value, coded = value << 1, b""
    while value > 0x7F:
        coded, value = coded + bytes([value & 0x7F | 0x80]), value >> 7
    return coded + bytes([value])
