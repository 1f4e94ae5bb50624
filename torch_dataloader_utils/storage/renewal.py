"""Credentials that expire: new ones are fetched while files are being read."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from torch_dataloader_utils.errors import BatchTimeoutError, CatalogError

_LOG = logging.getLogger("torch_dataloader_utils")

S = TypeVar("S")


class Renewal(Generic[S]):
    """Keeps a storage's credentials valid, for all threads of the process that created this object.

    Other processes cannot renew them: a pickle leaves `ask` out, and a forked child shares its parent's connections.

    Args:
        ask: returns a storage with new credentials, and when these expire, in seconds since 1970, if that is known.
        expires_at: when the storage's first credentials expire, if that is known.
    """

    def __init__(self, ask: Callable[[], tuple[S, float | None]] | None, expires_at: float | None) -> None:
        self._ask = ask
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._latest: S | None = None
        self._expires_at = expires_at
        self._renew_at = _half_life(expires_at)
        self._passes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Renewal, (None, self._expires_at)

    @property
    def possible(self) -> bool:
        """Whether this process can renew the credentials."""
        return self._ask is not None and os.getpid() == self._pid

    @property
    def validity(self) -> str:
        """When the credentials expire, for messages."""
        if self._expires_at is None:
            return "for an unknown time"
        return f"until {datetime.fromtimestamp(self._expires_at, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def latest(self, first: S) -> S:
        """The storage last renewed, or `first`; renews it once half of the credentials' lifetime has passed.

        Raises:
            CatalogError: the catalog cannot be reached or refuses, and the current credentials have expired.
        """
        if self._due():
            with self._lock:
                if self._due():  # no other thread has done it meanwhile
                    self._renew_early()
        return first if self._latest is None else self._latest

    def for_pass(self, first: S) -> S:
        """As `latest`, for other processes to read one pass with, which cannot ask for other credentials.

        If it is not known when the credentials end, all passes but the first get new ones.

        Raises:
            CatalogError: the catalog cannot be reached or refuses, and the current credentials have expired.
        """
        if self._passes and self._expires_at is None and self.possible:
            with self._lock:
                try:
                    self._renew()
                except (CatalogError, BatchTimeoutError) as error:
                    _LOG.warning(
                        "credentials could not be renewed; the current ones are valid %s: %s", self.validity, error
                    )
        self._passes += 1
        return self.latest(first)

    def instead_of(self, refused: S, first: S) -> S | None:
        """A storage with other credentials than those that were refused; None if there is none.

        Raises:
            CatalogError: the catalog cannot be reached or refuses.
        """
        if not self.possible:
            return None
        with self._lock:
            if (self._latest or first) == refused:
                self._renew()
            return None if self._latest == refused else self._latest

    def _due(self) -> bool:
        return self._renew_at is not None and time.time() >= self._renew_at and self.possible

    def _renew_early(self) -> None:
        try:
            self._renew()
        except (CatalogError, BatchTimeoutError) as error:
            assert self._expires_at is not None
            if time.time() >= self._expires_at:
                raise
            self._renew_at = _half_life(self._expires_at)
            _LOG.warning("credentials could not be renewed; the current ones are valid %s: %s", self.validity, error)

    def _renew(self) -> None:
        assert self._ask is not None
        self._latest, self._expires_at = self._ask()
        self._renew_at = _half_life(self._expires_at)


def _half_life(expires_at: float | None) -> float | None:
    """The time halfway between now and `expires_at`; times are in seconds since 1970."""
    return None if expires_at is None else (time.time() + expires_at) / 2
