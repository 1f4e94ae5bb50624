"""Batches with rows of every shard: the rows that the schedule says, and few of them are joined one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batching.shards import Blocks, as_list, blocks_of
from torch_dataloader_utils.batching import mixed
from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.batching.mixed import mixed_batches
from torch_dataloader_utils.batching.output_formats import make_form
from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.deal import Deal, Schedule
from torch_dataloader_utils.model import WorkerCursor
from torch_dataloader_utils.reading.blocks import Block

FIRST = 1_000  # the number of the first row of each shard, times that of the shard
counts = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


def schedule_of(rows: tuple[int, ...], size: int) -> Schedule:
    """The only rank's, of all rows in proportion."""
    turns = Curriculum.constant(rows, rows=rows).of_epoch(0)
    return Schedule(Deal(turns, rows, 1, size, False, 0), 0, rows)


class Counting:
    """A form that counts the batches that are joined alone, and those that are put in order together."""

    def __init__(self, form: BatchMaker) -> None:
        self._form = form
        self.joined = 0
        self.mixed: list[int] = []

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        return self._form.slices(block, first, count, size)

    def join(self, parts: list[Part]) -> Any:
        self.joined += 1
        return self._form.join(parts)

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        self.mixed.append(len(quotas))
        return self._form.mix(parts, quotas)


@settings(deadline=None)
@given(
    shards=st.lists(counts, min_size=1, max_size=3),
    size=st.integers(1, 30),
    output=st.sampled_from(["torch", "arrow"]),
    memory=st.sampled_from([1, 500, 1 << 26]),
    data=st.data(),
)
def test_each_batch_has_the_next_rows_of_each_shard(shards, size, output, memory, data) -> None:
    rows = tuple(map(sum, shards))
    schedule = schedule_of(rows, size)
    taken = data.draw(st.integers(0, schedule.steps))
    delivered = schedule.after(taken)
    blocks = [blocks_of(counts, output, FIRST * shard) for shard, counts in enumerate(shards)]
    # As readers do, blocks that were delivered before are left out.
    logs = []
    for shard, done in enumerate(delivered):
        while blocks[shard] and blocks[shard][0].rows <= done:
            done -= blocks[shard].pop(0).rows
        logs.append(BlockLog(WorkerCursor(0, done)))
    form = make_form(output, ["id", "valid"], pin_memory=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed, "_MIXED_BYTES", memory)
        batches = list(mixed_batches(Blocks(blocks), logs, schedule, taken, form))
    ends = schedule.table(taken, schedule.steps).tolist()
    expected = [
        [FIRST * shard + row for shard in range(len(rows)) for row in range(before[shard], after[shard])]
        for before, after in pairwise(ends)
    ]
    assert [as_list(batch["id"]) for batch in batches] == expected


def test_a_batch_across_blocks_is_put_in_order_with_those_after_it() -> None:
    form = Counting(make_form("numpy", ["id", "valid"], pin_memory=False))
    blocks = [blocks_of([100] * 5), blocks_of([80] * 5 + [100], first=FIRST)]
    schedule = schedule_of((500, 500), 14)
    assert sum(len(batch["id"]) for batch in mixed_batches(Blocks(blocks), [BlockLog(), BlockLog()], schedule, 0, form))
    assert form.joined == 1  # the last batch, which is short
    assert sum(form.mixed) == 1_000 // 14
    assert len(form.mixed) <= 11  # a group ends where a block does
