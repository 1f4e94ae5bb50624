"""The in-line driver, and what wraps any driver: more shards than workers, laps, reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter

from torch_dataloader_utils.errors import EmptyDatasetError
from torch_dataloader_utils.events import BlockEvent
from torch_dataloader_utils.executors.task_stream import LapStream, TaskStream
from torch_dataloader_utils.model import Task, WorkerCursor, split_of, split_pieces
from torch_dataloader_utils.planning.rank_plan import Endless
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.reading.blocks import Block, BlockReader, Driver, read_block

# Names of tasks in messages.


def describe(task: Task) -> str:
    """What a task reads, for messages: its file and rows, or the files whose rows it shuffles."""
    pieces = list(split_pieces(task.pieces))
    paths = list(dict.fromkeys(split_of(piece).file.path for piece in pieces))
    if len(paths) > 1:
        return listed(paths, 3)
    rows = pieces[0].rows
    where = "" if rows is None or len(pieces) > 1 else f", rows {rows.start} to {rows.stop}"
    return f"{paths[0]}{where}"


class InlineDriver:
    """Decodes in the calling thread, and nothing ahead."""

    def __init__(self, reader: BlockReader, shards: Sequence[Sequence[Task]]) -> None:
        self._reader = reader
        self._tasks: list[Iterator[Task]] = [iter(tasks) for tasks in shards]

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        task = next(self._tasks[shard], None)
        return None if task is None else read_block(self._reader, task)

    def stop(self) -> None:
        """Does nothing, because no thread waits for another."""

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()


# More shards than workers: the shards are read side by side, assigned to workers in turn.


class PooledDriver:
    """Delivers the blocks of many shards that few workers read.

    Each worker reads its blocks in the order in which they are needed. Blocks that arrive early wait here.

    Args:
        open_driver: starts the driver, given the tasks of each worker.
        shards: the tasks of each shard, with known row counts, or without end.
        workers: the number of workers.
        needed: when each task is needed, relative to the others; empty: the shards advance by as many rows at a time.
    """

    def __init__(
        self,
        open_driver: Callable[[Sequence[Sequence[Task]]], Driver],
        shards: Sequence[Sequence[Task]],
        workers: int,
        needed: Sequence[Sequence[float]] = (),
    ) -> None:
        self._early: list[deque[Block]] = [deque() for _ in shards]
        self._given, self._taken = [0] * len(shards), [0] * len(shards)
        of_workers = [range(worker, len(shards), workers) for worker in range(workers)]
        self._owners: list[deque[int]] = [deque() for _ in of_workers]
        tasks: list[Sequence[Task]]
        if any(isinstance(shard, TaskStream) for shard in shards):
            tasks = [TaskStream(self._in_turn(shards, *each)) for each in zip(of_workers, self._owners, strict=True)]
        else:
            needed = needed or [_side_by_side(shard) for shard in shards]
            merged = [_merged(shards, numbers, needed) for numbers in of_workers]
            self._owners = [deque(shard for shard, _ in some) for some in merged]
            tasks = [[task for _, task in some] for some in merged]
        self._driver = open_driver(tasks)

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        worker = shard % len(self._owners)
        while not self._early[shard]:
            block = self._driver.next_block(worker)
            if block is None:
                return None
            self._early[self._owners[worker].popleft()].append(block)
        self._taken[shard] += 1
        return self._early[shard].popleft()

    def _in_turn(self, shards: Sequence[Sequence[Task]], numbers: Sequence[int], owners: deque[int]) -> Iterator[Task]:
        """The tasks of shards without end, of which it is not known when they are needed: as they are taken."""
        read = [shard for shard in numbers if len(shards[shard])]
        while read:
            shard = min(read, key=lambda shard: self._given[shard] - self._taken[shard])
            task = shards[shard][self._given[shard]]
            self._given[shard] += 1
            owners.append(shard)
            yield task

    def stop(self) -> None:
        """Stop reading: a thread that waits for a block gets an error."""
        self._driver.stop()

    def close(self) -> None:
        """Stop reading and free the waiting blocks."""
        for blocks in self._early:
            blocks.clear()
        self._driver.close()


def _side_by_side(tasks: Sequence[Task]) -> list[float]:
    """When tasks are needed, if all shards advance by the same number of rows at a time."""
    begins = accumulate((task.rows or 0 for task in tasks), initial=0)
    return [float(begin) for begin, _ in zip(begins, tasks, strict=False)]


def _merged(
    shards: Sequence[Sequence[Task]], numbers: Sequence[int], needed: Sequence[Sequence[float]]
) -> list[tuple[int, Task]]:
    """The tasks of these shards as (shard, task), ordered by when each is needed."""
    turns = [(when, shard, task) for shard in numbers for when, task in zip(needed[shard], shards[shard], strict=True)]
    return [(shard, task) for _, shard, task in sorted(turns, key=lambda item: item[:2])]


# Laps: shards that have ended start again, for passes with a fixed number of steps.


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


# Shards without end: one driver reads all of them, lap after lap, as far as they are needed.


class EndlessDriver:
    """Delivers the blocks of shards that have no end, and finds those of which a whole lap has no rows.

    Args:
        driver: reads the tasks.
        streams: the tasks of each shard.
        shards: what they are.
        starts: where each begins.
        units: what blocks are made of, in a word: "sequences".
    """

    def __init__(
        self,
        driver: Driver,
        streams: Sequence[LapStream],
        shards: Sequence[Endless],
        starts: Sequence[WorkerCursor],
        units: str,
    ) -> None:
        self._driver, self._streams, self._shards, self._units = driver, streams, shards, units
        self._taken = [0] * len(streams)
        self._laps = [start.lap for start in starts]
        # Whether each shard has had rows in its current lap, or began within it.
        self._rows = [start.task > 0 or start.rows > 0 for start in starts]
        self.stop, self.close = driver.stop, driver.close

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block.

        Raises:
            EmptyDatasetError: a whole lap had no rows.
        """
        lap, _ = self._streams[shard].place(self._taken[shard])
        if lap != self._laps[shard]:
            facts = self._shards[shard]
            if not self._rows[shard] and self._laps[shard] >= facts.whole_from:
                raise EmptyDatasetError(
                    f"{facts.name} has no {self._units} for this rank in a whole lap, so there is nothing to repeat. "
                    f"Check that its data and filters leave {self._units} for every rank, or leave it out."
                )
            self._laps[shard], self._rows[shard] = lap, False
        block = self._driver.next_block(shard)
        if block is not None:
            self._taken[shard] += 1
            self._rows[shard] |= block.rows > 0
        return block


# Reports the blocks that a pass takes from any driver.


class ReportedDriver:
    """Delivers the blocks of a driver and reports each of them.

    Args:
        driver: the driver.
        report: where blocks are reported.
        epoch: the epoch.
        starts: where each shard begins.
    """

    def __init__(
        self, driver: Driver, report: Callable[[BlockEvent], None], epoch: int, starts: Sequence[WorkerCursor]
    ) -> None:
        self._driver = driver
        self._report = report
        self._epoch = epoch
        self._before = [start.rows for start in starts]  # rows of the first block delivered earlier
        self.stop, self.close = driver.stop, driver.close

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        began = perf_counter()
        block = self._driver.next_block(shard)
        if block is None:
            return None
        rows, self._before[shard] = block.rows - block.before(self._before[shard]), 0
        self._report(BlockEvent(self._epoch, shard, rows, block.nbytes, perf_counter() - began, block.work))
        return block
