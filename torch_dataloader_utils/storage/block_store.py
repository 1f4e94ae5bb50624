"""Blocks of remote files in a folder of the local disk, which all processes of a node share: first come, first kept.

A block is a file of its own, complete once it is renamed. When the folder is full, nothing of use goes, and what does
not fit is not written: a pass reads each block once, so it can hit no more than lay there when it began, whatever goes
instead.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from torch_dataloader_utils.storage.cache_plans import kept_since
from torch_dataloader_utils.storage.file_locks import locked
from torch_dataloader_utils.storage.locks import ForkLock

# Why not a library: diskcache verifies no checksums and keeps what killed writers leave behind, and its SQLite
# connections must not be open while a process forks; fsspec's caches have no size limit.

_BUSY = 5.0  # seconds to wait while another process counts or evicts
_PAUSE, _LONGEST_PAUSE = 30.0, 3600.0  # seconds to leave the folder alone after it failed; doubled each time
_RECOUNT_EVERY = 3600.0  # seconds between counts of the folder, which find what killed processes left behind
_ABANDONED = 600.0  # seconds after which a file without its final name counts as abandoned
_IDLE = 3600.0  # seconds without a use after which a block may go, if no running loader reads its file
_TOUCH = 60.0  # seconds: uses within them count as one
_LOOK, _LONGEST_LOOK = 60.0, 3600.0  # seconds between looks for what may go, if there was nothing
_LOOKING = 0.01  # the most of the time that is spent on such looks
_SHARE = 16  # what may go leaves at least 1 / _SHARE of the limit free, so that it is rarely looked for
_SEAL = 8  # bytes of the checksum at the end of a block's file
_COUNT = struct.Struct("<qdd")  # of `_Count`
_CREATING = ForkLock()
_NAME = re.compile(r"(?P<file>[0-9a-f]{32})-\d+(?P<unfinished>\.[0-9a-f]+)?\.block")
_LOG = logging.getLogger("torch_dataloader_utils")


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A block in the folder.

    Attributes:
        used: when it was used last, in seconds since 1970, to `_TOUCH`.
        size: bytes on disk.
        path: of the block's file.
        file: the digest of the remote file whose block it is.
        unfinished: whether it lacks its final name: it is being written, or its writer was killed.
    """

    used: float
    size: int
    path: str
    file: str
    unfinished: bool = False


@dataclass(slots=True)
class _Count:
    """What the folder holds, as its processes tell each other: bytes; the times in seconds since 1970.

    Attributes:
        total: bytes, with those of blocks that are being written.
        counted: when they were counted.
        look: when to look again for what may go, if the folder is full.
    """

    total: int = 0
    counted: float = 0.0
    look: float = 0.0


