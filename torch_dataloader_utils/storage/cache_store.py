"""Blocks of remote files, kept in a folder that all processes of a node share: diskcache, with its failures contained.

diskcache writes a block to a file of its own and names it in an SQLite table once the file is complete, so a process
killed at any moment leaves no half block behind, only a file that no row names (`_sweep` removes those). This module
adds what a cache under training needs: no SQLite connection is ever open while the process forks, what is read is
checked, and a disk that fails or is full costs speed, never data.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import diskcache
import numpy as np
from diskcache.core import MODE_BINARY

Place: TypeAlias = tuple[str, int]  # the path of a block's file, and its checksum

_LOG = logging.getLogger(__name__)

_BUSY = 5.0  # seconds to wait for another process's write
_PAUSE = 30.0  # seconds without further tries after the folder failed
_SWEEP_EVERY = 3600.0  # seconds between two searches for files that killed processes left
_YOUNG = 600.0  # seconds for which a file that no row names may still be being written
_KNOWN = 200_000  # blocks whose place is remembered, some 200 bytes each
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]+-\d+\.[0-9a-f]+\.block")

# Held while this process uses SQLite. A child that inherits an open connection takes SQLite's locks for its own and may
# corrupt the table, so a fork waits for its turn, and finds no connection open.
_GATE = threading.RLock()


@dataclass(frozen=True)
class _Block:
    """A block in its file, on its way into the table.

    Attributes:
        key: of the block.
        folder: of the cache.
        name: of the file, below `folder`.
        size: bytes.
        checksum: as `checksum_of` has it.
    """

    key: str
    folder: str
    name: str
    size: int
    checksum: int

    @property
    def path(self) -> str:
        """The file's full path."""
        return os.path.join(self.folder, self.name)


class _BlockDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Takes files that are written already, so that SQLite need not wait for them."""

    def store(self, value: _Block, read: bool, key: Any = None) -> tuple[int, int, str, None]:
        """What the table says of a block: its size, that it lies in a file, and in which."""
        return value.size, MODE_BINARY, value.name, None

    def remove(self, file_path: str) -> None:
        """Remove a block's file, but not its folder: another process may be about to write there."""
        with suppress(OSError):
            os.unlink(os.path.join(self._directory, file_path))


