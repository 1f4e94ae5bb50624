"""`cache=`: a cache of remote files on the local disk, shared by all processes of the node."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice

import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, OptionError, use
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.block_store import block_store
from torch_dataloader_utils.storage.cache_plans import CachePlan
from torch_dataloader_utils.storage.file_locks import AVAILABLE, NEEDED
from torch_dataloader_utils.storage.remote import LONGEST, REMOTE_GAP, Fetch, Range, coalesced, cut

_LOG = logging.getLogger("torch_dataloader_utils")

BLOCK = 1 << 19  # bytes: about one column of a row group
FOOTER = 1 << 16  # bytes: what readers of Parquet and ORC fetch first; planning reads nothing else
# Bytes of the longest request: those of a read without a cache, and the rest of its two outer blocks.
REQUEST = LONGEST + 2 * BLOCK


def prepared(cache: Cache) -> Cache:
    """The cache, with its folder as an absolute path. Creates the folder if needed.

    Raises:
        OptionError: the folder cannot be written to, or by other users too, or belongs to one; or this is Windows.
    """
    if not AVAILABLE:
        raise OptionError(f"cache= {NEEDED} Leave it out, or use WSL.", remedies=[use(cache=None)])
    folder = os.path.abspath(os.path.expanduser(cache.folder))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(f"cache={cache.folder!r}: expected a writable folder on a local disk: {error}") from error
    _check_private(folder)
    return cache.replace(folder=folder)


def _check_private(folder: str) -> None:
    """Check that no other user can change what the folder holds: the rows that are read from it would be theirs."""
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise OptionError(
            f"cache={folder!r} belongs to the user with the number {status.st_uid}, who could change the data in "
            f"it: choose a folder of your own (user {os.geteuid()})."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OptionError(
            f"cache={folder!r}: other users may write to it (its mode is {stat.S_IMODE(status.st_mode):o}) and "
            "could change the data in it: run chmod 700 on it, or choose another folder."
        )


def can_cache(storage_identity: str, file: DataFileInfo) -> bool:
    """Whether the file's size and version are known, so that a changed file is detected; warns once if not."""
    known = bool(file.version) and file.file_size > 0
    if not known:
        _warn_unversioned(storage_identity)
    return known


@functools.cache
def _warn_unversioned(storage_identity: str) -> None:
    _LOG.warning(
        "%s reports no version of its files (an etag or a modification time), so changed files could not be "
        "detected: files without a version are read without the cache.",
        storage_identity,
    )


def block_edges(size: int) -> list[int]:
    """Where the n blocks of a file of `size` bytes begin and end: n + 1 positions from 0 to `size`."""
    if size <= BLOCK:
        return [0, size]
    return [*range(0, size - FOOTER, BLOCK), size - FOOTER, size]


def file_digest(storage_identity: str, file: DataFileInfo) -> str:
    """What the blocks of one version of a file are named by: 32 hex digits that show nothing of it."""
    identity = repr((2, BLOCK, FOOTER, storage_identity, file.path, file.version, file.file_size))
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def cache_plan(storage_identity: str, files: Iterable[DataFileInfo], options: Cache, passes: int | None) -> CachePlan:
    """The plan of a loader that reads these files through the cache; `passes` as for `CachePlan`."""
    folder = os.fspath(options.folder)
    digests = [file_digest(storage_identity, file) for file in files if file.version and file.file_size > 0]
    return CachePlan(folder, digests, passes, block_store(folder, int(options.max_bytes)).attempt)


