"""Text files, cut into ranges of whole lines by their length alone; shared by CSV and JSON.

A line belongs to the range `[a, b)` of bytes in which it starts. Planning knows no line: the reader of a range looks
for its first and last one, so that nothing but a file's head is read before.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.formats.base import Pruner, keep_all
from torch_dataloader_utils.formats.registry import COMPRESSIONS
from torch_dataloader_utils.formats.text.errors import BadLines, Parser, parsed
from torch_dataloader_utils.formats.text.streams import SharedStream, shared
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.storage import Naming, Storage, printable

RANGE_BYTES = 2 * 2**20
HEAD_BYTES = 2**20
# So much of a stream is parsed at a time.
_PIECE_BYTES = 8 * 2**20
# Decoded bytes for each byte of compressed text.
_EXPANSION = 4
# So much of a remote file is read again to tell a line's number.
_MOST_REMOTE = 64 * 2**20
_MAGIC = {"gzip": b"\x1f\x8b", "bz2": b"BZh", "zstd": b"\x28\xb5\x2f\xfd"}
_BZ2_BLOCK = b"1AY&SY"
_LOOK = 2**16
_LAYOUT_KEY = b"layout"


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How the text of a file is read.

    Attributes:
        size: bytes of the file, as stored; 0 where it is known to hold no row.
        start: where the rows begin: bytes of the (decompressed) text.
        step: bytes of a range, as stored; 0 where the file is one.
        tail: bytes that most lines do not exceed, 0 where unknown.
        names: of the columns, where the file says them once.
        kind: "lines" where rows end at newlines; else what the parser calls it.
        codec: pyarrow's name of the compression, or "".
        encoding: of the text, as Python calls it.
    """

    size: int
    start: int = 0
    step: int = 0
    tail: int = 0
    names: tuple[str, ...] = ()
    kind: str = "lines"
    codec: str = ""
    encoding: str = "utf-8"

    @property
    def streamed(self) -> bool:
        """Whether the text is not in the file as it is: the ranges are then those of a `SharedStream`."""
        return bool(self.codec) or not is_utf8(self.encoding)

    def layout(self) -> FileLayout:
        """The ranges as segments without row counts; their decoded bytes are estimated from those stored."""
        if not self.size:
            return FileLayout((), metadata=self)
        first = 0 if self.streamed else self.start
        borders = pairwise([*range(first, self.size, self.step or self.size), self.size])
        growth = _EXPANSION if self.codec else 1
        segments = (Segment(number, 0, None, (b - a) * growth) for number, (a, b) in enumerate(borders))
        return FileLayout(tuple(segments), sequential=self.streamed, metadata=self)


