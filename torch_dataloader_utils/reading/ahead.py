"""Files of a remote store are opened, and what a task needs of them is fetched, while earlier files are decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from torch_dataloader_utils.events import Work, recorder, recording
from torch_dataloader_utils.reading.files import FileReader
from torch_dataloader_utils.storage.waiting import DaemonThreads

# Files of a process that are being opened or fetched. Two requests of a small file, one after the other, hide 30 ms of
# latency from a decoder that takes 2 ms.
_IN_FLIGHT = 32
# What a thread may have fetched, or be fetching, before it decodes it: files, and bytes as their footers estimate the
# decoded size. The first file is always fetched.
_FILES, _BYTES = 32, 64 << 20

Opened: TypeAlias = tuple[FileReader, Work]


@dataclass(frozen=True, slots=True)
class FileFetch:
    """What a task needs of a file.

    Attributes:
        open: opens the file, unless it is open.
        segments: numbers of the segments that will be read, all columns of each.
        size: their decoded bytes, as estimated.
        reader: the open file, if it is.
    """

    open: Callable[[], FileReader]
    segments: Sequence[int]
    size: int
    reader: FileReader | None = None

    def __call__(self) -> FileReader:
        """The open file, with the bytes of these segments."""
        reader = self.reader or self.open()
        try:
            if reader.prefetch(self.segments):  # otherwise more is read later, and confirmed then
                reader.confirm()  # here, where a request holds up no decoder
        except BaseException:
            reader.close()
            raise
        return reader

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.reader is not None:
            self.reader.close()


class FetchAhead:
    """The files of a task, fetched in the order in which it reads them. For one thread at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, FileFetch] = {}
        self._started: dict[str, tuple[Future[Opened], FileFetch]] = {}

    def start(self, files: Mapping[str, FileFetch]) -> None:
        """Fetch these files, by path; those of the last call that were not taken are closed."""
        self.close()
        self._waiting = dict(files)
        if len(files) > 1:  # a single file is fetched by the thread that needs it
            self._fill()

    def take(self, path: str) -> FileReader | None:
        """The file, once it has been fetched; None if it was not announced, or was taken before."""
        if path in self._waiting:
            return self._waiting.pop(path)()
        if path not in self._started:
            return None
        future, _ = self._started.pop(path)
        self._fill()
        noted = recorder()
        stage = noted.enter("read")
        try:
            reader, work = future.result()
        finally:
            noted.enter(stage)
        noted.include(work)
        return reader

    def close(self) -> None:
        """Close the files that were not taken; those that are being fetched, as soon as they are."""
        for fetch in self._waiting.values():
            fetch.close()
        for future, fetch in self._started.values():
            if future.cancel():
                fetch.close()
            else:
                future.add_done_callback(_close)
        self._waiting, self._started = {}, {}

    def _fill(self) -> None:
        used = sum(fetch.size for _, fetch in self._started.values())
        for path, fetch in list(self._waiting.items()):
            used += fetch.size
            if self._started and (len(self._started) == _FILES or used > _BYTES):
                return
            try:
                future = _pool(os.getpid()).submit(_fetched, fetch)
            except RuntimeError:  # the main thread has ended: this thread fetches what it needs
                return
            del self._waiting[path]
            self._started[path] = future, fetch


def _fetched(fetch: FileFetch) -> Opened:
    """The fetched file, and what that took."""
    with recording() as noted:
        return fetch(), noted.work()


def _close(future: Future[Opened]) -> None:
    if future.exception() is None:
        future.result()[0].close()


@lru_cache(maxsize=1)
def _pool(pid: int) -> DaemonThreads:
    """This process's threads that fetch files; a forked child inherits no threads, so it needs its own."""
    return DaemonThreads(_IN_FLIGHT, "files")
