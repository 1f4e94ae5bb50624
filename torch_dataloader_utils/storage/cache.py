"""`cache_dir=`: a cache of remote files on the local disk, shared by all processes of the node."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage.cache_store import block_store
from torch_dataloader_utils.storage.errors import printable
from torch_dataloader_utils.storage.remote import Fetch, Range, coalesced
from torch_dataloader_utils.units import parse_bytes

_LOG = logging.getLogger("torch_dataloader_utils")
_LEAST = 1 << 24  # bytes: a smaller cache could not hold what a few threads read at once

BLOCK = 1 << 19  # bytes: about one column of a row group
FOOTER = 1 << 16  # bytes: what readers of Parquet and ORC fetch first; planning reads nothing else
REQUEST = 1 << 24  # bytes: the largest request; smaller ones would wait for the store more often


@dataclass(frozen=True)
class CacheOptions:
    """A folder for blocks of remote files, and its size limit in bytes."""

    folder: str
    size_bytes: int


def cache_options(cache_dir: str | os.PathLike[str] | None, cache_bytes: int | str = "10GiB") -> CacheOptions | None:
    """The checked options of a cache, or None without a folder. Creates the folder if needed.

    Raises:
        OptionError: the folder cannot be written to, or by other users too, or belongs to one; or `cache_bytes` is not
            a size or is too small.
    """
    size = parse_bytes(cache_bytes, "cache_bytes")
    if cache_dir is None:
        return None
    if size < _LEAST:
        raise OptionError(f"cache_bytes={cache_bytes!r}: expected at least 16 MiB.")
    folder = os.path.abspath(os.path.expanduser(cache_dir))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(
            f"cache_dir={os.fspath(cache_dir)!r}: expected a writable folder on a local disk: {error}"
        ) from error
    _check_private(folder)
    return CacheOptions(folder, size)


def _check_private(folder: str) -> None:
    """Check that no other user can change what the folder holds: the rows that are read from it would be theirs."""
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise OptionError(
            f"cache_dir={folder!r} belongs to the user with the number {status.st_uid}, who could change the data in "
            f"it: choose a folder of your own (user {os.geteuid()})."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OptionError(
            f"cache_dir={folder!r}: other users may write to it (its mode is {stat.S_IMODE(status.st_mode):o}) and "
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


class CachedRanges:
    """Ranges of one version of a remote file, read from the cache where possible and otherwise from the store.

    Args:
        storage_identity: identifies the store: protocol, endpoint, bucket; no secrets.
        file: its size and version are part of each block's key, because other versions have other bytes.
        fetch: reads ranges of that version from the store.
        options: the folder that keeps blocks, and its size limit.
    """

    def __init__(self, storage_identity: str, file: DataFileInfo, fetch: Fetch, options: CacheOptions) -> None:
        self._path = file.path
        self._edges = block_edges(file.file_size)
        identity = repr((2, BLOCK, FOOTER, storage_identity, file.path, file.version, file.file_size))
        self._digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self._fetch_from_store = fetch
        self._store = block_store(options.folder, options.size_bytes)

    def fetch(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """The bytes of each range; blocks that the cache lacks are fetched and added to it."""
        stage = recorder().enter("read")
        try:
            return self._fetch(ranges)
        finally:
            recorder().enter(stage)

    def _fetch(self, ranges: Sequence[Range]) -> list[pa.Buffer]:
        spans = coalesced(map(self._whole_blocks, ranges), gap=0)
        buffers = [pa.allocate_buffer(stop - start) for start, stop in spans]
        views = {
            number: memoryview(buffer).cast("B")[self._edges[number] - start : self._edges[number + 1] - start]
            for (start, stop), buffer in zip(spans, buffers, strict=True)
            for number in self._numbers(start, stop)
        }
        missing = [number for number, view in views.items() if not self._store.read(self._key(number), view)]
        recorder().count("cache_hits", len(views) - len(missing))
        if missing:
            self._fill(missing, views)
        starts = [start for start, _ in spans]
        places = [bisect_right(starts, start) - 1 for start, _ in ranges]
        return [buffers[i].slice(a - starts[i], b - a) for i, (a, b) in zip(places, ranges, strict=True)]

    def _fill(self, missing: Sequence[int], views: dict[int, memoryview]) -> None:
        """Read these blocks (in ascending order) from the store into their views and the cache."""
        runs = self._runs(missing)
        ranges = [(self._edges[run[0]], self._edges[run[-1] + 1]) for run in runs]
        for run, (start, stop), data in zip(runs, ranges, self._fetch_from_store(ranges), strict=True):
            if len(data) != stop - start:
                raise FileReadError(
                    f"{printable(self._path)}: bytes [{start}, {stop}): the store sent {len(data)} bytes."
                )
            sent = memoryview(data).cast("B")
            for number in run:
                views[number][:] = sent[self._edges[number] - start : self._edges[number + 1] - start]
                self._store.put(self._key(number), views[number])
        recorder().count("cache_misses", len(missing))

    def _runs(self, numbers: Sequence[int]) -> list[list[int]]:
        """The blocks (in ascending order) grouped into requests: adjacent blocks, up to `REQUEST` bytes each."""
        runs: list[list[int]] = []
        for n in numbers:
            if runs and n == runs[-1][-1] + 1 and self._edges[n + 1] - self._edges[runs[-1][0]] <= REQUEST:
                runs[-1].append(n)
            else:
                runs.append([n])
        return runs

    def _numbers(self, start: int, stop: int) -> range:
        """The blocks that hold bytes of `[start, stop)`."""
        return range(bisect_right(self._edges, start) - 1, bisect_right(self._edges, stop - 1))

    def _whole_blocks(self, span: Range) -> Range:
        numbers = self._numbers(*span)
        return self._edges[numbers.start], self._edges[numbers.stop]

    def _key(self, number: int) -> str:
        return f"{self._digest}-{number}"
