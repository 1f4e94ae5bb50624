"""Where the messages of an Arrow IPC file or stream lie, and how many rows its record batches have.

pyarrow tells the rows of a batch only with its body. Both kinds of file are a sequence of messages: a prefix, some
metadata (a flatbuffer, of which the few fields needed are read by hand) and a body. A file has a footer besides, that
says where they are. See https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

MAGIC = b"ARROW1"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3

# Bytes of a read: most schemas and footers fit, and the metadata of many small messages.
_WINDOW = 1 << 16


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a file.

    Attributes:
        offset: of its first byte.
        metadata: bytes before its body.
        body: bytes of its body.
        kind: SCHEMA, DICTIONARY, BATCH or another.
        rows: of a batch.
    """

    offset: int
    metadata: int
    body: int
    kind: int = SCHEMA
    rows: int = 0

    @property
    def size(self) -> int:
        """All its bytes."""
        return self.metadata + self.body


@dataclass(frozen=True, slots=True)
class Index:
    """The messages of a file.

    Attributes:
        schema: the bytes of the first one.
        dictionaries: in file order.
        batches: in file order.
        needed: of each batch, how many of the dictionaries must be read before it.
    """

    schema: bytes
    dictionaries: tuple[Message, ...]
    batches: tuple[Message, ...]
    needed: tuple[int, ...]

    def arrow_schema(self) -> pa.Schema:
        """The schema."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


def index_of(source: pa.NativeFile) -> Index:
    """The messages of an open file or stream: its bodies are not read.

    Raises:
        ValueError: it is neither, or ends too early.
    """
    window = Window(source)
    head = window.at(0, 8)
    if head.startswith(b"FEA1"):
        raise ValueError(
            "it is of version 1 of Feather, which has no record batches: rewrite it with "
            "pyarrow.feather.write_feather(pyarrow.feather.read_table(path), new_path)."
        )
    return _file_index(window) if head.startswith(MAGIC) else _stream_index(window)


class Window:
    """An open file, read in windows: what lies close together comes with one read.

    Attributes:
        size: bytes of the file.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        self.size: int = source.size()
        self._source = source
        self._start, self._data = 0, b""

    def at(self, offset: int, size: int) -> bytes:
        """The bytes `[offset, offset + size)`.

        Raises:
            ValueError: the file ends before.
        """
        if offset < self._start or offset + size > self._start + len(self._data):
            self._start, self._data = offset, self._source.read_at(max(size, _WINDOW), offset)
        found = self._data[offset - self._start : offset - self._start + size]
        if len(found) < size:
            raise ValueError(f"it ends before byte {offset + size}.")
        return found


def _stream_index(window: Window) -> Index:
    """The messages of a stream, by walking from each to the next: one read a message."""
    size, at = window.size, 0
    found: list[Message] = []
    while at < size:
        message = _message(window, at)
        if message is None:
            at += len(_prefix(window.at(at, min(8, size - at))))
            break
        found.append(message)
        at += message.size
    if at != size:
        raise ValueError(f"its stream ends at byte {at}, where the file has {size}: it is cut, or streams were joined.")
    if not found or found[0].kind != SCHEMA:
        raise ValueError("it does not begin with a schema: it is no Arrow IPC file or stream.")
    return _index(window.at(0, found[0].size), found)


def _index(schema: bytes, found: list[Message]) -> Index:
    dictionaries: list[Message] = []
    batches: list[Message] = []
    needed: list[int] = []
    for message in found[1:]:
        if message.kind == DICTIONARY:
            dictionaries.append(message)
        elif message.kind == BATCH:
            batches.append(message)
            needed.append(len(dictionaries))
        else:
            raise ValueError(f"it has a message of kind {message.kind} at byte {message.offset}: expected batches.")
    return Index(schema, tuple(dictionaries), tuple(batches), tuple(needed))


