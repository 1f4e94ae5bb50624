"""What happened while reading, counted per process: retries of stores, lines left out."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Named counters; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add to the counter `name`."""
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        """All counters that are not zero."""
        with self._lock:
            return {name: count for name, count in self._counts.items() if count}


# Those of this process.
COUNTS = Counts()
RETRIES = "storage.retries"  # requests or reads that were tried again
SKIPPED_LINES = "skipped_lines"  # bad lines that on_bad_lines="skip" left out
CACHE_HITS = "cache.hits"  # reads of a block that cache_dir= held
CACHE_MISSES = "cache.misses"  # blocks that it did not hold, fetched from the store
