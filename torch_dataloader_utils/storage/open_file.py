"""Open files of remote stores: requests are retried, and files reopened after credentials were renewed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from torch_dataloader_utils.events import Recorder, recorder
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.clients import Opened
from torch_dataloader_utils.storage.remote import Range
from torch_dataloader_utils.storage.retries import past_end, refused, retried
from torch_dataloader_utils.storage.waiting import DaemonThreads

if TYPE_CHECKING:
    from torch_dataloader_utils.storage.storage import Storage

T = TypeVar("T")

_IN_FLIGHT = 32  # concurrent requests of a process, besides those of its reading threads


class HeldFile:
    """A file that is opened at first use, and reopened when its storage was renewed. For one thread at a time.

    Args:
        storage: where it is.
        path: its path, for messages.
        open_by: opens it through the given storage.
        check: raises an error if the opened file has changed.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        open_by: Callable[[Storage], Opened],
        check: Callable[[Opened], None] = lambda opened: None,
    ) -> None:
        self._storage = storage
        self._path = path
        self._open_by = open_by
        self._check = check
        self._by: Storage | None = None
        self._opened: Opened | None = None

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        size = self._accepted(self._by_latest).facts.size
        assert size is not None
        return size

    def fetch(self, ranges: Sequence[Range]) -> list[bytes | pa.Buffer]:
        """The bytes of each range, requested all at once if the file allows it; each request is retried on its own."""
        return self._accepted(lambda: self._fetch(self._by_latest(), ranges))

    def confirm(self) -> None:
        """Check that the file has not changed: then all bytes fetched before are of one version.

        Raises:
            FileChangedError: it has changed.
        """
        self._accepted(lambda: self._confirm(self._by_latest()))

    def close(self) -> None:
        """Close the file, unless others may be reading it: then the last of them releases it."""
        if self._opened is not None and not self._opened.parallel:
            self._opened.close()

    def _fetch(self, opened: Opened, ranges: Sequence[Range]) -> list[bytes | pa.Buffer]:
        noted = recorder()  # requests run in threads of their own

        def read(span: Range) -> bytes | pa.Buffer:
            return self._retried(lambda: self._read(opened, span), noted)

        several = opened.parallel and len(ranges) > 1
        parts = list(_pool(os.getpid()).map(read, ranges) if several else map(read, ranges))
        noted.count("requests", len(parts))
        noted.count("bytes_read", sum(map(len, parts)))
        return parts

    def _read(self, opened: Opened, span: Range) -> bytes | pa.Buffer:
        try:
            return opened.read(*span)
        except Exception as error:
            if past_end(error) or type(error) is OSError:  # pyarrow's errors do not say what they are about
                self._check(opened)
            raise

    def _confirm(self, opened: Opened) -> None:
        self._retried(lambda: self._check(opened))

    def _retried(self, call: Callable[[], T], noted: Recorder | None = None) -> T:
        return retried(call, f"reading {printable(self._path)}", self._storage.timeout, noted)

    def _by_latest(self) -> Opened:
        latest = self._storage.latest
        if self._opened is None or latest is not self._by:
            self.close()
            self._by, self._opened = latest, None
            self._opened = self._open_by(latest)
        return self._opened

    def _accepted(self, call: Callable[[], T]) -> T:
        """What `call` returns, repeated with new credentials if the current ones are refused; timed as reading."""
        noted = recorder()
        stage = noted.enter("read")
        try:
            return call()
        except Exception as error:
            renewal, by = self._storage.renewal, self._by
            if renewal is None or by is None or not refused(error):
                raise
            if not renewal.possible:
                raise PermissionError(
                    f"the store refuses the credentials that the catalog gave {renewal.validity}, and only the process "
                    "that created the loader can request new ones. Worker processes get new ones in the next epoch; "
                    f"use worker_mode='thread' to renew them within an epoch. ({type(error).__name__}: {error})"
                ) from error
            if renewal.instead_of(by, self._storage) is None:
                raise
            return call()
        finally:
            noted.enter(stage)


@lru_cache(maxsize=1)
def _pool(pid: int) -> DaemonThreads:
    """This process's threads for requests; a forked child inherits no threads, so it needs its own."""
    return DaemonThreads(_IN_FLIGHT, "ranges")