class BlockStore:
    """The blocks in `folder`, at most `size_bytes` in all; may be used by any number of threads and processes.

    To keep a block, claim it before it is fetched, and fill it then. Disk errors are never raised: a block that cannot
    be read counts as missing, one that cannot be written is not kept, and a WARNING reports it once.
    """

    def __init__(self, folder: str, size_bytes: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self._resume, self._pause = 0.0, _PAUSE
        self._warned: set[str] = set()
        self.attempt(self._shrink)  # the limit may have been larger before

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
        intact = size == len(into) + _SEAL and seal[:_SEAL] == seal_of(key, into)
        if not intact:
            self._warn("damage", f"{path} is damaged and is fetched again")
            with suppress(OSError):
                os.unlink(path)
        return intact

    def claim(self, blocks: Sequence[tuple[str, int]]) -> set[str]:
        """Those of some missing blocks, given as (key, bytes), that this caller keeps: it fills or releases each.

        The others do not fit, or another thread or process keeps them.
        """
        claimed: set[str] = set()
        self.attempt(lambda: self._claim(blocks, claimed))
        return claimed

    def fill(self, key: str, block: memoryview) -> None:
        """Write a claimed block, if the disk allows it."""
        try:
            self.attempt(lambda: self._fill(key, block))
        finally:
            self.release(key)  # it is still there if the disk failed

    def release(self, key: str) -> None:
        """Give up a claimed block, unless it was filled."""
        with suppress(OSError):
            os.unlink(self._unfinished(key))

    def attempt(self, work: Callable[[], None]) -> None:
        """Do `work`, unless the folder failed a moment ago; an error of the disk is a WARNING."""
        if time.monotonic() < self._resume:
            return
        try:
            work()
            self._pause = _PAUSE
        except OSError as error:
            self._resume = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._warn("disk", f"cannot write blocks there: {type(error).__name__}: {error}")

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key[:2], f"{key}.block")

    def _unfinished(self, key: str) -> str:
        """Where a block is written: the same for all, so that one of them writes it."""
        return os.path.join(self.folder, key[:2], f"{key}.0.block")

    def _claim(self, blocks: Sequence[tuple[str, int]], claimed: set[str]) -> None:
        missing = [(key, size + _SEAL) for key, size in blocks if not os.path.lexists(self._path(key))]
        if not missing:
            return
        with self._counted() as count:
            needed = sum(size for _, size in missing)
            if count.total + needed > self.size_bytes and not 0 <= count.look - time.time() <= _LONGEST_LOOK:
                self._count_again(count, needed)
            for key, size in missing:
                if count.total + size > self.size_bytes:
                    break  # the first blocks, not those that just fit: what is read together is kept together
                if _create(self._unfinished(key), size):
                    claimed.add(key)
                    count.total += size

    def _fill(self, key: str, block: memoryview) -> None:
        unfinished = self._unfinished(key)
        with suppress(FileNotFoundError):  # it took so long that it counted as abandoned, or the folder was removed
            with open(os.open(unfinished, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
                file.write(block)
                file.write(seal_of(key, block))
            with self._locked():  # a listing may miss a file that is renamed meanwhile, and count too few bytes
                os.replace(unfinished, self._path(key))

    def _shrink(self) -> None:
        with self._counted() as count:
            if count.total > self.size_bytes:
                self._count_again(count, shrink=True)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file of the count, for this thread alone: nobody else counts, claims or renames blocks."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)  # it may have been removed
        with locked(os.path.join(self.folder, "count"), most=_BUSY, look=0.001) as descriptor:
            yield descriptor

    @contextmanager
    def _counted(self) -> Iterator[_Count]:
        """The count, for this thread alone, and as it leaves it for the next one."""
        with self._locked() as descriptor:
            data = os.pread(descriptor, _COUNT.size, 0)
            count = _Count(*_COUNT.unpack(data)) if len(data) == _COUNT.size else _Count()
            if count.total < 0 or not 0 <= time.time() - count.counted < _RECOUNT_EVERY:
                self._count_again(count)
            try:
                yield count
            finally:
                os.pwrite(descriptor, _COUNT.pack(count.total, count.counted, count.look), 0)

    def _count_again(self, count: _Count, more: int = 0, *, shrink: bool = False) -> None:
        """Count what is in the folder, and make room if `more` bytes do not fit; with `shrink`, whatever must go."""
        began = time.time()
        files = list(_block_files(self.folder))
        going = [file for file in files if file.unfinished and began - file.used > _ABANDONED]
        count.total = sum(file.size for file in files) - sum(file.size for file in going)
        over = count.total + more - self.size_bytes
        if over > 0:
            blocks = [file for file in files if not file.unfinished]
            wanted, needed = max(over, self.size_bytes // _SHARE), over if shrink else 0
            left = leaving(blocks, wanted, needed, kept_since(self.folder), began)
            count.total -= sum(file.size for file in left)
            going += left
            pause = min(max(_LOOK, (time.time() - began) / _LOOKING), _LONGEST_LOOK)
            count.look = 0.0 if left else began + pause
        for file in going:
            with suppress(FileNotFoundError):
                os.unlink(file.path)
        count.counted = began

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


def leaving(
    blocks: Sequence[BlockFile], wanted: int, needed: int, since: Mapping[str, float], now: float
) -> list[BlockFile]:
    """The blocks that go to make room, oldest use first.

    A block may go if running loaders read its file, and it was not used since the time that all of them give for it; or
    if none does, and nobody used it for an hour.

    Args:
        blocks: those in the folder.
        wanted: bytes of room; of blocks that may go, so many go.
        needed: bytes that must go, even if they are of use.
        since: of each file that running loaders read, the time since when its blocks are of use, in seconds since 1970.
        now: the time.
    """
    # A time in the future is one of a clock that was wrong: nothing is known of such a block.
    by_use = sorted((block.used if block.used <= now + _TOUCH else 0.0, i) for i, block in enumerate(blocks))
    useless: list[BlockFile] = []
    useful: list[BlockFile] = []
    for used, i in by_use:
        (useless if used < since.get(blocks[i].file, now - _IDLE) else useful).append(blocks[i])
    going = _first(useless, max(wanted, needed))
    return going + _first(useful, needed - sum(block.size for block in going))


def _first(blocks: Sequence[BlockFile], size: int) -> list[BlockFile]:
    """The first of the blocks that have so many bytes together; all if they have fewer."""
    before = accumulate((block.size for block in blocks), initial=0)
    return [block for block, smaller in zip(blocks, before, strict=False) if smaller < size]


def checksum_of(data: memoryview) -> int:
    """The sum of the data's 64-bit words, as a signed word: it detects every change of a single word.

    It is faster than memory (zlib's crc32 is not, on most machines), so every read can afford to verify it.
    """
    whole = len(data) // 8 * 8
    words = np.frombuffer(data[:whole], "<i8")
    rest = np.frombuffer(bytes(data[whole:]).ljust(8, b"\0"), "<i8")
    return int((words.sum(keepdims=True) + rest)[0])  # an array's sum wraps around without a warning


def seal_of(key: str, block: memoryview) -> bytes:
    """The checksum of a block and its key: neither zeros nor another block's bytes match it."""
    mark = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=_SEAL).digest(), "little")
    return ((checksum_of(block) + mark) % (1 << 8 * _SEAL)).to_bytes(_SEAL, "little")


def _read(path: str, into: Sequence[memoryview | bytearray]) -> int:
    """The number of bytes read from a block's file, which counts as used; links are not followed, pipes not awaited."""
    _reject_link(os.path.dirname(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if abs(time.time() - os.fstat(descriptor).st_mtime) > _TOUCH:
            with suppress(OSError):  # a disk that can only be read
                os.utime(descriptor)
        return os.readv(descriptor, into)
    finally:
        os.close(descriptor)


def _create(path: str, size: int) -> bool:
    """Create an unfinished file with its full size, which others then count; False if another process has done so."""
    _make_folder(os.path.dirname(path))
    try:
        descriptor = _created(path)
    except FileExistsError:
        if time.time() - os.lstat(path).st_mtime <= _ABANDONED:
            return False
        os.unlink(path)
        descriptor = _created(path)
    try:
        os.truncate(descriptor, size)
    finally:
        os.close(descriptor)
    return True


def _created(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


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


def _block_files(folder: str) -> Iterator[BlockFile]:
    """The blocks in the folder, with those that are being written."""
    for below in os.scandir(folder):
        if len(below.name) == 2 and below.is_dir(follow_symlinks=False):
            for entry in os.scandir(below):
                match = _NAME.fullmatch(entry.name)
                if match:
                    with suppress(FileNotFoundError):  # renamed meanwhile
                        facts, unfinished = entry.stat(follow_symlinks=False), match["unfinished"] is not None
                        yield BlockFile(facts.st_mtime, facts.st_size, entry.path, match["file"], unfinished)
