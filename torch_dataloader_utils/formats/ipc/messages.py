"""Locates the messages of an Arrow IPC file or stream, and reads the row counts of its record batches.

Why not pyarrow: it reports a batch's row count only after reading its body. Files and streams are sequences of
messages: a prefix, metadata (a flatbuffer; the few fields needed are parsed by hand) and a body. See
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.formats.buffered import BufferedFile

MAGIC = b"ARROW1"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3

# Bytes per read: enough for most schemas, and for the metadata of many small messages.
_WINDOW = 1 << 16
_ALIGNMENT = 64  # maximum alignment in a file: the schema begins at byte 64 in arrow-rs, at byte 8 elsewhere


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a file.

    Attributes:
        offset: offset of its first byte.
        metadata: bytes before its body.
        body: bytes of its body.
        kind: SCHEMA, DICTIONARY, BATCH or another code.
        rows: a batch's number of rows.
    """

    offset: int
    metadata: int
    body: int
    kind: int = SCHEMA
    rows: int = 0

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.metadata + self.body


@dataclass(frozen=True, slots=True)
class Index:
    """The messages of a file.

    Attributes:
        schema: the bytes of the schema message, the first one.
        dictionaries: in file order.
        batches: in file order.
        needed: for each batch, the number of dictionaries that must be read before it.
    """

    schema: bytes
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]
    needed: tuple[int, ...]

    def arrow_schema(self) -> pa.Schema:
        """The schema."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def index_of(source: pa.NativeFile) -> Index:
    """The messages of an open file or stream; does not read their bodies.

    Raises:
        ValueError: it is not an IPC file or stream, or is truncated.
    """
    file = BufferedFile(source, _WINDOW)
    head = file.at(0, min(_ALIGNMENT + 8, file.size))
    if head.startswith(b"FEA1"):
        raise ValueError(
            "it is of version 1 of Feather, which has no record batches: rewrite it with "
            "pyarrow.feather.write_feather(pyarrow.feather.read_table(path), new_path)."
        )
    has_footer = head.startswith(MAGIC)
    start, stop = _between(file, head) if has_footer else (0, file.size)
    walk = _messages(file, start, stop, _ALIGNMENT if has_footer else 1)
    schema = next(walk)
    content = file.at(schema.offset, schema.size)
    messages = list(walk)
    dictionaries, batches = (tuple(m for m in messages if m.kind == kind) for kind in (DICTIONARY, BATCH))
    offsets = [message.offset for message in dictionaries]
    # In a file, a dictionary may follow the batches that need it.
    needed = (len(offsets) if has_footer else bisect(offsets, batch.offset) for batch in batches)
    return Index(content, dictionaries, batches, tuple(needed))


def _between(file: BufferedFile, head: bytes) -> tuple[int, int]:
    """The offsets of a file's first message, after magic bytes and padding, and of its footer.

    The footer is not read: walking finds the same messages, and streams need that anyway.
    """
    size = file.size
    tail = file.at(size - 10, 10) if size >= 18 else b""
    if not tail.endswith(MAGIC):
        raise ValueError("it begins like an Arrow IPC file but does not end like one: it is truncated.")
    (length,) = struct.unpack_from("<i", tail)
    if not 0 < length <= size - 18:
        raise ValueError(f"its footer of {length} bytes does not fit into its {size} bytes.")
    first = len(head) - len(head[len(MAGIC) :].lstrip(b"\0"))
    return first // 8 * 8, size - 10 - length


def _messages(file: BufferedFile, at: int, stop: int, padding: int) -> Iterator[Message]:
    """The messages in these bytes, the schema first, found by walking from one to the next: one read per message.

    Fewer than `padding` bytes may follow them.
    """
    kinds: tuple[int, ...] = (SCHEMA,)
    while at < stop:
        message = _message(file, at, stop)
        if message is None:
            at += len(_prefix(file.at(at, min(8, stop - at))))
            break
        if message.kind not in kinds:
            raise ValueError(f"it has a message of kind {message.kind} at byte {at}: expected {kinds}.")
        yield message
        kinds = (DICTIONARY, BATCH)
        at += message.size
    if stop - at >= padding:
        raise ValueError(f"its messages end at byte {at}, not at {stop}: it is truncated, or streams were joined.")
    if kinds == (SCHEMA,):
        raise ValueError("it has no schema: it is not an Arrow IPC file or stream.")


def _message(file: BufferedFile, offset: int, stop: int) -> Message | None:
    """The message at `offset`; None if it is the end-of-stream marker."""
    head = file.at(offset, min(8, stop - offset))
    prefix = len(_prefix(head))
    (length,) = struct.unpack_from("<i", head, prefix - 4)
    if length == 0:
        return None
    if not 0 < length <= stop - offset - prefix:
        raise ValueError(
            f"the message at byte {offset} has {length} bytes of metadata: the file is truncated, or this is no "
            "message."
        )
    table = _root(file.at(offset + prefix, length))
    kind, body = table.number(1, "<B"), table.number(3, "<q")
    if not 0 <= body <= stop - offset - prefix - length:
        raise ValueError(f"the message at byte {offset} has a body of {body} bytes, but the file has fewer.")
    rows = _batch_rows(table.table(2), body) if kind == BATCH else 0
    if rows < 0:
        raise ValueError(f"the message at byte {offset} has a number of rows that its columns do not have.")
    if kind == BATCH and not _inside(_buffers(table.table(2)), body):
        # pyarrow ignores buffers that it does not need: which those are depends on the columns read.
        raise ValueError(f"the message at byte {offset} has a buffer outside its body of {body} bytes.")
    return Message(offset, prefix + length, body, kind, rows)


def _batch_rows(batch: FlatTable, body: int) -> int:
    """The rows of a batch; -1 if its first column has another number, or if it has a body without columns.

    A batch that wrongly has no rows would be left out, and too many rows would be planned.
    """
    rows, columns = batch.number(0, "<q"), batch.places(1, 16)
    if columns:
        return rows if struct.unpack_from("<q", batch.data, columns.start)[0] == rows else -1
    return -1 if body else rows


def _prefix(message: bytes) -> bytes:
    """The prefix of a message's metadata: their length, since version 0.15 preceded by four bytes of 255."""
    return message[: 8 if message.startswith(b"\xff\xff\xff\xff") else 4]


