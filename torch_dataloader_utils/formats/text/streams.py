"""Compressed text in segments: one stream that the threads of a process share, cut by compressed bytes.

The length of a compressed file's text is unknown until it is read, but its stored size is known. Segment k is the text
that the decompressor returns while it consumes the compressed bytes `[k * step, (k + 1) * step)`. If these expand to
very much text, the segments after it take what is too much. Files that expand so from their beginning are counted when
they are planned: then segment k is the text from byte `k * step` of the rows on.

So a file is one split of many segments, and memory does not grow with it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from torch_dataloader_utils.formats.text.limits import LongLine
from torch_dataloader_utils.storage import confirm_unchanged
from torch_dataloader_utils.storage.locks import ForkLock

# Text is read from the decompressor in pieces of this many bytes, each of which belongs to one segment.
_PIECE_BYTES = 2**20
# Text of a segment, if others come after it; and at most.
_FULL_BYTES, _MOST_BYTES = 2**26, 2**30


@dataclass(frozen=True, slots=True)
class StreamSegment:
    """Whole lines.

    Attributes:
        text: UTF-8.
        offset: offset of its first byte in the file's text.
    """

    text: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a stream is cut into segments.

    Attributes:
        start: bytes of the text before the first row.
        step: compressed bytes of a segment, or bytes of text.
        by_text: whether `step` is in bytes of text.
        count: the number of segments.
        most_line: the maximum bytes of a line.
    """

    start: int
    step: int
    by_text: bool
    count: int
    most_line: int


class SharedStream:
    """The lines of one file by segment; decompresses once if its readers request segments roughly in order.

    Args:
        open_source: opens the file.
        decoded: converts the open file to a stream of its text.
        cuts: where segments begin.
    """

    def __init__(
        self,
        open_source: Callable[[], pa.NativeFile],
        decoded: Callable[[pa.NativeFile], pa.NativeFile],
        cuts: Cuts,
    ) -> None:
        self._open_source, self._decoded, self._cuts = open_source, decoded, cuts
        self._lock = threading.Lock()
        self._source: pa.NativeFile | None = None
        self._readers = 0
        self._waiting: OrderedDict[int, StreamSegment] = OrderedDict()

    def segment(self, number: int) -> StreamSegment:
        """The lines that start in segment `number`."""
        with self._lock:
            if number in self._waiting:
                return self._waiting.pop(number)
            if self._source is None or number < self._next:
                self._restart()
            while True:
                segment, at = self._take(), self._next - 1
                if at == number:
                    return segment
                # Another reader may request it: only the last few are kept.
                self._waiting[at] = segment
                while len(self._waiting) >= max(self._readers, 1):
                    self._waiting.popitem(last=False)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        with self._lock:
            if self._source is not None:
                confirm_unchanged(self._source)

    def join(self) -> None:
        """Add a reader."""
        with self._lock:
            self._readers += 1

    def leave(self) -> None:
        """Remove a reader; the last one closes the file."""
        with self._lock:
            self._readers -= 1
            if self._readers == 0:
                self._close()

    def _close(self) -> None:
        self._waiting.clear()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _restart(self) -> None:
        self._close()
        self._source = self._open_source()
        self._stream = self._decoded(self._source)
        self._stream.read(self._cuts.start)
        self._next, self._offset, self._pulled = 0, self._cuts.start, 0
        self._piece, self._place = b"", 0
        self._pull()

    def _pull(self) -> None:
        """Read the next piece, and determine the segment that it belongs to."""
        assert self._source is not None
        self._pulled += len(self._piece)
        self._piece = self._stream.read(_PIECE_BYTES)
        if self._piece:
            self._place = min(max(self._place, self._reached()), self._cuts.count - 1)

    def _reached(self) -> int:
        """The segment of the piece just read."""
        assert self._source is not None
        if self._cuts.by_text:
            return self._pulled // self._cuts.step
        if self._source.closed:  # a stream closes its file when it has read it to the end
            return self._place
        fed: int = self._source.tell()
        return (fed - 1) // self._cuts.step

    def _take(self) -> StreamSegment:
        """The lines that start in the next segment; the last one may end in a later segment."""
        parts = self._parts()
        ended = sum(map(len, parts))
        while parts and self._piece and not parts[-1].endswith(b"\n"):
            end = self._piece.find(b"\n") + 1
            parts.append(self._piece[: end or None])
            self._rest(end)
            if sum(map(len, parts)) - ended > self._cuts.most_line:
                raise LongLine(self._offset + b"".join(parts)[:ended].rfind(b"\n") + 1)
        segment = StreamSegment(b"".join(parts), self._offset)
        self._offset += len(segment.text)
        self._next += 1
        return segment

    def _parts(self) -> list[bytes]:
        """The pieces that begin in the next segment."""
        parts: list[bytes] = []
        size, last = 0, self._next == self._cuts.count - 1
        while self._piece and self._place == self._next:
            if size >= _FULL_BYTES and not last:
                self._place += 1
                break
            if size >= _MOST_BYTES:
                raise ValueError(
                    f"the last {self._cuts.step} bytes of the file decompress to more than {_MOST_BYTES} bytes, far "
                    "more than those before. Split the file, or compress it in parts."
                )
            parts.append(self._piece)
            size += len(self._piece)
            self._pull()
        return parts

    def _rest(self, end: int) -> None:
        """Drop the first `end` bytes of the piece, or the whole piece if that is 0."""
        dropped = end or len(self._piece)
        self._piece, kept = self._piece[:dropped], self._piece[dropped:]
        if not kept:
            self._pull()
            return
        self._pulled, self._piece = self._pulled + dropped, kept


_OPEN: weakref.WeakValueDictionary[object, SharedStream] = weakref.WeakValueDictionary()
_OPEN_LOCK = ForkLock()


def shared(key: object, make: Callable[[], SharedStream]) -> SharedStream:
    """This process's stream with that key, with one more reader; created if it is not open."""
    of_process = os.getpid(), key  # a forked child would move the place at which its parent reads the file
    with _OPEN_LOCK:
        stream = _OPEN.get(of_process)
        if stream is None:
            stream = _OPEN[of_process] = make()
    stream.join()
    return stream
