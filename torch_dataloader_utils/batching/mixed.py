"""Batches of a mix: rows of several shards, one for each dataset, by a schedule.

If the blocks at hand hold several steps, the rows of these steps are put in order together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from torch_dataloader_utils.batching.batches import BatchMaker, Part, ShardRows
from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.planning.rank_plan import BatchSchedule
from torch_dataloader_utils.reading.blocks import Driver
from torch_dataloader_utils.rows import I64

_MIXED_BYTES = (
    1 << 26
)  # of the rows that are put in order together: what is done once for all of them then costs little
_STEPS = 1024  # of which the rows of each shard are computed at a time


def mixed_batches(
    driver: Driver, logs: Sequence[BlockLog], schedule: BatchSchedule, taken: int, form: BatchMaker
) -> Iterator[Any]:
    """The rank's batches, each with the rows of every shard that the schedule says, shard by shard.

    Args:
        driver: delivers the blocks of the shards.
        logs: where each shard begins.
        schedule: the rows of each shard in each batch.
        taken: the number of batches before these.
        form: the form of the batches.
    """
    shards = [ShardRows(driver, shard, log) for shard, log in enumerate(logs)]
    for first in range(taken, schedule.steps, _STEPS):
        table = schedule.table(first, min(first + _STEPS, schedule.steps))
        at = 0
        while at < len(table) - 1:
            steps = max(1, _steps_at_hand(shards, table[at:] - table[at], schedule.batch_rows))
            yield from _batches(shards, np.diff(table[at : at + steps + 1], axis=0), form)
            at += steps


def single_turns(schedule: BatchSchedule, taken: int) -> Iterator[int]:
    """The shard of each batch after the first `taken`, if each batch is of one shard."""
    for first in range(taken, schedule.steps, _STEPS):
        table = schedule.table(first, min(first + _STEPS, schedule.steps))
        yield from np.diff(table, axis=0).argmax(axis=1).tolist()


def _steps_at_hand(shards: Sequence[ShardRows], ahead: I64, size: int) -> int:
    """How many full steps the blocks at hand hold, of those whose rows are put in order together.

    Args:
        shards: the shards.
        ahead: the rows of each shard in the next 0, 1, ... steps, int64 [steps + 1, shards].
        size: rows per batch.
    """
    most = len(ahead) - 1
    if ahead[most].sum() < most * size:  # the last batch is short, and cut alone
        most -= 1
    row_bytes = 1
    for shard in np.flatnonzero(ahead[max(most, 1)]).tolist():
        rows = shards[shard].at_hand(int(ahead[1, shard]))
        most = min(most, int(np.searchsorted(ahead[:, shard], rows, side="right")) - 1)
        row_bytes = max(row_bytes, shards[shard].row_bytes)
    return min(most, _MIXED_BYTES // (row_bytes * size))


def _batches(shards: Sequence[ShardRows], quotas: I64, form: BatchMaker) -> Iterator[Any]:
    """One batch for each line of `quotas`, the rows of each shard, int64 [steps, shards]; several if all are full."""
    parts: list[Part] = []
    of_parts = []
    for shard, rows in zip(shards, quotas.T, strict=True):
        taken = shard.take(int(rows.sum()))
        parts += taken
        of_parts.append(_by_part(rows, np.array([last - first for _, first, last in taken], np.int64)))
    if len(parts) == 1:
        ((block, first, _),) = parts
        yield from form.slices(block, first, len(quotas), int(quotas[0].sum()))
    elif len(quotas) == 1:
        yield form.join(parts)
    else:
        yield from form.mix(parts, np.concatenate(of_parts, axis=1))


def _by_part(rows: I64, sizes: I64) -> I64:
    """The rows of each part in each batch, int64 [batches, parts].

    Args:
        rows: the number of rows in each batch, int64 [batches].
        sizes: the number of rows of each part, int64 [parts]; batches take the rows of one part after another.
    """
    ends = np.cumsum(sizes)
    within = np.clip(np.append(0, np.cumsum(rows))[:, None], ends - sizes, ends)
    by_part: I64 = np.diff(within, axis=0)
    return by_part
