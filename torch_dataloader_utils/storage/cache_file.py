"""A remote file read through a local cache of its blocks."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.metrics import CACHE_HITS, CACHE_MISSES, COUNTS
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage.errors import printable
from torch_dataloader_utils.storage.remote import Range

if TYPE_CHECKING:
    from torch_dataloader_utils.storage.cache_store import BlockStore

# Reads ranges of the file at a path from its store, several in flight.
ReadRanges: TypeAlias = Callable[[str, Sequence[Range]], list[bytes]]

BLOCK = 1 << 19  # bytes: about a column of a row group
FOOTER = 1 << 16  # bytes: what readers of Parquet and ORC ask for first; planning reads nothing else
AHEAD = 16  # blocks that reading on fetches ahead at most: a request's latency passes for 8 MiB at once
REQUEST = 1 << 24  # bytes of one request at most: more and smaller ones would wait for the store more often


def block_edges(size: int) -> list[int]:
    """Where the blocks of a file of `size` bytes begin and end: n + 1 positions from 0 to `size`."""
    if size <= BLOCK:
        return [0, size]
    return [*range(0, size - FOOTER, BLOCK), size - FOOTER, size]


class CachedObject:
    """The bytes of one version of a remote file, as a Python file that pyarrow reads from. Used by a thread at a time.

    Blocks come from memory (what `prefetch` has just fetched), from the cache, or from the store: neighbouring blocks
    by one request, requests of one call in flight together.
    """

    def __init__(self, identity: str, file: DataFileInfo, read_ranges: ReadRanges, store: BlockStore) -> None:
        self.closed = False
        self._path = file.path
        self._edges = block_edges(file.file_size)
        said = repr((1, BLOCK, FOOTER, identity, file.path, file.version, file.file_size))
        self._digest = hashlib.sha256(said.encode()).hexdigest()[:32]
        self._read_ranges = read_ranges
        self._store = store
        self._fetched: Mapping[int, memoryview] = {}
        self._at = 0
        self._last = -1  # where the last read ended
        self._ahead = 0  # blocks
        # A block of which a part was read last: the next read mostly asks for the rest.
        self._held, self._buffer = -1, memoryview(bytearray(min(max(BLOCK, FOOTER), file.file_size)))

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Bring what is not in the cache of these bytes, all requests in flight together, and drop what came before."""
        numbers = {number for start, stop in ranges for number in self._numbers(start, stop)}
        self._fetched = self._fetch(self._absent(sorted(numbers)))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """The next `size` bytes, or those up to the end, in a buffer of their own."""
        end = self._edges[-1]
        start, stop = self._at, end if size < 0 else min(self._at + size, end)
        buffer = pa.allocate_buffer(max(0, stop - start))
        if start < stop:
            self._fill(start, stop, memoryview(buffer).cast("B"))
            self._at = self._last = stop
        return buffer

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or those up to the end."""
        return bytes(self.read_buffer(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        """The new position: `offset` from the start (0), from here (1) or from the end (2)."""
        self._at = offset + (0, self._at, self._edges[-1])[whence]
        return self._at

    def tell(self) -> int:
        """The position of the next read."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Drop what was fetched."""
        self.closed = True
        self._fetched = {}

    def _numbers(self, start: int, stop: int) -> range:
        """The blocks that hold bytes of `[start, stop)`."""
        return range(bisect_right(self._edges, start) - 1, bisect_right(self._edges, stop - 1))

    def _key(self, number: int) -> str:
        return f"{self._digest}-{number}"

    def _fill(self, start: int, stop: int, into: memoryview) -> None:
        parts = {n: self._part(n, start, stop) for n in self._numbers(start, stop)}
        views = {n: into[first - start : last - start] for n, (first, last) in parts.items()}
        left = [n for n in parts if not self._copy(n, parts[n][0], views[n])]
        if left:  # not looked for yet, or evicted and perhaps fetched again by others
            self._store.find(map(self._key, left))
            left = [n for n in left if not self._copy(n, parts[n][0], views[n])]
        following = self._following(start, stop) if left else []
        blocks = self._fetch(left + following)
        if following:
            self._fetched = blocks
        for n in left:
            views[n][:] = self._cut(n, blocks[n], *parts[n])

    def _following(self, start: int, stop: int) -> list[int]:
        """The blocks to fetch with those of `[start, stop)`: the more, the longer reads have followed one another."""
        self._ahead = min(max(2, 2 * self._ahead), AHEAD) if start == self._last else 0
        after = self._numbers(start, stop).stop
        return self._absent(range(after, min(after + self._ahead, len(self._edges) - 1)))

    def _absent(self, numbers: Sequence[int]) -> list[int]:
        """Those of the blocks that the cache lacks."""
        here = self._store.find(map(self._key, numbers))
        return [number for number in numbers if self._key(number) not in here]

    def _part(self, number: int, start: int, stop: int) -> Range:
        """The bytes of `[start, stop)` that lie in the block."""
        return max(start, self._edges[number]), min(stop, self._edges[number + 1])

    def _cut(self, number: int, block: memoryview, first: int, last: int) -> memoryview:
        return block[first - self._edges[number] : last - self._edges[number]]

    def _copy(self, number: int, first: int, into: memoryview) -> bool:
        """Whether `into` now holds the bytes from position `first`: the block was in memory or in the cache."""
        block = self._fetched.get(number)
        if block is None and number != self._held:
            begin, end = self._edges[number : number + 2]
            whole = len(into) == end - begin
            block = into if whole else self._buffer[: end - begin]
            self._held = -1 if whole else number
            if not self._store.read(self._key(number), block):
                self._held = -1
                return False
            COUNTS.add(CACHE_HITS)
            if whole:
                return True
        into[:] = self._cut(number, self._buffer if block is None else block, first, first + len(into))
        return True

    def _fetch(self, numbers: Sequence[int]) -> dict[int, memoryview]:
        """These blocks (in ascending order) from the store, by number; kept in the cache from now on."""
        if not numbers:
            return {}
        runs = list(self._runs(numbers))
        ranges = [(self._edges[run[0]], self._edges[run[-1] + 1]) for run in runs]
        blocks: dict[int, memoryview] = {}
        for run, (start, stop), data in zip(runs, ranges, self._read_ranges(self._path, ranges), strict=True):
            if len(data) != stop - start:
                raise FileReadError(
                    f"{printable(self._path)}: bytes [{start}, {stop}): the store sent {len(data)} bytes."
                )
            view = memoryview(data)
            fetched = {n: view[self._edges[n] - start : self._edges[n + 1] - start] for n in run}
            self._store.put({self._key(n): block for n, block in fetched.items()})
            blocks |= fetched
        COUNTS.add(CACHE_MISSES, len(blocks))
        return blocks

    def _runs(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """The blocks (in ascending order) by request: neighbours, up to `REQUEST` bytes."""
        run: list[int] = []
        for n in numbers:
            if run and (n != run[-1] + 1 or self._edges[n + 1] - self._edges[run[0]] > REQUEST):
                yield run
                run = []
            run.append(n)
        yield run


class CachedFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """A `CachedObject` as pyarrow's readers take it.

    pyarrow asks one range at a time of a Python file, whatever it buffers ahead: only `prefetch` has several requests
    in flight.
    """

    def __init__(self, source: CachedObject, mode: str = "r") -> None:
        self._source = source

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Fetch what the cache lacks of these ranges `[start, stop)`; until the next call, reads need no request."""
        self._source.prefetch(ranges)
