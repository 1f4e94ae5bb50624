"""Reads footers: local ones in the calling thread while they are quick, all others concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.storage import Storage, usable_cores

T = TypeVar("T")
U = TypeVar("U")

_REMOTE = 64  # threads: they wait rather than compute
# A footer is slow from this many seconds on: it waits for a disk, or is large, and pyarrow parses it without the GIL.
# Threads that read quicker ones would only wait for each other's GIL: they take up to twice the processor time.
_SLOW = 1e-3
_TRIED, _AT_ONCE = 32, 1024  # files read in the calling thread, and then by threads if those were slow


def read_footers(
    storage: Storage,
    read: Callable[[T], U],
    files: Sequence[T],
    progress: Progress = LOGGED,
    work: str = "reading footers",
) -> list[U]:
    """As `each_footer`, in a list."""
    return list(each_footer(storage, read, files, progress, work))


def each_footer(
    storage: Storage,
    read: Callable[[T], U],
    files: Sequence[T],
    progress: Progress = LOGGED,
    work: str = "reading footers",
) -> Iterator[U]:
    """The results of `read` for each file, in file order, as they come; several threads may call it.

    Args:
        storage: where the files are.
        read: reads a file's footer, or as little.
        files: the files.
        progress: how the progress is shown.
        work: what is shown as the work.
    """
    most = usable_cores() if storage.local else _REMOTE
    with ThreadPoolExecutor(max(1, min(most, len(files))), thread_name_prefix="footers") as pool:
        made = _read_local(read, files, pool) if storage.local else pool.map(read, files)
        yield from progress.each(made, len(files), work, "files")


def _read_local(read: Callable[[T], U], files: Sequence[T], pool: ThreadPoolExecutor) -> Iterator[U]:
    first = 0
    while first < len(files):
        began = perf_counter()
        yield from map(read, files[first : first + _TRIED])
        first += _TRIED
        if perf_counter() - began > _SLOW * _TRIED:
            yield from pool.map(read, files[first : first + _AT_ONCE])
            first += _AT_ONCE
