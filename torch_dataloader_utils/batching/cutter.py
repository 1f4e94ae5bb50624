"""From the blocks of a rank's shards to its batches: which of five ways, by the plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch_dataloader_utils.batching.batches import (
    BatchMaker,
    BatchSize,
    joint_batches,
    rank_batches,
    scheduled_batches,
    shard_batches,
)
from torch_dataloader_utils.batching.mixed import mixed_batches, single_turns
from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.planning.rank_plan import RankPlan, lap_rows
from torch_dataloader_utils.planning.workers import turns
from torch_dataloader_utils.reading.blocks import Block, Driver


@dataclass(frozen=True)
class Cutter:
    """How the blocks of a rank become its batches.

    Attributes:
        size: rows per batch, and what happens to a short one.
        maker: makes batches of rows.
        laps: whether shards that have ended start again.
        sent: whether `maker` makes batches on a device (`DeviceBatch`).
        ended: cuts the batches where all ranks end; also receives the number of batches taken before them.
        collate: the final function applied to each batch.
    """

    size: BatchSize
    maker: BatchMaker
    laps: bool
    sent: bool
    ended: Callable[[Iterator[Any], int], Iterator[Any]]
    collate: Callable[[Any], Any] | None

    def batches(
        self,
        plan: RankPlan,
        driver: Driver,
        logs: Sequence[BlockLog],
        taken: int,
        turn: int,
        head: Callable[[int], Iterator[Block]],
        shard_rows: Callable[[int], Sequence[int]],
    ) -> Iterator[Any]:
        """The rank's batches, as `maker` makes them.

        Args:
            plan: of the rank.
            driver: delivers the blocks of its shards.
            logs: where each shard begins; record what is delivered.
            taken: the number of batches before these.
            turn: the index of the shard that delivers the first batch.
            head: reads a shard from its beginning again.
            shard_rows: the rows of each shard in a lap, where they are known.
        """
        schedule = plan.schedule
        if schedule is not None and not schedule.single:
            return mixed_batches(driver, logs, schedule, taken, self.maker)
        if schedule is None and plan.joint and len(logs) > 1:
            return joint_batches(driver, logs, self.size.size, self.maker)
        shards = [
            shard_batches(driver, shard, self.size, self.maker, log, partial(head, shard))
            for shard, log in enumerate(logs)
        ]
        if schedule is not None:
            return scheduled_batches(shards, single_turns(schedule, taken))
        if self.laps and plan.rows is not None and len(shards) > 1:
            in_turn = turns(lap_rows(shard_rows), self.size.size)
            return scheduled_batches(shards, itertools.islice(in_turn, taken, None))
        return rank_batches(shards, turn)
