"""Reads ranges of a text file: the whole lines that start in each range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.base import Reader
from torch_dataloader_utils.formats.text.errors import BadLines, Parser, parsed
from torch_dataloader_utils.formats.text.limits import LongLine, first_long_row, long_line
from torch_dataloader_utils.formats.text.plan import TextPlan, text_stream
from torch_dataloader_utils.formats.text.streams import Cuts, SharedStream, shared
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Decoding, Storage

# Bytes per read of a stream.
_PIECE_BYTES = 8 * 2**20
# Maximum bytes of a remote file that are read again to determine a line number.
_MOST_REMOTE = 64 * 2**20
_LOOK = 2**16
# Maximum bytes of a compressed text that is a single range.
_MOST_WHOLE = 2**31


class TextReader(Reader):
    """An open text file."""

    def __init__(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
        parser: Parser,
    ) -> None:
        super().__init__(file, layout, storage, options, schema)
        self.schema = schema
        self._file, self._storage, self._parser = file, storage, parser
        self._plan: TextPlan = self.metadata
        self._skip = options["on_bad_lines"] == "skip"
        self._most_line: int = options["max_line_bytes"]
        self._stream: SharedStream | None = None
        if self._plan.streamed and self._plan.step:
            key = (storage.identity, file.path, file.version, self._plan, self._most_line)
            self._stream = shared(key, self._new_stream)

    def _new_stream(self) -> SharedStream:
        file, plan, storage = self._file, self._plan, self._storage
        return SharedStream(
            lambda: storage.open_data(file),
            lambda source: text_stream(source, plan.codec, plan.encoding),
            Cuts(plan.start, plan.step, bool(plan.text), len(plan.layout().segments), self._most_line),
        )

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these ranges; adjacent ranges are read and parsed together."""
        tables = []
        with Decoding(self.path, "text"):
            try:
                for text, offset in self._texts(segment_numbers) if columns else ():
                    tables += self._parsed(text, offset, columns)
            except LongLine as error:
                raise self._long_line(error.offset) from error
        return [
            pa.chunked_array([chunk for table in tables for chunk in table[name].chunks], self.schema.field(name).type)
            for name in columns
        ]

    def confirm(self) -> None:
        """Check that the file is still as planned, and the stream's."""
        super().confirm()
        if self._stream is not None:
            self._stream.confirm()

    def close(self) -> None:
        """Close the file, and the stream if this was its last reader."""
        super().close()
        if self._stream is not None:
            self._stream.leave()
            self._stream = None

    def _parsed(self, text: pa.Buffer, offset: int, columns: Sequence[str]) -> list[pa.Table]:
        """The rows of a piece of text that begins at this offset."""
        try:
            if (row := first_long_row(self._plan.kind, text, self._most_line)) is not None:
                raise LongLine(row)
            bad_lines = BadLines(self.path, self._skip, partial(self._lines_before, offset), offset)
            return parsed(self._parser, text, columns, bad_lines)
        except LongLine as error:
            raise LongLine(offset + error.offset) from error
        finally:
            if self._plan.text:
                # Besides the rows, parsing needs as much memory again, which the allocator would keep.
                pa.default_memory_pool().release_unused()

    def _long_line(self, offset: int) -> FileReadError:
        """The error for a row that begins at this offset and exceeds the limit."""
        before = self._lines_before(offset)
        where = f"the row at byte {offset}" if before is None else f"line {before + 1}"
        return long_line(self.path, where, self._most_line)

    def _texts(self, numbers: Sequence[int]) -> Iterator[tuple[pa.Buffer, int]]:
        """The text of these ranges, each piece with its offset."""
        plan = self._plan
        if not plan.step:
            if numbers:
                yield self._whole(), plan.start
        elif self._stream is not None:
            segments = (self._stream.segment(number) for number in numbers)
            yield from ((pa.py_buffer(segment.text), segment.offset) for segment in segments if segment.text)
        else:
            for first, last in _runs(numbers):
                stop = min(plan.start + last * plan.step, plan.size)
                text, offset = self._lines(plan.start + first * plan.step, stop)
                if text.size:
                    yield text, offset

    def _lines(self, start: int, stop: int) -> tuple[pa.Buffer, int]:
        """The lines that start in the bytes `[start, stop)`, and the offset of the first one."""
        plan = self._plan
        base = start - (start > plan.start)  # a line starts at `start` if the byte before is a newline
        text = self._bytes(base, min(stop + plan.tail, plan.size))
        begin = 0 if base == start else _after_newline(text, 0)
        if base + begin >= stop or begin < 0:
            return text.slice(0, 0), stop
        end = _after_newline(text, stop - 1 - base)
        step = max(plan.tail, _LOOK)
        while end < 0 and base + text.size < plan.size:
            room = self._most_line + 1 - (base + text.size - stop)
            if room <= 0:
                raise LongLine(base + text.slice(0, stop - base).to_pybytes().rfind(b"\n") + 1)
            more = self._bytes(base + text.size, min(base + text.size + min(step, room), plan.size))
            joined = pa.py_buffer(b"".join([text, more]))
            text, end, step = joined, _after_newline(more, 0, text.size), step * 2
        return text.slice(begin, (text.size if end < 0 else end) - begin), base + begin

    def _bytes(self, start: int, stop: int) -> pa.Buffer:
        self.source.seek(start)
        content = self.source.read_buffer(stop - start)
        if content.size < stop - start:
            raise FileReadError(
                f"{printable(self.path)}: ends before byte {stop}, but {self._plan.size} bytes were planned: it has "
                "changed since. Create the loader again."
            )
        return content

    def _whole(self) -> pa.Buffer:
        """The text of a file whose rows are not lines."""
        plan = self._plan
        if self.source.closed:  # the decompressing stream closed it
            self.source = self._storage.open_data(self._file)
        self.source.seek(0)
        stream = text_stream(self.source, plan.codec, plan.encoding)
        stream.read(plan.start)
        parts, size = [], 0
        while part := stream.read(_PIECE_BYTES):
            parts.append(part)
            size += len(part)
            if plan.codec and size > _MOST_WHOLE:
                raise ValueError(
                    f"it decompresses to more than {_MOST_WHOLE} bytes, which would be read as one piece: use JSON "
                    "Lines, or CSV without newlines in values, or split it."
                )
        return pa.py_buffer(b"".join(parts))

    def _lines_before(self, offset: int) -> int | None:
        """The number of newlines in the first `offset` bytes of the text, for a message; None if too far to read."""
        count = 0
        if offset > _MOST_REMOTE and not self._storage.local:
            return None
        with self._storage.open_data(self._file) as source:
            stream = text_stream(source, self._plan.codec, self._plan.encoding)
            while offset and (text := stream.read(min(offset, _PIECE_BYTES))):
                count, offset = count + text.count(b"\n"), offset - len(text)
        return count


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of consecutive numbers."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1] + 1


def _after_newline(text: pa.Buffer, start: int, base: int = 0) -> int:
    """The position after the first newline at or after `start`, plus `base`; -1 if there is none."""
    for at in range(start, text.size, _LOOK):
        place: int = text.slice(at, min(_LOOK, text.size - at)).to_pybytes().find(b"\n")
        if place >= 0:
            return base + at + place + 1
    return -1
