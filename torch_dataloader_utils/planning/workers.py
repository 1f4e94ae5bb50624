"""Assigns a rank's pieces to its I/O workers."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import transfers
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces, Runs, joined
from torch_dataloader_utils.planning.partitions import share_of
from torch_dataloader_utils.planning.splits import I64

Shards: TypeAlias = Sequence[Sequence[Piece]]


def worker_shards(pieces: Sequence[Piece], options: PlanOptions, batch_rows: int, exact: bool) -> Shards:
    """The pieces of each worker, in delivery order; if counts are exact, whole batches for all workers but one.

    Workers take turns, one batch each, so that the short batch, or the batch with the padding, is delivered last.

    Args:
        pieces: the rank's pieces: real ones, then padding.
        options: the plan's options.
        batch_rows: rows per batch of this rank.
        exact: whether every planned row will be delivered.
    """
    given = Pieces.of(pieces)
    if options.by_partition:
        workers = range(options.num_shards)
        shards = [share_of(given.runs, worker, options.num_shards, batch_rows) for worker in workers]
        loads = [shard.total for shard in shards]
    else:
        shards, loads = _assigned(given.runs, options)
        if exact:
            targets = whole_batch_targets(loads, batch_rows)
            shards, loads = levelled(shards, loads, targets), targets
        shards = [shard.in_plan_order() for shard in shards]
    last = last_to_deliver(loads, batch_rows)
    return tuple(Pieces(shard, given.pads if worker == last else ()) for worker, shard in enumerate(shards))


def _assigned(runs: Runs, options: PlanOptions) -> tuple[list[Runs], list[int]]:
    """The runs of each worker, and their sizes."""
    sizes = _sizes(runs)
    if options.num_shards == 1:
        return [runs], [int(sizes.sum())]
    owners = _owners(sizes, options)
    places = [np.flatnonzero(owners == worker) for worker in range(options.num_shards)]
    return [runs.select(some) for some in places], [int(sizes[some].sum()) for some in places]


def levelled(shards: list[Runs], loads: Sequence[int], targets: Sequence[int]) -> list[Runs]:
    """The shards with rows moved between them, from `loads` rows each to `targets` rows each (see `transfers`)."""
    if list(loads) == list(targets):
        return shards
    counts, wanted = np.array(loads), np.array(targets)
    parts = [
        [shards[number].take(first, last) for number, first, last in transfers(counts, wanted, worker)]
        for worker in range(len(shards))
    ]
    return [joined(some) if some else shards[0].select(slice(0, 0)) for some in parts]


def _owners(sizes: I64, options: PlanOptions) -> I64:
    """The worker of each run, shape [runs]."""
    if options.assignment == "turn":
        return np.arange(len(sizes)) % options.num_shards
    return np.array(lpt(sizes.tolist(), options.num_shards), dtype=np.int64)


def lpt(loads: Sequence[int], num_shards: int) -> list[int]:
    """The worker of each load: largest load first, to the least loaded worker; ties to the earlier and lower."""
    heap = [(0, worker) for worker in range(num_shards)]
    owners = [0] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: -loads[i]):
        load, owners[i] = heap[0]
        heapq.heapreplace(heap, (load + loads[i], owners[i]))
    return owners


def whole_batch_targets(loads: Sequence[int], batch_rows: int) -> list[int]:
    """The number of rows of each worker: whole batches near its load, and a short one for a worker with the most."""
    total = sum(loads)
    batches = [load // batch_rows for load in loads]
    spare = total // batch_rows - sum(batches)
    for worker in sorted(range(len(loads)), key=lambda w: (-(loads[w] % batch_rows), w))[:spare]:
        batches[worker] += 1
    targets = [count * batch_rows for count in batches]
    if total % batch_rows:
        last = max(range(len(loads)), key=lambda w: (batches[w], loads[w] % batch_rows, -w))
        targets[last] += total % batch_rows
    return targets


def last_to_deliver(loads: Sequence[int], batch_rows: int) -> int:
    """The worker that delivers the last batch when workers take turns."""
    return max(range(len(loads)), key=lambda w: (-(-loads[w] // batch_rows), w))


def _sizes(runs: Runs) -> I64:
    """What LPT balances, shape [runs]: the rows of each run if all are known, else the bytes of its source."""
    return runs.rows if runs.table.counted[runs.source].all() else runs.table.sizes[runs.source]


# Which worker delivers the next batch: the workers of a rank take turns, one batch each, until all have ended.
#
# If workers start again, in laps, no worker begins a batch of a lap until all have begun their batches of the previous
# lap, so that the rank's rows repeat as a whole.


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