class CachedRanges:
    """Ranges of one version of a remote file, read from the cache where possible and otherwise from the store.

    Before anything is fetched, it is decided which blocks are kept. These are fetched whole; of the others only what is
    asked for, as without a cache, with the same gaps and in as many requests.

    Args:
        storage_identity: identifies the store: protocol, endpoint, bucket; no secrets.
        file: its size and version are part of each block's key, because other versions have other bytes.
        fetch: reads ranges of that version from the store.
        confirm: checks that what was fetched is of that version.
        options: the folder that keeps blocks, and its size limit.
    """

    def __init__(
        self, storage_identity: str, file: DataFileInfo, fetch: Fetch, confirm: Callable[[], None], options: Cache
    ) -> None:
        self._path = file.path
        self._edges = block_edges(file.file_size)
        self._digest = file_digest(storage_identity, file)
        self._fetch_from_store, self._confirm_at_store = fetch, confirm
        self._confirmed = True
        self._store = block_store(os.fspath(options.folder), int(options.max_bytes))

    def fetch(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """The bytes of each range; blocks that the cache lacks are fetched, and added to it if they fit."""
        stage = recorder().enter("read")
        try:
            return self._fetch(ranges)
        finally:
            recorder().enter(stage)

    def confirm(self) -> None:
        """Check that what came from the store is of the planned version; what is kept was checked before."""
        if not self._confirmed:
            self._confirm_at_store()
            self._confirmed = True

    def _fetch(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        wanted = coalesced(ranges, gap=0)
        spans = coalesced(map(self._whole_blocks, wanted), gap=0)
        buffers = [pa.allocate_buffer(stop - start) for start, stop in spans]
        views = {
            number: memoryview(buffer).cast("B")[self._edges[number] - start : self._edges[number + 1] - start]
            for (start, stop), buffer in zip(spans, buffers, strict=True)
            for number in self._numbers(start, stop)
        }
        missing = [number for number, view in views.items() if not self._store.read(self._key(number), view)]
        if missing:
            self._fill(missing, wanted, views)
        self._count(wanted, views, missing)
        starts = [start for start, _ in spans]
        places = [bisect_right(starts, start) - 1 for start, _ in ranges]
        return [buffers[i].slice(a - starts[i], b - a) for i, (a, b) in zip(places, ranges, strict=True)]

    def _count(self, wanted: Sequence[Range], views: Collection[int], missing: Sequence[int]) -> None:
        absent = sum(stop - start for start, stop in self._parts(missing, wanted))
        noted = recorder()
        noted.count("cache_hits", len(views) - len(missing))
        noted.count("cache_misses", len(missing))
        noted.count("cache_hit_bytes", sum(stop - start for start, stop in wanted) - absent)
        noted.count("cache_miss_bytes", absent)

    def _fill(self, missing: Sequence[int], wanted: Sequence[Range], views: Mapping[int, memoryview]) -> None:
        """Read these blocks (in ascending order) from the store into their views; those that fit go to the cache."""
        keys = {self._key(number): number for number in missing}
        claimed = self._store.claim([(key, len(views[number])) for key, number in keys.items()])
        try:
            self._read_from_store(missing, {keys[key] for key in claimed}, wanted, views)
            self._confirmed = False
            if claimed:
                self.confirm()
            for key in sorted(claimed, key=keys.__getitem__):
                self._store.fill(key, views[keys[key]])
        except BaseException:
            for key in claimed:
                self._store.release(key)
            raise

    def _read_from_store(
        self, missing: Sequence[int], kept: Collection[int], wanted: Sequence[Range], views: Mapping[int, memoryview]
    ) -> None:
        """Read what is wanted of the missing blocks into their views; all of those that are kept."""
        absent = set(missing)
        # A gap is read, as without a cache, unless blocks in it were found.
        runs = [list(numbers) for missed, numbers in groupby(views, absent.__contains__) if missed]
        ranges = [request for run in runs for request in self._requests(run, kept, wanted)]
        for (start, stop), data in zip(ranges, self._fetch_from_store(ranges), strict=True):
            if len(data) != stop - start:
                raise FileReadError(
                    f"{printable(self._path)}: bytes [{start}, {stop}): the store sent {len(data)} bytes."
                )
            sent = memoryview(data).cast("B")
            for number in absent.intersection(self._numbers(start, stop)):
                first = self._edges[number]
                a, b = max(start, first), min(stop, self._edges[number + 1])
                views[number][a - first : b - first] = sent[a - start : b - start]

    def _requests(self, run: Iterable[int], kept: Collection[int], wanted: Sequence[Range]) -> list[Range]:
        """The ranges to ask the store for: as many as without a cache, where nothing is in it."""
        spans = [self._with_kept(span, kept) for span in coalesced(self._parts(run, wanted), REMOTE_GAP)]
        return [request for span in coalesced(spans, gap=0) for request in cut(span, REQUEST)]

    def _with_kept(self, span: Range, kept: Collection[int]) -> Range:
        """The range with the rest of its outer blocks, if these are kept."""
        numbers = self._numbers(*span)
        first, last = numbers[0], numbers[-1]
        return (
            self._edges[first] if first in kept else span[0],
            self._edges[last + 1] if last in kept else span[1],
        )

    def _parts(self, numbers: Iterable[int], wanted: Sequence[Range]) -> Iterator[Range]:
        """What is wanted of these blocks; `wanted` is sorted, and its ranges do not overlap."""
        stops = [stop for _, stop in wanted]
        for number in numbers:
            start, stop = self._edges[number], self._edges[number + 1]
            for a, b in islice(wanted, bisect_right(stops, start), None):
                if a >= stop:
                    break
                yield max(a, start), min(b, stop)

    def _numbers(self, start: int, stop: int) -> range:
        """The blocks that hold bytes of `[start, stop)`."""
        return range(bisect_right(self._edges, start) - 1, bisect_right(self._edges, stop - 1))

    def _whole_blocks(self, span: Range) -> Range:
        numbers = self._numbers(*span)
        return self._edges[numbers.start], self._edges[numbers.stop]

    def _key(self, number: int) -> str:
        return f"{self._digest}-{number}"