@dataclass(frozen=True)
class TextFormat:
    """A text format; a `Format`.

    Attributes:
        name: as `format=` spells it.
        options: the `format_options` it takes, with their defaults.
        plan: from path, head, options and the bytes of a range to how a file is read, and the columns that its first
            lines have, with types that these fit.
        parser: from path, plan, options and the columns wanted to a parser and those of the columns that it gives.
        range_bytes: of a segment.
    """

    name: str
    options: Mapping[str, Any] = field(hash=False)
    plan: Callable[[str, Head, Mapping[str, Any], int], tuple[TextPlan, pa.Schema]]
    parser: Callable[[str, TextPlan, Mapping[str, Any], pa.Schema], tuple[Parser, pa.Schema]]
    range_bytes: int = RANGE_BYTES
    segment_name: str = "byte range"
    typed: bool = False
    columnar: bool = False

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """Byte ranges, and the columns of the first lines with types that these fit."""
        chosen = self._chosen(options)
        with Naming(file.path, "text"), storage.open_data(file) as source:
            head = Head(file.path, source, chosen.get("encoding", "utf-8"))
            plan, schema = self.plan(file.path, head, chosen, self.range_bytes)
            return plan.layout(), schema

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> TextReader:
        """A reader of the columns wanted, as the types wanted."""
        chosen = self._chosen(options)
        with Naming(file.path):
            parser, given = self.parser(file.path, layout.metadata, chosen, schema)
            return TextReader(file, layout.metadata, storage, parser, given, chosen["on_bad_lines"] == "skip")

    def _chosen(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = {**self.options, **options}
        if chosen["on_bad_lines"] not in ("error", "skip"):
            raise OptionError(
                f"format_options={{'on_bad_lines': {chosen['on_bad_lines']!r}}}: expected 'error' or 'skip'."
            )
        try:
            is_utf8(chosen.get("encoding", "utf-8"))
        except LookupError as error:
            raise OptionError(f"format_options={{'encoding': {chosen['encoding']!r}}}: Python knows none.") from error
        return chosen

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """Text has no statistics: nothing is dropped."""
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """Text has no statistics: nothing is known."""
        return frozenset()

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """What `layout` returned, as the bytes of an Arrow schema message."""
        return pack(layout, schema)

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """What `pack` was given."""
        return unpack(data)


def pack(layout: FileLayout, schema: pa.Schema) -> bytes:
    """A text file's layout and schema as the bytes of an Arrow schema message."""
    plan = json.dumps(asdict(layout.metadata))
    return bytes(schema.with_metadata({_LAYOUT_KEY: plan}).serialize())


def unpack(data: bytes) -> tuple[FileLayout, pa.Schema]:
    """What `pack` was given.

    Raises:
        ValueError: the bytes are not of `pack`.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        plan = json.loads(schema.metadata[_LAYOUT_KEY])
        made = TextPlan(**{**plan, "names": tuple(plan["names"])})
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise ValueError("these bytes are no layout of a text file") from error
    return made.layout(), schema.remove_metadata()


# ------------------------------------------------------------------------------------------------------------- head


def codec_of(path: str, start: bytes) -> str:
    """The compression, as pyarrow calls it, that the file's suffix or first bytes tell; or ""."""
    suffix = PurePosixPath(path.partition("?")[0]).suffix.lower()
    if suffix in COMPRESSIONS:
        return COMPRESSIONS[suffix]
    found = next((codec for codec, magic in _MAGIC.items() if start.startswith(magic)), "")
    return "" if found == "bz2" and start[4:10] != _BZ2_BLOCK else found


def is_utf8(encoding: str) -> bool:
    """Whether the encoding that Python knows by this name is UTF-8.

    Raises:
        LookupError: there is none.
    """
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def text_stream(source: pa.NativeFile, codec: str, encoding: str) -> pa.NativeFile:
    """The text of a file as a stream of UTF-8."""
    stream = pa.CompressedInputStream(source, codec) if codec else source
    return stream if is_utf8(encoding) else pa.transcoding_input_stream(stream, encoding, "utf-8")


class Head:
    """The first bytes of a text.

    Attributes:
        text: what was read.
        whole: whether that is all.
        size: bytes of the file, as stored.
        codec: its compression, or "".
        start: where the text begins, after a byte order mark.
    """

    def __init__(self, path: str, source: pa.NativeFile, encoding: str = "utf-8") -> None:
        self.size: int = source.size()
        self.codec = codec_of(path, b"")
        self.text, self.whole = b"", False
        self._stream = text_stream(source, self.codec, encoding)
        self.grow()
        if not self.codec and (codec := codec_of(path, self.text)):
            source.seek(0)
            self.codec, self.text, self.whole = codec, b"", False
            self._stream = text_stream(source, codec, encoding)
            self.grow()
        self.start = len(codecs.BOM_UTF8) if self.text.startswith(codecs.BOM_UTF8) else 0

    def grow(self) -> None:
        """Read as much again (the usual amount at first)."""
        goal = 2 * len(self.text) or HEAD_BYTES
        parts = [self.text]
        while (missing := goal - sum(map(len, parts))) > 0:
            parts.append(self._stream.read(missing))
            if not parts[-1]:
                self.whole = True
                break
        self.text = b"".join(parts)

    def lines(self, start: int) -> bytes:
        """The whole lines from byte `start` on."""
        return self.text[start:] if self.whole else self.text[start : self.text.rfind(b"\n") + 1]


def longest_line(text: bytes) -> int:
    """Bytes of the longest line."""
    return max(map(len, text.split(b"\n")), default=0) + 1


# ----------------------------------------------------------------------------------------------------------- reader


class TextReader:
    """An open text file. Used by one thread at a time.

    Attributes:
        schema: the columns that can be asked for, with their types.
    """

    def __init__(
        self, file: DataFileInfo, plan: TextPlan, storage: Storage, parser: Parser, schema: pa.Schema, skip: bool
    ) -> None:
        self._file, self._plan, self._storage, self._parser = file, plan, storage, parser
        self._skip = skip
        self.schema: pa.Schema = schema
        self._source = storage.open_data(file)
        self._stream: SharedStream | None = None
        if plan.streamed and plan.step:
            self._stream = shared((storage.identity, file.path, file.version, plan), self._new_stream)

    def _new_stream(self) -> SharedStream:
        file, plan, storage = self._file, self._plan, self._storage
        return SharedStream(
            lambda: storage.open_data(file),
            lambda source: text_stream(source, plan.codec, plan.encoding),
            plan.start,
            plan.step,
        )

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these ranges; adjacent ones are read and parsed as one."""
        tables = []
        with Naming(self._file.path, "text"):
            for text, offset in self._texts(segment_numbers) if columns else ():
                tables += parsed(self._parser, text, columns, self._bad_lines(offset))
        if not tables:
            return [pa.chunked_array([], self.schema.field(name).type) for name in columns]
        return [
            pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], self.schema.field(name).type)
            for name in columns
        ]

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._source.close()
        if self._stream is not None:
            self._stream.leave()
            self._stream = None

    def _bad_lines(self, offset: int) -> BadLines:
        return BadLines(self._file.path, self._skip, lambda: self._lines_before(offset), offset)

    def _texts(self, numbers: Sequence[int]) -> Iterator[tuple[pa.Buffer, int]]:
        """The text of these ranges, each piece with its place."""
        plan = self._plan
        if not plan.step:
            if numbers:
                yield self._whole(), plan.start
            return
        if self._stream is not None:
            for number in numbers:
                found = self._stream.segment(number)
                if found.text:
                    yield pa.py_buffer(found.text), found.offset
            return
        for first, last in _runs(numbers):
            stop = min(plan.start + last * plan.step, plan.size)
            text, offset = self._lines(plan.start + first * plan.step, stop)
            if text.size:
                yield text, offset

    def _lines(self, start: int, stop: int) -> tuple[pa.Buffer, int]:
        """The lines that start in the bytes `[start, stop)`, and where the first one does."""
        plan = self._plan
        base = start - (start > plan.start)  # a line starts here, if the byte before is a newline
        text = self._bytes(base, min(stop + plan.tail, plan.size))
        begin = 0 if base == start else _after_newline(text, 0)
        if base + begin >= stop or begin < 0:
            return text.slice(0, 0), stop
        end = _after_newline(text, stop - 1 - base)
        step = max(plan.tail, _LOOK)
        while end < 0 and base + text.size < plan.size:
            more = self._bytes(base + text.size, min(base + text.size + step, plan.size))
            text, end, step = _joined(text, more), _after_newline(more, 0, text.size), step * 2
        return text.slice(begin, (text.size if end < 0 else end) - begin), base + begin

    def _bytes(self, start: int, stop: int) -> pa.Buffer:
        self._source.seek(start)
        found = self._source.read_buffer(stop - start)
        if found.size < stop - start:
            raise FileReadError(
                f"{printable(self._file.path)}: ends before byte {stop}, where {self._plan.size} were planned: it has "
                "changed since. Make the loader again."
            )
        return found

    def _whole(self) -> pa.Buffer:
        """The text of a file whose rows are not lines."""
        plan = self._plan
        if self._source.closed:  # with the stream that decompressed it
            self._source = self._storage.open_data(self._file)
        self._source.seek(0)
        stream = text_stream(self._source, plan.codec, plan.encoding)
        stream.read(plan.start)
        return pa.py_buffer(b"".join(iter(lambda: stream.read(_PIECE_BYTES), b"")))

    def _lines_before(self, offset: int) -> int | None:
        """Newlines in the first `offset` bytes of the text: read for the sake of a message, if not too far away."""
        count = 0
        if offset > _MOST_REMOTE and not self._storage.local:
            return None
        with self._storage.open_data(self._file) as source:
            stream = text_stream(source, self._plan.codec, self._plan.encoding)
            while offset and (text := stream.read(min(offset, _PIECE_BYTES))):
                count, offset = count + text.count(b"\n"), offset - len(text)
        return count


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The numbers as half-open runs of consecutive ones."""
    first = last = None
    for number in numbers:
        if first is None or number != last:
            if first is not None and last is not None:
                yield first, last
            first = number
        last = number + 1
    if first is not None and last is not None:
        yield first, last


def _after_newline(text: pa.Buffer, start: int, base: int = 0) -> int:
    """The place after the first newline at or after `start`, counted from `-base`; -1 if there is none."""
    for at in range(start, text.size, _LOOK):
        place: int = text.slice(at, min(_LOOK, text.size - at)).to_pybytes().find(b"\n")
        if place >= 0:
            return base + at + place + 1
    return -1


def _joined(a: pa.Buffer, b: pa.Buffer) -> pa.Buffer:
    return pa.py_buffer(b"".join([a, b]))
