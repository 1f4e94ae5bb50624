"""An iterable that can be iterated over again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Replayed(Generic[Item]):
    """The items of an iterator, each computed once, when it is first needed; for any thread."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._seen: list[Item] = []
        self._computing = threading.Lock()

    def __iter__(self) -> Iterator[Item]:
        number = 0
        while number < len(self._seen) or self._compute(number):
            yield self._seen[number]
            number += 1

    def _compute(self, number: int) -> bool:
        """Compute this item, unless another thread has; returns whether it exists."""
        with self._computing:
            if number == len(self._seen):
                self._seen.extend(item for item in [next(self._items, None)] if item is not None)
            return number < len(self._seen)
