"""Locks that a forked child finds open, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Protocol


class Renewable(Protocol):
    """What a fork may leave in a state that nobody in the child can end."""

    def renew(self) -> None:
        """Make it usable; called in the child, where no other thread runs."""


_RENEWED: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Have it renewed in forked children, as long as it lives."""
    _RENEWED.add(thing)


def _renew_all() -> None:
    for thing in list(_RENEWED):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ForkLock:
    """A `threading.RLock` of this process; a pickled one is open.

    Attributes:
        lock: the lock itself, for where the time of a Python call counts.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Open it, whoever holds it."""
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return ForkLock, ()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
