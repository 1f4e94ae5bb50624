"""Reads footers concurrently: one thread per core for local disks, more for remote storage, where they wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_dataloader_utils.storage import Storage, usable_cores

T = TypeVar("T")
U = TypeVar("U")

_REMOTE = 64  # threads: they wait rather than compute


def read_footers(storage: Storage, read: Callable[[T], U], files: Sequence[T]) -> list[U]:
    """The results of `read` for each file, in file order; several threads call it."""
    most = usable_cores() if storage.local else _REMOTE
    with ThreadPoolExecutor(max(1, min(most, len(files))), thread_name_prefix="footers") as pool:
        return list(pool.map(read, files))
