"""Assigns a rank's pieces to its I/O workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import take, transfers
from torch_dataloader_utils.planning.options import PlanOptions

Shards = tuple[tuple[Piece, ...], ...]


def worker_shards(pieces: Sequence[Piece], options: PlanOptions, batch_rows: int, exact: bool) -> Shards:
    """The pieces of each worker, in delivery order; if counts are exact, whole batches for all workers but one.

    Workers take turns, one batch each, so that the short batch, or the batch with the padding, is delivered last.

    Args:
        pieces: the rank's pieces: real ones, then padding.
        options: the plan's options.
        batch_rows: rows per batch of this rank.
        exact: whether every planned row will be delivered.
    """
    real = [piece for piece in pieces if not piece.pad]
    sizes = _sizes(real)
    owners = _owners(sizes, options)
    shards: list[list[Piece]] = [[] for _ in range(options.num_shards)]
    loads = [0] * options.num_shards
    for piece, size, owner in zip(real, sizes, owners, strict=True):
        shards[owner].append(piece)
        loads[owner] += size
    if exact:
        targets = whole_batch_targets(loads, batch_rows)
        shards, loads = levelled(shards, loads, targets), targets
    shards = [sorted(shard, key=_plan_order) for shard in shards]
    pads = pieces[len(real) :]
    if pads:
        shards[last_to_deliver(loads, batch_rows)] += pads
    return tuple(map(tuple, shards))


def levelled(shards: list[list[Piece]], loads: Sequence[int], targets: Sequence[int]) -> list[list[Piece]]:
    """The shards with rows moved between them, from `loads` rows each to `targets` rows each (see `transfers`)."""
    if list(loads) == list(targets):
        return shards
    counts, wanted = np.array(loads), np.array(targets)
    return [
        [piece for number, first, last in transfers(counts, wanted, w) for piece in take(shards[number], first, last)]
        for w in range(len(shards))
    ]


def _owners(sizes: Sequence[int], options: PlanOptions) -> Sequence[int]:
    """The worker of each piece."""
    if options.num_shards == 1:
        return [0] * len(sizes)
    if options.assignment == "turn":
        return [i % options.num_shards for i in range(len(sizes))]
    return lpt(sizes, options.num_shards)


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


def _sizes(pieces: Sequence[Piece]) -> list[int]:
    """The sizes that LPT balances: the rows of each piece if all are known, else its bytes."""
    if all(piece.rows is not None for piece in pieces):
        return [len(piece) for piece in pieces]
    return [piece.source.size_bytes for piece in pieces]


def _plan_order(piece: Piece) -> tuple[int, int]:
    return piece.order, 0 if piece.rows is None else piece.rows.start
