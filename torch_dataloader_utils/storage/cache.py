"""`cache=`: a cache of remote files on the local disk, shared by all processes of the node."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import re
import stat
import struct
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.remote import Fetch, Range, coalesced

# Blocks of remote files in a folder that all processes of a node share: one file each, complete once it is renamed.
#
# Why not a library: diskcache verifies no checksums and keeps what killed writers leave behind, and its SQLite
# connections must not be open while a process forks; fsspec's caches have no size limit.

_BUSY = 5.0  # seconds to wait while another process counts or evicts
_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0  # seconds to leave the folder alone after it failed; doubled each time
_RECOUNT_EVERY = 3600.0  # seconds between counts of the folder, which find what killed processes left behind
_ABANDONED = 600.0  # seconds after which a file without its final name counts as abandoned
_SHARE = 16  # eviction leaves 1 / _SHARE of the limit free, so that it is rarely needed
_SEAL = 8  # bytes of the checksum at the end of a block's file
_COUNT = struct.Struct("<qd")  # bytes in the folder, and when they were counted, in seconds since 1970
_CREATING = ForkLock()
_NAME = re.compile(r"[0-9a-f]{32}-\d+(?P<unfinished>\.[0-9a-f]+)?\.block")


class BlockStore:
    """The blocks in `folder`, at most `size_bytes` in all; may be used by any number of threads and processes.

    Disk errors are never raised: a block that cannot be read counts as missing, one that cannot be written is not kept,
    and a WARNING reports it once. Reads write nothing, so eviction is first in, first out: tracking the last use would
    not help a pass over more data than fits.
    """

    def __init__(self, folder: str, size_bytes: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self._resume, self._pause = 0.0, _PAUSE
        self._warned: set[str] = set()
        self._attempt(lambda: self._admit(0, lambda: None))  # the limit may have been larger before

    def read(self, key: str, into: memoryview) -> bool:
        """Whether the block was read into `into`, which has the block's length."""
        path, seal = self._path(key), bytearray(_SEAL + 1)
        try:
            size = _read(path, [into, seal])
        except FileNotFoundError:
            return False
        except OSError as error:
            self._warn("disk", f"cannot read a block there: {error}")
            return False
        intact = size == len(into) + _SEAL and seal[:_SEAL] == _seal(key, into)
        if not intact:
            self._warn("damage", f"{path} is damaged and is fetched again")
        return intact

    def put(self, key: str, block: memoryview) -> None:
        """Store the block if the disk allows it."""
        self._attempt(lambda: self._write(key, block))

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key[:2], f"{key}.block")

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do `work`, unless the folder failed a moment ago."""
        if time.monotonic() < self._resume:
            return
        try:
            work()
            self._pause = _PAUSE
        except OSError as error:
            self._resume = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._warn("disk", f"cannot write blocks there: {type(error).__name__}: {error}")

    def _write(self, key: str, block: memoryview) -> None:
        path, size = self._path(key), len(block) + _SEAL
        unfinished = f"{path.removesuffix('.block')}.{os.urandom(8).hex()}.block"
        _make_folder(os.path.dirname(path))
        try:
            with open(unfinished, "xb") as file:
                self._admit(size, lambda: file.truncate(size))  # others that count now see its full size
                file.write(block)
                file.write(_seal(key, block))
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def _admit(self, size: int, take: Callable[[], object]) -> None:
        """Evict what `size` more bytes in the folder require, then claim them by calling `take`."""
        with _locked(os.path.join(self.folder, "count")) as descriptor:
            data = os.pread(descriptor, _COUNT.size, 0)
            total, counted_at = _COUNT.unpack(data) if len(data) == _COUNT.size else (0, 0.0)
            if total + size > self.size_bytes or not 0 <= time.time() - counted_at < _RECOUNT_EVERY:
                total, counted_at = self._evict(self.size_bytes - size), time.time()
            take()
            os.pwrite(descriptor, _COUNT.pack(total + size, counted_at), 0)

    def _evict(self, limit: int) -> int:
        """The bytes in the folder, counted again; evicts the oldest blocks if there are more than `limit`."""
        files = sorted(_block_files(self.folder))
        total = sum(size for _, size, _, _ in files)
        least = total if total <= limit else min(limit, self.size_bytes - self.size_bytes // _SHARE)
        for written, size, file, unfinished in files:
            if time.time() - written > _ABANDONED if unfinished else total > least:
                with suppress(FileNotFoundError):
                    os.unlink(file)
                total -= size
        return total

    def _warn(self, kind: str, message: str) -> None:
        """Log a WARNING, once per process and kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("cache=%r: %s. Reading continues from the store if necessary.", self.folder, message)


