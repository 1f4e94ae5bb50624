"""The plan for reading the text of a file, based on its first bytes.

A line belongs to the byte range `[a, b)` in which it starts. Planning does not locate lines: the reader of a range
finds its first and last line, so planning reads only a file's head.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

import pyarrow as pa

from torch_dataloader_utils.formats.registry import COMPRESSIONS
from torch_dataloader_utils.formats.text.limits import MOST_LINE_BYTES, long_line
from torch_dataloader_utils.model import FileLayout, Segment

# Text has no types: they are guessed from so many first bytes of each file, merged once over all files, and every range
# is read as them.
HEAD_BYTES = 2**20
# Estimated decoded bytes per byte of compressed text.
_EXPANSION = 4
# From this expansion on, text is cut by its own bytes: planning has to decompress it for that.
_MOST_EXPANSION = 16
_MAGIC = {"gzip": b"\x1f\x8b", "bz2": b"BZh", "zstd": b"\x28\xb5\x2f\xfd"}
_BZ2_BLOCK = b"1AY&SY"


@dataclass(frozen=True, slots=True)
class TextPlan:
    """The plan for reading the text of a file.

    Attributes:
        size: stored bytes of the file; 0 if it is known to have no rows.
        start: the offset of the first row in the (decompressed) text, in bytes.
        step: stored bytes of a range; 0 if the file is a single range.
        tail: a length in bytes that most lines do not exceed; 0 if unknown.
        names: the columns' names, if the file declares them once.
        kind: "lines" if rows end at newlines; otherwise the parser's name for the arrangement.
        codec: pyarrow's name of the compression, or "".
        encoding: Python's name of the text's encoding.
        text: bytes of the text, if it is much larger than the file: then `step` is bytes of text, too; otherwise 0.
    """

    size: int
    start: int = 0
    step: int = 0
    tail: int = 0
    names: tuple[str, ...] = ()
    kind: str = "lines"
    codec: str = ""
    encoding: str = "utf-8"
    text: int = 0

    @property
    def streamed(self) -> bool:
        """Whether the file must be decompressed or transcoded: if so, the ranges are those of a `SharedStream`."""
        return bool(self.codec) or not is_utf8(self.encoding)

    def layout(self) -> FileLayout:
        """The ranges as segments without row counts; their decoded bytes are estimated from the stored bytes."""
        if not self.size:
            return FileLayout((), metadata=self)
        first = 0 if self.streamed and not self.text else self.start
        stop = self.text or self.size
        borders = pairwise([*range(first, stop, self.step or stop), stop])
        growth = _EXPANSION if self.codec and not self.text else 1
        segments = (Segment(number, 0, None, (b - a) * growth) for number, (a, b) in enumerate(borders))
        return FileLayout(tuple(segments), sequential=self.streamed, metadata=self)

    def cut(self, head: Head) -> TextPlan:
        """The plan, cut by bytes of text if the file expands to very much text, which is counted here."""
        if not (self.codec and self.step and self.size) or head.expansion < _MOST_EXPANSION:
            return self
        text = head.length()
        return replace(self, text=text, step=self.step * _EXPANSION) if text > self.start else self


def codec_of(path: str, start: bytes) -> str:
    """The compression's name in pyarrow, inferred from the file's suffix or first bytes; or ""."""
    suffix = PurePosixPath(path.partition("?")[0]).suffix.lower()
    if suffix in COMPRESSIONS:
        return COMPRESSIONS[suffix]
    name = next((codec for codec, magic in _MAGIC.items() if start.startswith(magic)), "")
    return "" if name == "bz2" and start[4:10] != _BZ2_BLOCK else name


def is_utf8(encoding: str) -> bool:
    """Whether the encoding with this name in Python is UTF-8.

    Raises:
        LookupError: Python has no such encoding.
    """
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii")


def text_stream(source: pa.NativeFile, codec: str, encoding: str) -> pa.NativeFile:
    """The text of a file as a UTF-8 stream."""
    stream = decompressed(source, codec) if codec else source
    return stream if is_utf8(encoding) else pa.transcoding_input_stream(stream, encoding, "utf-8")


def decompressed(source: pa.NativeFile, codec: str) -> pa.NativeFile:
    """The content of a compressed file as a stream."""
    if codec == "gzip":
        return pa.PythonFile(_Gzip(source), "r")
    return pa.CompressedInputStream(source, codec)


class _Gzip:
    """The content of a gzip file, in which zeros may follow a member, as tapes and block devices pad files.

    pyarrow takes them for the next member. What it decodes before that is kept, and Python decodes the rest, from the
    beginning of the file.
    """

    closed = False

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._stream = pa.CompressedInputStream(source, "gzip")
        self._done = 0  # bytes returned
        self._padded: gzip.GzipFile | None = None

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        if self._padded is not None:
            return self._padded.read(size)
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            if type(error) is not OSError or error.errno is not None:
                raise  # of the store
            return self._rest(size, error)
        self._done += len(data)
        return data

    def _rest(self, size: int, error: OSError) -> bytes:
        """Up to `size` bytes after those that were returned, by Python.

        Raises:
            OSError: `error`, if Python cannot decode them either.
        """
        self._source.seek(0)
        padded = gzip.GzipFile(fileobj=self._source, mode="rb")
        try:
            padded.seek(self._done)
            data = padded.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise error from None
        self._padded = padded
        return data

    def close(self) -> None:
        """Does nothing: the file is closed by whoever opened it."""


class Head:
    """The first bytes of a text.

    Args:
        path: of the file.
        source: the file, open.
        encoding: Python's name of the text's encoding.
        most_line: the maximum bytes of a line.

    Attributes:
        text: the bytes read so far.
        whole: whether that is the whole text.
        size: stored bytes of the file.
        codec: its compression, or "".
        start: the offset of the text, after a byte order mark.
    """

    def __init__(
        self, path: str, source: pa.NativeFile, encoding: str = "utf-8", most_line: int = MOST_LINE_BYTES
    ) -> None:
        self.size: int = source.size()
        self._path, self._source, self._most_line = path, source, most_line
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
        """Double the text (or read `HEAD_BYTES` at first), because it does not contain a whole row.

        Raises:
            FileReadError: the row exceeds the limit of a line.
        """
        if len(self.text) > self._most_line + HEAD_BYTES:
            line = self.text.count(b"\n", 0, self.text.rfind(b"\n", 0, HEAD_BYTES) + 1) + 1
            raise long_line(self._path, f"line {line}", self._most_line)
        goal = min(2 * len(self.text), self._most_line + 2 * HEAD_BYTES) or HEAD_BYTES
        parts = [self.text]
        while (missing := goal - sum(map(len, parts))) > 0:
            parts.append(self._stream.read(missing))
            if not parts[-1]:
                self.whole = True
                break
        self.text = b"".join(parts)

    @property
    def expansion(self) -> float:
        """Bytes of text per stored byte; 0 if the text is so short that it does not matter."""
        if self.whole:
            return 0.0
        return len(self.text) / (self.size if self._source.closed else self._source.tell())

    def length(self) -> int:
        """The bytes of the whole text; reads and drops the rest, so that the head cannot grow any more."""
        return len(self.text) + sum(map(len, iter(lambda: self._stream.read(HEAD_BYTES), b"")))

    def lines(self, start: int) -> bytes:
        """The complete lines from byte `start` on."""
        return self.text[start:] if self.whole else self.text[start : self.text.rfind(b"\n") + 1]


def longest_line(text: bytes) -> int:
    """The length of the longest line in bytes, including its newline."""
    return max(map(len, text.split(b"\n")), default=0) + 1
