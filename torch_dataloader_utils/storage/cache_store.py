"""Blocks of remote files in a folder that all processes of a node share: one file each, complete once it is renamed.

Why not a library: diskcache verifies no checksums and keeps what killed writers leave behind, and its SQLite
connections must not be open while a process forks; fsspec's caches have no size limit.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

from torch_dataloader_utils.storage.locks import ForkLock

_LOG = logging.getLogger("torch_dataloader_utils")

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
        for written, size, path, unfinished in files:
            if time.time() - written > _ABANDONED if unfinished else total > least:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size
        return total

    def _warn(self, kind: str, message: str) -> None:
        """Log a WARNING, once per process and kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("cache_dir=%r: %s. Reading continues from the store if necessary.", self.folder, message)


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