class BlockStore:
    """The blocks in `folder`, at most `size_bytes` of them; used by any number of threads and processes.

    Nothing here raises for what the disk does: a block that cannot be read is not there, one that cannot be written is
    not kept, and one WARNING says so.
    """

    def __init__(self, folder: str, size_bytes: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self._cache: Any = None
        # The last connection to close folds SQLite's log into its table, which waits for the disk: this one stays open.
        self._anchor: sqlite3.Connection | None = None
        self._known: dict[str, Place] = {}
        self._resume = {"read": 0.0, "write": 0.0}
        self._warned: set[str] = set()

    def find(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys whose blocks are here."""
        keys = list(keys)
        unknown = [key for key in keys if key not in self._known]
        if unknown:
            if len(self._known) > _KNOWN:
                self._known.clear()
            self._attempt("read", lambda: self._look_up(unknown))
        return {key for key in keys if key in self._known}

    def read(self, key: str, into: memoryview) -> bool:
        """Whether `into`, as long as the block, now holds a block that `find` has found."""
        place, good = self._known.get(key), False
        if place is None:
            return False
        path, checksum = place
        try:
            with open(path, "rb", buffering=0) as file:
                good = file.readinto(into) == len(into) and not file.read(1) and checksum_of(into) == checksum
            if not good:
                self._warn("damage", f"{path} is damaged and is fetched again")
        except FileNotFoundError:
            _LOG.debug("%s was evicted", path)
        except OSError as error:
            self._warn("disk", f"cannot read a block there: {error}")
        if not good:
            self._known.pop(key, None)
        return good

    def put(self, blocks: Mapping[str, memoryview]) -> None:
        """Keep these blocks, as far as the disk lets."""
        self._attempt("write", lambda: self._keep(blocks))

    def disconnect(self) -> None:
        """Close the connection to the table; the next call opens another."""
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()

    def _attempt(self, kind: str, work: Callable[[], None]) -> None:
        """Do `work`, unless that has failed a moment ago."""
        if time.monotonic() < self._resume[kind]:
            return
        try:
            work()
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            self._resume[kind] = time.monotonic() + _PAUSE
            self._warn("disk", f"cannot {kind} blocks there: {type(error).__name__}: {error}")

    def _look_up(self, keys: Iterable[str]) -> None:
        with _GATE, self._connect() as cache:
            for key in keys:
                file, checksum = cache.get(key, default=None, read=True, tag=True)
                if file is not None:
                    self._known[key] = (file.name, checksum)
                    file.close()

    def _keep(self, blocks: Mapping[str, memoryview]) -> None:
        written: list[_Block] = []
        try:
            written.extend(_write(self.folder, key, data) for key, data in blocks.items())
            with _GATE, self._connect() as cache:
                while written:
                    block = written[-1]
                    cache.set(block.key, block, tag=block.checksum)
                    self._known[block.key] = (block.path, block.checksum)
                    written.pop()
        finally:
            for block in written:  # which the table does not name
                with suppress(OSError):
                    os.unlink(block.path)

    def _connect(self) -> Any:
        if self._cache is None:
            cache = open_table(self.folder, self.size_bytes)
            with cache:
                cache.cull()  # size_bytes may have been more the last time
            self._cache = cache
        if self._anchor is None:
            self._anchor = sqlite3.connect(os.path.join(self.folder, "cache.db"), check_same_thread=False)
            self._anchor.execute("PRAGMA schema_version").fetchall()  # SQLite opens its files at the first statement
            with suppress(OSError):  # the next process tries again
                _sweep(self.folder, self._anchor)
        return self._cache

    def _warn(self, kind: str, message: str) -> None:
        """Log a WARNING, once per process and kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("cache_dir=%r: %s. Reading goes on, from the store where need be.", self.folder, message)


def open_table(folder: str, size_bytes: int) -> Any:
    """The `diskcache.Cache` of the folder, made if need be.

    Reads must not write, so eviction takes what was stored first: a pass over more data than fit would gain nothing
    from knowing what was used last.
    """
    return diskcache.Cache(
        folder,
        timeout=_BUSY,
        disk=_BlockDisk,
        size_limit=size_bytes,
        eviction_policy="least-recently-stored",
        statistics=0,
        tag_index=0,
        sqlite_mmap_size=0,  # a table that is cut short must not end the process by a signal
    )


def checksum_of(data: memoryview) -> int:
    """The sum of the data's words of 64 bits, as a signed word: every single changed word shows.

    Faster than memory (zlib's crc32 is not, on most machines), so every read can afford to compare it.
    """
    whole = len(data) // 8 * 8
    words = np.frombuffer(data[:whole], "<i8")
    rest = np.frombuffer(bytes(data[whole:]).ljust(8, b"\0"), "<i8")
    return int((words.sum(keepdims=True) + rest)[0])  # an array's sum wraps around without a warning


def _write(folder: str, key: str, data: memoryview) -> _Block:
    """The block, in a file of its own."""
    name = f"{key[:2]}/{key}.{os.urandom(8).hex()}.block"
    block = _Block(key, folder, name, len(data), checksum_of(data))
    os.makedirs(os.path.dirname(block.path), exist_ok=True)
    try:
        with open(block.path, "xb") as file:
            file.write(data)
    except OSError:
        with suppress(OSError):
            os.unlink(block.path)
        raise
    return block


def _sweep(folder: str, table: sqlite3.Connection) -> None:
    """Remove the block files that no row names: what processes left that were killed while writing or evicting."""
    stamp, now = Path(folder, "swept"), time.time()
    if stamp.exists() and now - stamp.stat().st_mtime < _SWEEP_EVERY:
        return
    stamp.touch()
    # Listed before the rows are read: a file whose row is written meanwhile is either too young or named.
    names = [path.relative_to(folder).as_posix() for path in Path(folder).glob("??/*.block")]
    rows = {name for (name,) in table.execute("SELECT filename FROM Cache")}
    for name in filter(_NAME.fullmatch, set(names) - rows):
        with suppress(FileNotFoundError):  # another process sweeps, too
            path = Path(folder, name)
            if now - path.stat().st_mtime > _YOUNG:
                path.unlink()


_STORES: dict[tuple[str, int], BlockStore] = {}


def block_store(folder: str, size_bytes: int) -> BlockStore:
    """This process's store for the folder."""
    return _STORES.setdefault((folder, size_bytes), BlockStore(folder, size_bytes))


def _disconnect() -> None:
    for store in _STORES.values():
        store.disconnect()


def _before_fork() -> None:
    _GATE.acquire()
    _disconnect()


atexit.register(_disconnect)
os.register_at_fork(before=_before_fork, after_in_parent=_GATE.release, after_in_child=_GATE.release)
