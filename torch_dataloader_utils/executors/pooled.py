"""More shards than workers: the shards are read side by side, assigned to workers in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, Driver


class PooledDriver:
    """Delivers the blocks of many shards that few workers read.

    Each worker reads its blocks in the order in which they are needed. Blocks that arrive early wait here.

    Args:
        open_driver: starts the driver, given the tasks of each worker.
        shards: the tasks of each shard, with known row counts.
        workers: the number of workers.
        needed: when each task is needed, relative to the others; empty: the shards advance by as many rows at a time.
    """

    def __init__(
        self,
        open_driver: Callable[[Sequence[Sequence[Task]]], Driver],
        shards: Sequence[Sequence[Task]],
        workers: int,
        needed: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> None:
        needed = needed or [_side_by_side(shard) for shard in shards]
        merged = [_merged(shards, range(worker, len(shards), workers), needed) for worker in range(workers)]
        self._owners = [deque(shard for shard, _ in tasks) for tasks in merged]
        self._early: list[deque[Block]] = [deque() for _ in shards]
        self._driver = open_driver([[task for _, task in tasks] for tasks in merged])

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        worker = shard % len(self._owners)
        while not self._early[shard]:
            block = self._driver.next_block(worker)
            if block is None:
                return None
            self._early[self._owners[worker].popleft()].append(block)
        return self._early[shard].popleft()

    def stop(self) -> None:
        """Stop reading: a thread that waits for a block gets an error."""
        self._driver.stop()

    def close(self) -> None:
        """Stop reading and free the waiting blocks."""
        for blocks in self._early:
            blocks.clear()
        self._driver.close()


def _side_by_side(tasks: Sequence[Task]) -> list[tuple[int, float]]:
    """When tasks are needed, if all shards advance by the same number of rows at a time."""
    begins = accumulate((task.rows or 0 for task in tasks), initial=0)
    return [(0, begin) for begin, _ in zip(begins, tasks, strict=False)]


def _merged(
    shards: Sequence[Sequence[Task]], numbers: Sequence[int], needed: Sequence[Sequence[tuple[int, float]]]
) -> list[tuple[int, Task]]:
    """The tasks of these shards as (shard, task), ordered by when each is needed."""
    turns = [(when, shard, task) for shard in numbers for when, task in zip(needed[shard], shards[shard], strict=True)]
    return [(shard, task) for _, shard, task in sorted(turns, key=lambda item: item[:2])]
