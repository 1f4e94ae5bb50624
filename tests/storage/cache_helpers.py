"""A store in memory that counts, and what the tests of the cache share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.storage import block_store
from torch_dataloader_utils.storage.cache import CachedRanges
from torch_dataloader_utils.storage.remote import Fetch, RangeFile, RemoteFile

MIB = 1 << 20
LEAST = 16 * MIB  # the smallest cache


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


class Remote:
    """A store in memory that remembers what was asked of it."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.requests: list[tuple[str, int, int]] = []
        self.calls = 0

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.calls += 1
        self.requests += [(path, start, stop) for start, stop in ranges]
        return [self.files[path][start:stop] for start, stop in ranges]

    @property
    def fetched(self) -> int:
        """Bytes."""
        return sum(stop - start for _, start, stop in self.requests)

    def open(self, options: Cache, path: str = "a", version: str = "etag:1") -> RemoteFile:
        info = DataFileInfo(path, len(self.files[path]), version=version)
        return open_cached("memory", info, lambda ranges: self.read_ranges(path, ranges), options)

    def read(self, options: Cache, path: str = "a", version: str = "etag:1") -> bytes:
        with self.open(options, path, version) as file:
            data: bytes = file.read()
        return data


def open_cached(identity: str, file: DataFileInfo, fetch: Fetch, options: Cache) -> RemoteFile:
    """The file as a storage with a cache opens it, where `fetch` reads from the store."""
    cached = CachedRanges(identity, file, fetch, lambda: None, options)
    return RemoteFile(RangeFile(file.path, file.file_size, cached.fetch, lambda: None, gap=0), "r")


def forget() -> None:
    """Be as a process that has just started: know nothing of the folder."""
    block_store._block_store.cache_clear()


def put(store: block_store.BlockStore, key: str, block: bytes) -> None:
    """Keep the block, if that is possible."""
    if store.claim([(key, len(block))]):
        store.fill(key, memoryview(block))


def block_files(options: Cache) -> list[Path]:
    return sorted(Path(options.folder).glob("??/*.block"))


def block_bytes(path: Path) -> int:
    """Those of the block, without its seal."""
    return path.stat().st_size - block_store._SEAL


def stored_bytes(options: Cache) -> int:
    return sum(map(block_bytes, block_files(options)))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
