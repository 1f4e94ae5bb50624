"""Locks that are unlocked in a forked child, whoever held them in its parent."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Protocol


class Renewable(Protocol):
    """Something that a fork may leave in a state that no thread of the child can end."""

    def renew(self) -> None:
        """Make it usable again; called in the child, where no other thread runs."""


_RENEWED: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(thing: Renewable) -> None:
    """Renew `thing` in forked children for as long as it lives."""
    _RENEWED.add(thing)


def _renew_all() -> None:
    for thing in list(_RENEWED):
        thing.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ForkLock:
    """A `threading.RLock` that is unlocked in forked children and after unpickling.

    Attributes:
        lock: the lock itself, for code where the cost of a Python call matters.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Unlock it, whoever holds it."""
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return ForkLock, ()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