def buffer_ranges(metadata: bytes) -> list[tuple[int, int]]:
    """(offset in the body, bytes) for each buffer of a record batch, from its message's bytes before the body."""
    return list(struct.iter_unpack("<qq", _buffers(_root(metadata[len(_prefix(metadata)) :]).table(2))))


def _buffers(batch: FlatTable) -> bytes:
    """The list of the buffers of a record batch: offset in the body, bytes."""
    places = batch.places(2, 16)
    return batch.data[places.start : places.stop]


def _inside(buffers: bytes, body: int) -> bool:
    """Whether all of these buffers that are not empty lie inside a body of so many bytes."""
    start, size = np.frombuffer(buffers, "<i8").reshape(-1, 2).T
    outside = (start < 0) | (size < 0) | (size > body) | (start > body - size)
    return not (outside & (size != 0)).any()


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A flatbuffer table: numbered fields, all optional."""

    data: bytes
    at: int

    def _place(self, field: int) -> int | None:
        vtable = self.at - self._read("<i", self.at)
        if 4 + 2 * field >= self._read("<H", vtable):
            return None
        offset: int = self._read("<H", vtable + 4 + 2 * field)
        return self.at + offset if offset else None

    def _read(self, kind: str, at: int) -> Any:
        if at < 0:
            raise ValueError("the metadata points outside itself.")
        return struct.unpack_from(kind, self.data, at)[0]

    def number(self, field: int, kind: str) -> int:
        """The number in a field, 0 if it is omitted."""
        place = self._place(field)
        return 0 if place is None else self._read(kind, place)

    def table(self, field: int) -> FlatTable:
        """The table in a field."""
        place = self._place(field)
        if place is None:
            raise ValueError(f"the metadata has no field {field}.")
        return FlatTable(self.data, place + self._read("<I", place))

    def places(self, field: int, size: int) -> range:
        """The offsets of the structs of `size` bytes in a field."""
        place = self._place(field)
        if place is None:
            return range(0)
        start = place + self._read("<I", place)
        count = self._read("<I", start)
        if start + 4 + count * size > len(self.data):
            raise ValueError(f"the metadata lists {count} structs of {size} bytes, but has {len(self.data)} bytes.")
        return range(start + 4, start + 4 + count * size, size)


def _root(data: bytes) -> FlatTable:
    return FlatTable(data, struct.unpack_from("<I", data)[0])