def _file_index(window: Window) -> Index:
    """The messages that a file's footer lists."""
    size = window.size
    start = max(size - _WINDOW, 0)
    tail = window.at(start, size - start)
    if len(tail) < 18 or not tail.endswith(MAGIC):
        raise ValueError("it begins like an Arrow IPC file, and does not end like one: it is cut.")
    (length,) = struct.unpack_from("<i", tail, len(tail) - 10)
    if not 0 < length <= size - 18:
        raise ValueError(f"its footer of {length} bytes does not fit into its {size} bytes.")
    footer = _root(window.at(size - 10 - length, length))
    schema = _message(window, 8)
    blocks = [_blocks(footer, field) for field in (2, 3)]
    dictionaries, batches = ([_listed(window, *block) for block in listed] for listed in blocks)
    if schema is None or schema.kind != SCHEMA or any(message.kind != BATCH for message in batches):
        raise ValueError("its footer does not fit its messages.")
    content = window.at(schema.offset, schema.size)
    return Index(content, tuple(dictionaries), tuple(batches), (len(dictionaries),) * len(batches))


def _listed(window: Window, offset: int, metadata: int, body: int) -> Message:
    message = _message(window, offset)
    if message is None or (message.metadata, message.body) != (metadata, body):
        raise ValueError(f"its footer does not fit the message at byte {offset}.")
    return message


def _blocks(footer: Table, field: int) -> list[tuple[int, int, int]]:
    """(offset, bytes of metadata, bytes of body) of the messages listed in a field of the footer."""
    return [struct.unpack_from("<qi4xq", footer.data, at) for at in footer.places(field, 24)]


def _message(window: Window, offset: int) -> Message | None:
    """The message at `offset`; None where a stream's end is marked."""
    size = window.size
    head = window.at(offset, min(8, size - offset))
    prefix = len(_prefix(head))
    (length,) = struct.unpack_from("<i", head, prefix - 4)
    if length == 0:
        return None
    if not 0 < length <= size - offset - prefix:
        raise ValueError(f"the message at byte {offset} has {length} bytes of metadata: the file ends, or it is none.")
    table = _root(window.at(offset + prefix, length))
    kind, body = table.number(1, "<B"), table.number(3, "<q")
    if not 0 <= body <= size - offset - prefix - length:
        raise ValueError(f"the message at byte {offset} has a body of {body} bytes, which is not all there.")
    rows = table.table(2).number(0, "<q") if kind == BATCH else 0
    if rows < 0:
        raise ValueError(f"the message at byte {offset} has {rows} rows.")
    return Message(offset, prefix + length, body, kind, rows)


def _prefix(message: bytes) -> bytes:
    """What stands before a message's metadata: their length, since version 0.15 after four bytes of 255."""
    return message[: 8 if message.startswith(b"\xff\xff\xff\xff") else 4]


def buffer_ranges(metadata: bytes) -> list[tuple[int, int]]:
    """(offset in the body, bytes) of each buffer of a record batch, from its message's bytes before the body."""
    batch = _root(metadata[len(_prefix(metadata)) :]).table(2)
    places = batch.places(2, 16)
    return list(struct.iter_unpack("<qq", batch.data[places.start : places.stop]))


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a flatbuffer: numbered fields, of which any may be left out."""

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
            raise ValueError("the metadata points outside of itself.")
        return struct.unpack_from(kind, self.data, at)[0]

    def number(self, field: int, kind: str) -> int:
        """The number in a field, 0 where it is left out."""
        place = self._place(field)
        return 0 if place is None else self._read(kind, place)

    def table(self, field: int) -> Table:
        """The table in a field."""
        place = self._place(field)
        if place is None:
            raise ValueError(f"the metadata has no field {field}.")
        return Table(self.data, place + self._read("<I", place))

    def places(self, field: int, size: int) -> range:
        """Where the structs of `size` bytes in a field begin."""
        place = self._place(field)
        if place is None:
            return range(0)
        start = place + self._read("<I", place)
        count = self._read("<I", start)
        if start + 4 + count * size > len(self.data):
            raise ValueError(f"the metadata lists {count} structs of {size} bytes, and has {len(self.data)} bytes.")
        return range(start + 4, start + 4 + count * size, size)


def _root(data: bytes) -> Table:
    return Table(data, struct.unpack_from("<I", data)[0])
