"""Whose batch is next: the workers of a rank are drained round robin, a batch each, until each has ended."""

from __future__ import annotations

from collections.abc import Sequence


def delivered_by_shard(batches: Sequence[int], count: int) -> tuple[list[int], int]:
    """How many batches each worker has delivered after `count` of the rank, and whose turn is next.

    A worker that has ended is passed over.

    Args:
        batches: of each worker, in all.
        count: batches of the rank, at most their sum.
    """
    low, high = 0, max(batches, default=0)
    while low < high:  # the last round that is whole
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in batches) <= count:
            low = middle
        else:
            high = middle - 1
    given = [min(each, low) for each in batches]
    left = count - sum(given)
    going = [worker for worker, each in enumerate(batches) if each > low]
    for worker in going[:left]:
        given[worker] += 1
    return given, going[left] if left < len(going) else 0
