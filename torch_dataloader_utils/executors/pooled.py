"""More shards than workers: shards that are read side by side, assigned to the workers in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, Driver


class PooledDriver:
    """Delivers the blocks of many shards that few workers read.

    The shards advance by the same number of rows at a time; each worker reads in the order in which its blocks are then
    needed. Blocks that arrive early wait here.

    Args:
        open_driver: a driver of tasks by worker.
        shards: the tasks of each shard, with known rows.
        workers: the number of workers.
    """

    def __init__(
        self,
        open_driver: Callable[[Sequence[Sequence[Task]]], Driver],
        shards: Sequence[Sequence[Task]],
        workers: int,
    ) -> None:
        merged = [_merged(shards, range(worker, len(shards), workers)) for worker in range(workers)]
        self._owners = [deque(shard for shard, _ in tasks) for tasks in merged]
        self._early: list[deque[Block]] = [deque() for _ in shards]
        self._driver = open_driver([[task for _, task in tasks] for tasks in merged])

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block, None after the last."""
        worker = shard % len(self._owners)
        while not self._early[shard]:
            block = self._driver.next_block(worker)
            if block is None:
                return None
            self._early[self._owners[worker].popleft()].append(block)
        return self._early[shard].popleft()

    def stop(self) -> None:
        """Let anyone waiting for a block get an error."""
        self._driver.stop()

    def close(self) -> None:
        """Stop reading and free the waiting blocks."""
        for blocks in self._early:
            blocks.clear()
        self._driver.close()


def _merged(shards: Sequence[Sequence[Task]], numbers: Sequence[int]) -> list[tuple[int, Task]]:
    """The tasks of some shards as (shard, task), by the row at which each begins."""
    begins = [
        (begin, shard, task)
        for shard in numbers
        for begin, task in zip(
            accumulate((task.rows or 0 for task in shards[shard]), initial=0), shards[shard], strict=False
        )
    ]
    return [(shard, task) for _, shard, task in sorted(begins, key=lambda item: item[:2])]
