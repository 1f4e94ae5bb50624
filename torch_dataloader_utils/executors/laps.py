"""Laps: shards that have ended start again, for passes with a fixed number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_dataloader_utils.model import WorkerCursor
from torch_dataloader_utils.reading.blocks import Block, Driver


class LapDriver:
    """Runs lap after lap of each shard, so that batches cross from one lap into the next.

    Shards reach the end of a lap at different times; each begins the next lap when its next block is requested. A shard
    that has no rows in a whole lap ends, because there is nothing to repeat.

    Args:
        open_lap: starts the driver of a lap; lap 0 has the epoch's own rows, and 1, 2, ... repeat them.
        starts: where each shard begins.
        on_lap: called with the index of a shard that begins its next lap.
    """

    def __init__(
        self, open_lap: Callable[[int], Driver], starts: Sequence[WorkerCursor], on_lap: Callable[[int], None]
    ) -> None:
        self._open_lap = open_lap
        self._on_lap = on_lap
        self._drivers: dict[int, Driver] = {}
        self._laps = [start.lap for start in starts]
        # Whether each shard has had rows in its current lap.
        self._rows = [start.task > 0 or start.rows > 0 for start in starts]

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after a lap without rows."""
        while True:
            block = self._driver(self._laps[shard]).next_block(shard)
            if block is not None:
                self._rows[shard] |= block.rows > 0
                return block
            # An empty lap 0 is not the end: a rank without rows of its own repeats those of others.
            if not self._rows[shard] and self._laps[shard]:
                return None
            self._rows[shard] = False
            self._laps[shard] += 1
            self._on_lap(shard)
            for lap in [lap for lap in self._drivers if lap < min(self._laps)]:
                self._drivers.pop(lap).close()

    def stop(self) -> None:
        """Stop all laps: a thread that waits for a block gets an error."""
        for driver in list(self._drivers.values()):
            driver.stop()

    def close(self) -> None:
        """Close all laps."""
        for driver in self._drivers.values():
            driver.close()
        self._drivers.clear()

    def _driver(self, lap: int) -> Driver:
        if lap not in self._drivers:
            self._drivers[lap] = self._open_lap(lap)
        return self._drivers[lap]
