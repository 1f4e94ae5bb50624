"""The plan for reading the text of a file, based on its first bytes.

A line belongs to the byte range `[a, b)` in which it starts. Planning does not locate lines: the reader of a range
finds its first and last line, so planning reads only a file's head.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

import pyarrow as pa

from torch_dataloader_utils.formats.registry import COMPRESSIONS
from torch_dataloader_utils.model import FileLayout, Segment

HEAD_BYTES = 2**20
# Estimated decoded bytes per byte of compressed text.
_EXPANSION = 4
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
        """Whether the file must be decompressed or transcoded: if so, the ranges are those of a `SharedStream`."""
        return bool(self.codec) or not is_utf8(self.encoding)

    def layout(self) -> FileLayout:
        """The ranges as segments without row counts; their decoded bytes are estimated from the stored bytes."""
        if not self.size:
            return FileLayout((), metadata=self)
        first = 0 if self.streamed else self.start
        borders = pairwise([*range(first, self.size, self.step or self.size), self.size])
        growth = _EXPANSION if self.codec else 1
        segments = (Segment(number, 0, None, (b - a) * growth) for number, (a, b) in enumerate(borders))
        return FileLayout(tuple(segments), sequential=self.streamed, metadata=self)


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
    stream = pa.CompressedInputStream(source, codec) if codec else source
    return stream if is_utf8(encoding) else pa.transcoding_input_stream(stream, encoding, "utf-8")


class Head:
    """The first bytes of a text.

    Attributes:
        text: the bytes read so far.
        whole: whether that is the whole text.
        size: stored bytes of the file.
        codec: its compression, or "".
        start: the offset of the text, after a byte order mark.
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
        """Double the text (or read `HEAD_BYTES` at first)."""
        goal = 2 * len(self.text) or HEAD_BYTES
        parts = [self.text]
        while (missing := goal - sum(map(len, parts))) > 0:
            parts.append(self._stream.read(missing))
            if not parts[-1]:
                self.whole = True
                break
        self.text = b"".join(parts)

    def lines(self, start: int) -> bytes:
        """The complete lines from byte `start` on."""
        return self.text[start:] if self.whole else self.text[start : self.text.rfind(b"\n") + 1]


def longest_line(text: bytes) -> int:
    """The length of the longest line in bytes, including its newline."""
    return max(map(len, text.split(b"\n")), default=0) + 1
