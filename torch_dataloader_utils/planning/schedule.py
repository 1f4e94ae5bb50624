"""Whose batch is next: the workers of a rank deliver one batch each in turn, until each has ended.

If they start again, in laps, none begins a batch in a lap before all have begun those of the previous lap: the rank's
rows repeat as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def delivered_by_shard(batches: Sequence[int], count: int) -> tuple[list[int], int]:
    """How many batches each worker has delivered after `count` of the rank, and whose turn is next.

    A worker that has ended is skipped.

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


def begun_in_laps(laps: Iterable[Sequence[int]], batch_rows: int) -> Iterator[list[int]]:
    """How many batches of each worker begin in lap 0, 1, ...: those whose first row belongs to that lap.

    Args:
        laps: the rows of each worker in each lap.
        batch_rows: rows of a batch; they continue from lap to lap.
    """
    rows: list[int] = []
    for sizes in laps:
        before = rows or [0] * len(sizes)
        rows = [sum(pair) for pair in zip(before, sizes, strict=True)]
        yield [-(-last // batch_rows) - -(-first // batch_rows) for first, last in zip(before, rows, strict=True)]


def turns(laps: Iterable[Sequence[int]], batch_rows: int) -> Iterator[int]:
    """Whose batch is next, over all batches of all laps (as for `begun_in_laps`)."""
    for begun in begun_in_laps(laps, batch_rows):
        for number in range(max(begun, default=0)):
            yield from (worker for worker, count in enumerate(begun) if number < count)
