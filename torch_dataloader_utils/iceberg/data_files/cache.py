"""What is made of delete files, kept once per process within a bound in bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar

Value = TypeVar("Value")

_LIMIT = 256 * 2**20  # bytes; on top, what one thread uses at the moment


class BoundedCache:
    """Values by key, each made once; beyond the bound those used longest ago are forgotten. For many threads.

    `functools.lru_cache` counts values, not bytes, and lets two threads make the same one.

    Args:
        limit: bytes of all values; the one used last stays even where it alone is larger.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value for `key`; a thread that needs one which another is making waits for it.

        Args:
            key: of the value.
            make: gives the value and its bytes; what it raises is raised here, and nothing is kept.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry  # the last used one is last
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
    """A value that is being made, or is there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = False
        self.value: Any = None
        self.size = 0


def process_cache() -> BoundedCache:
    """The cache of this process; a forked child has its own, as its parent's locks may be held forever."""
    return _cache_of(os.getpid())


@lru_cache(maxsize=1)
def _cache_of(pid: int) -> BoundedCache:
    return BoundedCache(_LIMIT)
