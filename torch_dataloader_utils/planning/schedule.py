"""Which worker delivers the next batch: the workers of a rank take turns, one batch each, until all have ended.

If workers start again, in laps, no worker begins a batch of a lap until all have begun their batches of the previous
lap, so that the rank's rows repeat as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def delivered_by_shard(batches: Sequence[int], count: int) -> tuple[list[int], int]:
    """The number of batches that each worker has delivered after `count` of the rank, and the worker that is next.

    A worker that has ended is skipped.

    Args:
        batches: the total number of batches of each worker.
        count: the number of batches that the rank has delivered, at most the sum of `batches`.
    """
    low, high = 0, max(batches, default=0)
    while low < high:  # find the last complete round
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
    """The number of batches of each worker that begin in lap 0, 1, ...: those whose first row belongs to that lap.

    Args:
        laps: for each lap, the number of rows of each worker.
        batch_rows: rows per batch; a batch may continue into the next lap.
    """
    rows: list[int] = []
    for sizes in laps:
        before = rows or [0] * len(sizes)
        rows = [sum(pair) for pair in zip(before, sizes, strict=True)]
        yield [-(-last // batch_rows) - -(-first // batch_rows) for first, last in zip(before, rows, strict=True)]


def turns(laps: Iterable[Sequence[int]], batch_rows: int) -> Iterator[int]:
    """The worker of each batch, over all batches of all laps (arguments as for `begun_in_laps`)."""
    for begun in begun_in_laps(laps, batch_rows):
        for number in range(max(begun, default=0)):
            yield from (worker for worker, count in enumerate(begun) if number < count)
