"""Footers, read concurrently: on the local disk by as many threads as there are cores, else by many that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_dataloader_utils.storage import Storage, usable_cores

T = TypeVar("T")
U = TypeVar("U")

_REMOTE = 64  # read at once: waiting, not computing


def read_footers(storage: Storage, read: Callable[[T], U], files: Sequence[T]) -> list[U]:
    """What `read` returns for each of the files, in their order; it is called by several threads."""
    most = usable_cores() if storage.local else _REMOTE
    with ThreadPoolExecutor(max(1, min(most, len(files))), thread_name_prefix="footers") as pool:
        return list(pool.map(read, files))
