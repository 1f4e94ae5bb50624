"""Credentials that expire: new ones are asked for while files are being read, by one process for all that read.

The process that created a loader asks. Its worker processes send it the number of the credentials that they have, on a
pipe of their own, and get newer ones (`RenewalDesk`): never by arguments, files or the environment.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from torch_dataloader_utils.errors import CatalogError
from torch_dataloader_utils.storage.locks import ForkLock

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LOG = logging.getLogger("torch_dataloader_utils")

S = TypeVar("S")


@dataclass(frozen=True)
class Issued(Generic[S]):
    """Credentials, as they were issued.

    Attributes:
        number: counts them: 0 are the first.
        expires_at: when they expire, in seconds since 1970; None if that is not known.
        storage: the storage with them; None for the one that a loader began with.
    """

    number: int
    expires_at: float | None
    storage: S | None = field(default=None, repr=False)


class Renewal(Generic[S]):
    """Keeps a storage's credentials valid, for all threads of a process.

    A worker process asks the one that created this object. Other processes, to which a pickle or a fork brings it,
    cannot renew them.

    Args:
        ask: returns a storage with new credentials, and when these expire, in seconds since 1970, if that is known.
        expires_at: when the storage's first credentials expire, if that is known.
        key: the name of these credentials among the processes of a loader; None makes one.
        number: of the first credentials.
    """

    def __init__(
        self,
        ask: Callable[[], tuple[S, float | None]] | None,
        expires_at: float | None,
        key: str | None = None,
        number: int = 0,
    ) -> None:
        self.key = key or uuid.uuid4().hex
        self._ask = ask
        self._pid = os.getpid()
        self._lock = ForkLock()
        self._issued: Issued[S] = Issued(number, expires_at)
        self._renew_at = _half_life(expires_at)
        if ask is not None:
            _ISSUERS[self.key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Renewal, (None, self._issued.expires_at, self.key, self._issued.number)

    @property
    def issued(self) -> Issued[S]:
        """The credentials that this process knows to be the latest."""
        return self._issued

    @property
    def renew_at(self) -> float | None:
        """When half of their lifetime will have passed, in seconds since 1970; None if that is not known."""
        return self._renew_at

    @property
    def possible(self) -> bool:
        """Whether this process can renew the credentials."""
        return self._office() is not None

    @property
    def validity(self) -> str:
        """When the credentials expire, for messages."""
        expires_at = self._issued.expires_at
        if expires_at is None:
            return "for an unknown time"
        return f"until {datetime.fromtimestamp(expires_at, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def of(self, issued: Issued[S]) -> Renewal[S]:
        """The renewal of these credentials in another process."""
        return Renewal(None, issued.expires_at, self.key, issued.number)

    def current(self) -> Issued[S]:
        """The latest credentials; renews them once half of their lifetime has passed.

        Raises:
            CatalogError: the catalog cannot be reached or refuses, and the current credentials have expired.
        """
        self._note_sent()
        if self._due():
            with self._lock:
                if self._due():  # no other thread has done it meanwhile
                    self._renew_early()
        return self._issued

    def after(self, number: int) -> Issued[S]:
        """Credentials that are newer than these: one request to the catalog, however many ask.

        Raises:
            CatalogError: the catalog cannot be reached or refuses.
        """
        with self._lock:
            if self._issued.number <= number:
                self._renew()
            return self._issued

    def latest(self, first: S) -> S:
        """The storage of `current`, which is `first` if none was renewed; raises the same errors."""
        storage = self.current().storage
        return first if storage is None else storage

    def instead_of(self, refused: S, first: S) -> S | None:
        """A storage with other credentials than those that were refused; None if there is none.

        Raises:
            CatalogError: the catalog cannot be reached or refuses.
        """
        if not self.possible:
            return None
        with self._lock:
            if _known(self._issued, first) == refused:
                self._renew()
            latest = _known(self._issued, first)
            return None if latest == refused else latest

    def _office(self) -> Callable[[int], Issued[S]] | None:
        """What issues credentials that are newer than those of a number; None if this process reaches nothing."""
        if self._ask is not None and os.getpid() == self._pid:
            return self._asked
        line = _own_line()
        return None if line is None else partial(line.ask, self.key)

    def _asked(self, number: int) -> Issued[S]:
        assert self._ask is not None
        storage, expires_at = self._ask()
        return Issued(number + 1, expires_at, storage)

    def _due(self) -> bool:
        return self._renew_at is not None and time.time() >= self._renew_at and self.possible

    def _renew_early(self) -> None:
        try:
            self._renew()
        except Exception as error:  # whatever it is, the current ones are still valid
            expires_at = self._issued.expires_at
            assert expires_at is not None
            if time.time() >= expires_at:
                raise
            self._renew_at = _half_life(expires_at)
            _LOG.warning("credentials could not be renewed; the current ones are valid %s: %s", self.validity, error)

    def _renew(self) -> None:
        office = self._office()
        assert office is not None
        self._note(office(self._issued.number))

    def _note_sent(self) -> None:
        """Note what the process that asks has sent to this one."""
        line = _own_line() if self._ask is None or os.getpid() != self._pid else None
        sent = None if line is None else line.sent(self.key, self._issued.number)
        if sent is not None:
            with self._lock:
                if sent.number > self._issued.number:
                    self._note(sent)

    def _note(self, issued: Issued[S]) -> None:
        self._issued, self._renew_at = issued, _half_life(issued.expires_at)
        if self._renew_at is not None and self._renew_at <= time.time():
            self._renew_at = None  # new ones that have expired already: a clock is wrong, and the store decides


# The renewals of this process that can ask, by key.
_ISSUERS: WeakValueDictionary[str, Renewal[Any]] = WeakValueDictionary()


def issuer(key: str) -> Renewal[Any] | None:
    """The renewal of this key that can ask, unless it has gone."""
    return _ISSUERS.get(key)


def can_issue() -> bool:
    """Whether this process can renew any credentials."""
    return any(renewal.possible for renewal in _ISSUERS.values())


def _known(issued: Issued[S], first: S) -> S:
    return first if issued.storage is None else issued.storage


def _half_life(expires_at: float | None) -> float | None:
    """The time halfway between now and `expires_at`; times are in seconds since 1970."""
    return None if expires_at is None else (time.time() + expires_at) / 2


# A worker process's side.


class RenewalLine:
    """A worker process's end of the pipe to a `RenewalDesk`; for any number of threads.

    It sends `(word, key, number)`: that it has the credentials of this number ("hold"), or that it needs newer ones
    ("renew"). It gets `(key, credentials or error)`, asked or not.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._lock = ForkLock()
        self._told: dict[str, int] = {}
        self._latest: dict[str, Issued[Any]] = {}

    def sent(self, key: str, number: int) -> Issued[Any] | None:
        """The latest credentials that were sent to this process, which has those of `number`; None if none were."""
        with self._lock:
            if self._told.get(key) != number:
                self._say("hold", key, number)
            while self._polled():
                self._receive()
            return self._latest.get(key)

    def ask(self, key: str, number: int) -> Issued[Any]:
        """Credentials that are newer than those of `number`.

        Raises:
            CatalogError: the catalog cannot be reached or refuses, or the process that asks it has ended.
        """
        with self._lock:
            self._say("renew", key, number)
            while (found := self._latest.get(key)) is None or found.number <= number:
                failed, error = self._receive()
                if failed == key and error is not None:
                    raise error
            return found

    def _say(self, word: str, key: str, number: int) -> None:
        try:
            self._conn.send((word, key, number))
        except OSError as error:
            raise _ended() from error
        self._told[key] = number

    def _polled(self) -> bool:
        try:
            return self._conn.poll(0)
        except OSError as error:
            raise _ended() from error

    def _receive(self) -> tuple[str, Exception | None]:
        """Take in one message; returns its key and its error, if it is one."""
        try:
            key, content = self._conn.recv()
        except (EOFError, OSError) as error:
            raise _ended() from error
        if isinstance(content, Exception):
            return key, content
        self._latest[key] = content
        return key, None


def _ended() -> CatalogError:
    return CatalogError("the process that asks the catalog for credentials has ended.")


_LINES: dict[int, RenewalLine] = {}  # by process: a forked child does not share its parent's


def connect(conn: Connection) -> None:
    """Let this worker process ask for credentials on this pipe."""
    _LINES[os.getpid()] = RenewalLine(conn)


def _own_line() -> RenewalLine | None:
    return _LINES.get(os.getpid()) if _LINES else None
