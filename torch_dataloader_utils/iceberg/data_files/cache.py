"""A cache for parsed delete files: one per process, limited in bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

Value = TypeVar("Value")

_LIMIT = 256 * 2**20  # bytes; values that threads are using may exceed it


class BoundedCache:
    """Values by key, each created once; beyond the limit, drops the least recently used ones. Thread-safe.

    `functools.lru_cache` counts values, not bytes, and lets two threads create the same value.

    Args:
        limit: bytes of all values; the most recently used one stays even if it alone exceeds the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value for `key`; if another thread is creating it, waits for that thread.

        Args:
            key: the value's key.
            make: returns the value and its size in bytes; an exception it raises is passed through, and nothing is
                cached.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry  # the most recently used entry is last
        with entry.lock:
            if not entry.made:
                entry.value, entry.size = make()
                entry.made = True
        with self._lock:
            self._forget(key)
        value: Value = entry.value
        return value

    def _forget(self, kept: Hashable) -> None:
        total = sum(entry.size for entry in self._entries.values())
        for key in [key for key, entry in self._entries.items() if entry.made and key != kept]:
            if total <= self._limit:
                return
            total -= self._entries.pop(key).size


class _Entry:
    """A value, or a placeholder while it is being created."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = False
        self.value: Any = None
        self.size = 0


def process_cache() -> BoundedCache:
    """The cache of this process; a forked child has its own, because its copy of the locks may never be released."""
    return _cache_of(os.getpid())


@lru_cache(maxsize=1)
def _cache_of(pid: int) -> BoundedCache:
    return BoundedCache(_LIMIT)
