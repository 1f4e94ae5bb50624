"""Files of remote stores as pyarrow reads them: ranges are prefetched and joined into few requests.

Retries, short reads and the cache work per range of bytes, below the decoders, which see a file. So a decoder runs
once, a truncated body costs one more request, and a damaged file fails at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa

from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.storage.errors import Naming
from torch_dataloader_utils.storage.local_files import LocalFile

Range: TypeAlias = tuple[int, int]  # [start, stop), bytes of a file
# Reads ranges of one file; may be called by several threads at once.
Fetch: TypeAlias = Callable[[Sequence[Range]], Sequence["bytes | pa.Buffer"]]

# Gaps up to this size are read, not skipped: that many bytes are transferred within a request's latency (tens of ms).
REMOTE_GAP = 1 << 20
# The longest range of a request: longer ones are split, so that several requests are in flight.
LONGEST = 16 << 20
# Readahead of sequential reads, in bytes: least and most.
_AHEAD_LEAST, _AHEAD_MOST = 1 << 20, 8 << 20


@dataclass(slots=True)
class _Block:
    """Prefetched bytes.

    Attributes:
        start: their position in the file.
        data: the bytes.
        wanted: how many of them are still expected to be read; at 0, the block is dropped.
    """

    start: int
    data: pa.Buffer
    wanted: int

    @property
    def stop(self) -> int:
        return self.start + int(self.data.size)


class RangeFile:
    """The Python side of a `RemoteFile`: a position, and prefetched blocks. For one thread at a time."""

    def __init__(
        self,
        path: str,
        size: int,
        fetch: Fetch,
        close: Callable[[], None],
        confirm: Callable[[], None] = lambda: None,
        gap: int = REMOTE_GAP,
    ) -> None:
        self.path = path
        self.size = size
        self.closed = False
        self._fetch = fetch
        self._close = close
        self._confirm = confirm
        self._confirmed = True
        self._gap = gap  # bytes: gaps up to this size between ranges are fetched with them
        self._at = 0
        self._last = -1  # where the last read ended
        self._ahead = 0  # bytes of readahead
        self._blocks: list[_Block] = []

    def confirm(self) -> None:
        """Check that the file has not changed, if anything was fetched since the last check."""
        if not self._confirmed:
            with Naming(self.path):
                self._confirm()
            self._confirmed = True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """The new position: counted from the start (0), from here (1) or from the end (2)."""
        self._at = position + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def close(self) -> None:
        """Close the file and release what was fetched."""
        if not self.closed:
            self.closed = True
            self._blocks.clear()
            self._close()

    def read(self, count: int = -1) -> bytes:
        """The next `count` bytes, or those up to the end."""
        return self.read_buffer(count).to_pybytes()  # type: ignore[no-any-return]

    def read_buffer(self, count: int = -1) -> pa.Buffer:
        """The next `count` bytes, or those up to the end; without a copy if all are in one block."""
        start, stop = self._at, self.size if count < 0 else min(self._at + count, self.size)
        parts = []
        while start < stop:
            block = self._block(start) or self._read_on(start, stop)
            part = block.data.slice(start - block.start, min(stop, block.stop) - start)
            parts.append(part)
            start += part.size
            self._spend(block, part.size)
        self._at = self._last = max(self._at, stop)
        return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))

    def prefetch(self, ranges: Sequence[Range], keep: bool = False) -> None:
        """Fetch the missing ranges in few requests; if there are any, blocks outside of all ranges are dropped."""
        wanted = [(start, min(stop, self.size)) for start, stop in ranges if start < min(stop, self.size)]
        missing = [span for span in wanted if not self._at_hand(*span)]
        if wanted and not missing:
            return
        self._blocks = [block for block in self._blocks if any(_shared(block, span) for span in wanted)]
        pieces = [piece for joined in coalesced(missing, self._gap) for piece in cut(joined, LONGEST)]
        for (start, _), data in zip(pieces, self._get(pieces), strict=True):
            block = _Block(start, pa.py_buffer(data), 0)
            block.wanted = sys.maxsize if keep else sum(_shared(block, span) for span in missing)
            self._blocks.append(block)

    def peek(self, start: int, count: int) -> bytes:
        """Those of so many bytes that are at hand, which are not fetched, and will be read once more."""
        block = self._block(start)
        return b"" if block is None else block.data.slice(start - block.start, count).to_pybytes()

    def put_back(self, start: int, data: pa.Buffer) -> None:
        """Hold bytes that were read, which will be read once more."""
        self._blocks.append(_Block(start, data, int(data.size)))

    def _at_hand(self, start: int, stop: int) -> bool:
        while start < stop:
            block = self._block(start)
            if block is None:
                return False
            start = block.stop
        return True

    def _block(self, position: int) -> _Block | None:
        return next((block for block in self._blocks if block.start <= position < block.stop), None)

    def _spend(self, block: _Block, count: int) -> None:
        block.wanted -= count
        if block.wanted <= 0 and block in self._blocks:
            self._blocks.remove(block)

    def _read_on(self, start: int, stop: int) -> _Block:
        """A new block from `start` to `stop` or to the next block, with readahead if reads are sequential."""
        end = min([stop, *(block.start for block in self._blocks if block.start > start)])
        if start != self._last:
            self._ahead = 0
        else:
            self._ahead = min(max(2 * self._ahead, _AHEAD_LEAST), _AHEAD_MOST)
            if not self._blocks:
                end = min(max(end, start + self._ahead), self.size)
        pieces = self._get(list(cut((start, end), LONGEST)))
        data = pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        block = _Block(start, data, data.size)
        if end > stop:
            self._blocks.append(block)
        return block

    def _get(self, ranges: Sequence[Range]) -> Sequence[bytes | pa.Buffer]:
        if not ranges:
            return ()  # nothing new to confirm
        self._confirmed = True  # a store that does not answer now is not asked for a confirmation
        with Naming(self.path):
            parts = self._fetch(ranges)
        self._confirmed = False
        return parts


class RemoteFile(pa.PythonFile):  # type: ignore[misc]
    """A file of a remote store as pyarrow reads it; `prefetch` announces what will be read next.

    In a `with` block, an error in decoding the bytes becomes a `FileChangedError` if the size is not the planned one.
    """

    def __init__(self, handle: RangeFile, mode: str) -> None:
        self._ranges = handle

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            # Our own errors are not about the bytes, and a store that does not answer is not asked again.
            if isinstance(error, Exception) and not isinstance(error, DataLoaderUtilsError):
                self._ranges.confirm()
        finally:
            self.close()

    def prefetch(self, ranges: Sequence[Range], keep: bool = False) -> None:
        """Fetch these ranges `[start, stop)` at once, so that reading them needs no request.

        They are held until they have been read once (longer if `keep`), or until the next call.
        """
        self._ranges.prefetch(ranges, keep)

    def buffer(self, start: int, length: int) -> pa.Buffer:
        """So many bytes of the file, or those up to its end; without a copy if they were fetched together."""
        self._ranges.seek(start)
        return self._ranges.read_buffer(length)

    def peek(self, start: int, count: int) -> bytes:
        """Those of so many bytes that are at hand, which are not fetched, and will be read once more."""
        return self._ranges.peek(start, count)

    def put_back(self, start: int, data: pa.Buffer) -> None:
        """Hold bytes that `buffer` read, for another decoder."""
        self._ranges.put_back(start, data)

    def confirm(self) -> None:
        """Check that the file is the one that was planned, unless nothing was fetched since the last check.

        Raises:
            FileChangedError: it is another one.
        """
        self._ranges.confirm()


def prefetch(source: pa.NativeFile, ranges: Sequence[Range]) -> None:
    """Announce which ranges `[start, stop)` of an open file are read next: a remote file fetches them all at once."""
    if isinstance(source, pa.PythonFile) and hasattr(source, "prefetch"):
        source.prefetch(ranges)


def confirm_unchanged(source: pa.NativeFile) -> None:
    """Check that the file is still as planned, and all that was read of it, if the storage opened it to be read.

    Raises:
        FileChangedError: it has changed.
    """
    if isinstance(source, (LocalFile, RemoteFile)):
        source.confirm()


def coalesced(ranges: Iterable[Range], gap: int) -> list[Range]:
    """The ranges, sorted and without empty ones; those with at most `gap` bytes between them are joined."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if start == stop:
            continue
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _shared(block: _Block, span: Range) -> int:
    """How many bytes of the block lie in the range."""
    return max(0, min(block.stop, span[1]) - max(block.start, span[0]))


def cut(span: Range, longest: int) -> Iterator[Range]:
    """A range in equal parts, none of more bytes than `longest`."""
    start, stop = span
    count = max(1, -(-(stop - start) // longest))
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return pairwise(edges)