def block_store(folder: str, size_bytes: int) -> BlockStore:
    """This process's store for the folder."""
    with _CREATING:  # threads that begin together share one: each store waits for the folder's lock, and warns, once
        return _block_store(folder, size_bytes)


@cache
def _block_store(folder: str, size_bytes: int) -> BlockStore:
    return BlockStore(folder, size_bytes)


def checksum_of(data: memoryview) -> int:
    """The sum of the data's 64-bit words, as a signed word: it detects every change of a single word.

    It is faster than memory (zlib's crc32 is not, on most machines), so every read can afford to verify it.
    """
    whole = len(data) // 8 * 8
    words = np.frombuffer(data[:whole], "<i8")
    rest = np.frombuffer(bytes(data[whole:]).ljust(8, b"\0"), "<i8")
    return int((words.sum(keepdims=True) + rest)[0])  # an array's sum wraps around without a warning


def _seal(key: str, block: memoryview) -> bytes:
    """The checksum of a block and its key: neither zeros nor another block's bytes match it."""
    mark = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=_SEAL).digest(), "little")
    return ((checksum_of(block) + mark) % (1 << 8 * _SEAL)).to_bytes(_SEAL, "little")


def _read(path: str, into: Sequence[memoryview | bytearray]) -> int:
    """The number of bytes read from a block's file; links are not followed, and pipes not waited for."""
    _reject_link(os.path.dirname(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.readv(descriptor, into)
    finally:
        os.close(descriptor)


def _make_folder(path: str) -> None:
    """Make the folder unless it exists.

    Raises:
        NotADirectoryError: it is a link.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    _reject_link(path)


def _reject_link(path: str) -> None:
    """Check that a folder is no link, behind which nothing may be read or written."""
    if os.path.islink(path):
        raise NotADirectoryError(f"{path} is a link: remove it")


def _block_files(folder: str) -> Iterator[tuple[float, int, str, bool]]:
    """Per block: when it was last written (seconds since 1970), bytes, path, whether it lacks its final name."""
    for below in os.scandir(folder):
        if len(below.name) == 2 and below.is_dir(follow_symlinks=False):
            for entry in os.scandir(below):
                match = _NAME.fullmatch(entry.name)
                if match:
                    with suppress(FileNotFoundError):  # renamed meanwhile
                        facts = entry.stat()
                        yield facts.st_mtime, facts.st_size, entry.path, match["unfinished"] is not None


@contextmanager
def _locked(path: str) -> Iterator[int]:
    """A descriptor of the file (created if needed), locked against all other threads and processes.

    Raises:
        TimeoutError: another process has held the lock for too long; it may be suspended.
    """
    descriptor, end = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), time.monotonic() + _BUSY
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"another process has held {path} for {_BUSY:.0f} s; it may be suspended"
                    ) from None
            time.sleep(0.001)
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave the lock with a child forked meanwhile
        os.close(descriptor)


_LOG = logging.getLogger("torch_dataloader_utils")

BLOCK = 1 << 19  # bytes: about one column of a row group
FOOTER = 1 << 16  # bytes: what readers of Parquet and ORC fetch first; planning reads nothing else
REQUEST = 1 << 24  # bytes: the largest request; smaller ones would wait for the store more often


def prepared(cache: Cache) -> Cache:
    """The cache, with its folder as an absolute path. Creates the folder if needed.

    Raises:
        OptionError: the folder cannot be written to, or by other users too, or belongs to one.
    """
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


class CachedRanges:
    """Ranges of one version of a remote file, read from the cache where possible and otherwise from the store.

    Args:
        storage_identity: identifies the store: protocol, endpoint, bucket; no secrets.
        file: its size and version are part of each block's key, because other versions have other bytes.
        fetch: reads ranges of that version from the store.
        options: the folder that keeps blocks, and its size limit.
    """

    def __init__(self, storage_identity: str, file: DataFileInfo, fetch: Fetch, options: Cache) -> None:
        self._path = file.path
        self._edges = block_edges(file.file_size)
        identity = repr((2, BLOCK, FOOTER, storage_identity, file.path, file.version, file.file_size))
        self._digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self._fetch_from_store = fetch
        self._store = block_store(os.fspath(options.folder), int(options.max_bytes))

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
