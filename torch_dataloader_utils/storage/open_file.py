"""Open files of remote stores: each request retried, and the file opened again where credentials were renewed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch_dataloader_utils.storage.clients import Opened
from torch_dataloader_utils.storage.remote import Range, in_flight
from torch_dataloader_utils.storage.retries import refused, retried

if TYPE_CHECKING:
    from torch_dataloader_utils.storage.storage import Storage

T = TypeVar("T")


class HeldFile:
    """A file, opened at first use, and again where the latest storage is another one. For one thread at a time.

    Args:
        storage: where it is.
        open_by: opens it by a storage.
    """

    def __init__(self, storage: Storage, open_by: Callable[[Storage], Opened]) -> None:
        self._storage = storage
        self._open_by = open_by
        self._by: Storage | None = None
        self._opened: Opened | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        size = self._accepted(self._by_latest).facts.size
        assert size is not None
        return size

    def fetch(self, ranges: Sequence[Range]) -> list[bytes]:
        """The bytes of each range."""
        return self._accepted(lambda: fetched(self._by_latest(), ranges))

    def confirm(self) -> None:
        """Check that the file has the size that it was opened by, as `Opened.confirm` does.

        Raises:
            FileChangedError: it has another.
        """
        self._accepted(lambda: retried(self._by_latest().confirm))

    def close(self) -> None:
        """Close the file, unless others may read it, too: the last one lets go of it."""
        if self._opened is not None and not self._opened.parallel:
            self._opened.close()

    def _by_latest(self) -> Opened:
        latest = self._storage.latest
        if self._opened is None or latest is not self._by:
            self.close()
            self._by, self._opened = latest, None
            self._opened = self._open_by(latest)
        return self._opened

    def _accepted(self, call: Callable[[], T]) -> T:
        """What the call returns, with other credentials where those at hand are refused."""
        try:
            return call()
        except Exception as error:
            renewal, by = self._storage.renewal, self._by
            if renewal is None or by is None or not refused(error):
                raise
            if not renewal.possible:
                raise PermissionError(
                    f"the store refuses the credentials that the catalog gave {renewal.told}, and only the process "
                    "that made the loader can ask for others. Worker processes have new ones from the next epoch on; "
                    f"worker_mode='thread' has them within one. ({type(error).__name__}: {error})"
                ) from error
            if renewal.instead_of(by, self._storage) is None:
                raise
            return call()


def fetched(opened: Opened, ranges: Sequence[Range]) -> list[bytes]:
    """The bytes of each range; each request is retried on its own."""

    def read(start: int, stop: int) -> bytes:
        return retried(lambda: opened.read(start, stop))

    return in_flight(read, ranges) if opened.parallel else [read(start, stop) for start, stop in ranges]
