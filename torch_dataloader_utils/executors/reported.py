"""Reports the blocks that a pass takes from any driver."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from torch_dataloader_utils.events import BlockEvent, Hooks
from torch_dataloader_utils.model import WorkerCursor
from torch_dataloader_utils.reading.blocks import Block, Driver


class ReportedDriver:
    """Delivers the blocks of a driver and reports each of them.

    Args:
        driver: the driver.
        hooks: where blocks are reported; callbacks may be added later.
        epoch: the epoch.
        starts: where each shard begins.
    """

    def __init__(self, driver: Driver, hooks: Hooks, epoch: int, starts: Sequence[WorkerCursor]) -> None:
        self._driver = driver
        self._hooks = hooks
        self._epoch = epoch
        self._before = [start.rows for start in starts]  # rows of the first block delivered earlier
        self.stop, self.close = driver.stop, driver.close

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        began = perf_counter()
        block = self._driver.next_block(shard)
        if block is None:
            return None
        rows, self._before[shard] = block.rows - self._before[shard], 0
        self._hooks(BlockEvent(self._epoch, shard, rows, block.nbytes, perf_counter() - began, block.work))
        return block
