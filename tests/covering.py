"""Few of the many combinations of options, among which every pair (or triple) of values still occurs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def covering(
    *factors: Sequence[T], strength: int = 2, allowed: Callable[..., bool] = lambda *_: True
) -> list[tuple[T, ...]]:
    """Rows with one value of each factor: whatever values of `strength` factors some row may have, one row has.

    Greedy: each row taken is the first of those that cover the most combinations not yet covered. So the rows depend on
    the factors alone, and only rows that are `allowed` are taken.
    """
    rows = [row for row in itertools.product(*factors) if allowed(*row)]
    uncovered = {values for row in rows for values in _values(row, strength)}
    # A row covers less as others are taken, never more: so it suffices to count again for the row that leads.
    heap = [(-len(uncovered), number) for number in range(len(rows))]
    taken = []
    while uncovered:
        _, number = heapq.heappop(heap)
        covers = uncovered.intersection(_values(rows[number], strength))
        entry = (-len(covers), number)
        if heap and heap[0] < entry:
            heapq.heappush(heap, entry)
        else:
            taken.append(rows[number])
            uncovered -= covers
    return taken


def _values(row: tuple[T, ...], strength: int) -> Iterator[tuple[tuple[int, T], ...]]:
    """The combinations of values that a row holds, each value with its factor's number."""
    return itertools.combinations(enumerate(row), strength)
