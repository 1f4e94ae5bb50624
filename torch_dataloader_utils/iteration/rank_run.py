"""The execution of a pass: a rank's plan, from a position in it on."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
from torch_dataloader_utils.batching.sent import on_current_stream, prefetched
from torch_dataloader_utils.checkpoint.positions import BlockLog, EpochPosition, cursor_after, exact_cursor, rows_after
from torch_dataloader_utils.events import Hooks
from torch_dataloader_utils.executors.drivers import LapDriver, ReportedDriver
from torch_dataloader_utils.iteration.execution import Execution
from torch_dataloader_utils.iteration.pass_progress import PassProgress, ShownPass
from torch_dataloader_utils.model import RankCursor, Task, WorkerCursor
from torch_dataloader_utils.planning.rank_plan import RankPlan, lap_rows, rows_of_batches
from torch_dataloader_utils.planning.tasks import parted
from torch_dataloader_utils.planning.workers import turns
from torch_dataloader_utils.reading.blocks import Block, Driver

Tasks = Sequence[Sequence[Task]]


@dataclass(frozen=True)
class Recipe:
    """What is executed, independent of where it begins.

    Attributes:
        plan_of: the plan of a lap, with the shards that are read here.
        execution: opens drivers of tasks by shard.
        row_bytes: bytes that a transform makes of each row; 0 if unknown, or if tasks must not be cut.
        cut: how shards are cut into batches.
        form: of the batches.
        sent: whether these are `Sent`.
        steps: batches of the phase, or None if known only after reading.
        laps: whether shards that have ended start again.
        ended: cuts the batches where all ranks end; also receives the number of batches taken before them.
        collate: the final function applied to each batch.
        hooks: where blocks are reported.
        show: begins to show a pass that executes it.
    """

    plan_of: Callable[[int], RankPlan]
    execution: Execution
    row_bytes: int
    cut: BatchSize
    form: BatchMaker
    sent: bool
    steps: int | None
    laps: bool
    ended: Callable[[Iterator[Any], int], Iterator[Any]]
    collate: Callable[[Any], Any] | None
    hooks: Hooks
    show: Callable[[ShownPass], PassProgress]


class RankRun:
    """Batches of a rank from a position on.

    If counts are known, a position is a number of batches. Otherwise it is the progress of the workers or, if that is
    unknown, a number of batches that are read and dropped.

    Attributes:
        batches: in order; a StopIteration ends them and is never an error of the user's.
        steps: batches of the whole phase, including those before the position; None if known only after reading.
        exact: whether counts are known.
        show: as in the recipe.
    """

    batches: Iterator[Any]

    def __init__(self, recipe: Recipe, place: EpochPosition) -> None:
        self._recipe = recipe
        self._epoch = place.epoch
        self._tasks: dict[int, Tasks] = {}
        self._logs: list[BlockLog] = []
        self._driver: Driver | None = None
        self._closing = threading.Lock()  # taken once
        self.steps, self.show = recipe.steps, recipe.show
        self.exact = recipe.plan_of(0).rows is not None
        # Asked for at any time, by any thread, and by the garbage collector, so without a lock. Kept, because counting
        # millions of pieces takes a second.
        self._shard_rows = cache(lambda lap: recipe.plan_of(lap).shard_rows())
        try:
            self._open(place.taken, place.cursor)
        except BaseException:
            self.close(failed=True)
            raise

    def jump(self, taken: int, target: int) -> None:
        """Continue after the first `target` batches, from after the first `taken`.

        If counts are unknown, the batches in between are read and dropped.
        """
        if not self.exact:
            _drop(self._bare, target - taken)
            return
        if self._driver is not None:
            self._driver.close()
        self._open(target, None)

    def cursor(self, taken: int) -> RankCursor | None:
        """The progress of the workers after `taken` batches; None if the number of batches determines it."""
        if self.exact:
            return None
        cut = self._recipe.cut
        return cursor_after(self._logs, self._turn, taken - self._base, cut.size, cut.last_batch == "drop")

    def rows(self, first: int, last: int) -> int:
        """The number of rows in the batches `[first, last)`, none of them before the last jump."""
        plan = self._recipe.plan_of(0)
        if self.exact and self._recipe.laps:
            return (last - first) * plan.batch_rows  # all are full, and the laps may be too many to plan
        if self.exact:
            rows = [rows_of_batches(plan, [self._shard_rows(0)], taken) for taken in (first, last)]
        else:
            size, drops = self._recipe.cut.size, self._recipe.cut.last_batch == "drop"
            rows = [rows_after(self._logs, self._turn, taken - self._base, size, drops) for taken in (first, last)]
        return rows[1] - rows[0]

    def stop(self) -> None:
        """Let anyone waiting for a batch get an error; for any thread."""
        driver = self._driver
        if driver is not None:
            driver.stop()

    def close(self, failed: bool = False) -> None:
        """Stop the reading and free its memory; idempotent, for any thread while none takes a batch.

        `cursor` and `rows` still work. After a failure, the worker processes end: one may hang, and all hold blocks.
        """
        if not self._closing.acquire(blocking=False):
            return
        driver, self._driver = self._driver, None
        if failed:
            self._recipe.execution.close()
        if driver is not None:
            driver.close()
        self.batches = iter(())
        self._bare = self.batches
        self._tasks.clear()
        self._recipe.execution.end_pass()

    def leave_to_parent(self) -> None:
        """Close nothing: this process was forked from the one that reads."""
        self._closing.acquire(blocking=False)

    def _open(self, taken: int, cursor: RankCursor | None) -> None:
        recipe = self._recipe
        starts = cursor or RankCursor(0, (WorkerCursor(),) * len(recipe.plan_of(0).shards))
        if self.exact and taken:
            starts = exact_cursor(recipe.plan_of, self._tasks_of, taken, laps=recipe.laps)
        self._turn = starts.turn
        self._base = 0 if not self.exact and cursor is None else taken
        self._logs = [BlockLog(start) for start in starts.shards]
        self._bare = iter(())
        if self.steps is None or taken < self.steps:
            self._driver = driver = self._open_driver(starts.shards)
            batches = self._batches(driver, starts.turn, taken)
            _drop(batches, taken - self._base)
            if recipe.sent:
                batches = prefetched(itertools.islice(batches, None if self.steps is None else self.steps - taken))
            self._bare = recipe.ended(batches, taken)
        handed = on_current_stream(self._bare) if recipe.sent else self._bare
        self.batches = handed if recipe.collate is None else _each(recipe.collate, handed)

    def _batches(self, driver: Driver, turn: int, taken: int) -> Iterator[Any]:
        """The rank's batches from the driver's blocks, after the first `taken`."""
        recipe = self._recipe
        cut, form, schedule = recipe.cut, recipe.form, recipe.plan_of(0).schedule
        if schedule is not None and not schedule.single:
            return mixed_batches(driver, self._logs, schedule, taken, form)
        if schedule is None and recipe.plan_of(0).joint and len(self._logs) > 1:
            return joint_batches(driver, self._logs, cut.size, form)
        shards = [
            shard_batches(driver, shard, cut, form, log, partial(self._head, shard))
            for shard, log in enumerate(self._logs)
        ]
        if schedule is not None:
            return scheduled_batches(shards, single_turns(schedule, taken))
        if recipe.laps and self.exact and len(shards) > 1:
            return scheduled_batches(shards, itertools.islice(turns(lap_rows(self._shard_rows), cut.size), taken, None))
        return rank_batches(shards, turn)

    def _open_driver(self, starts: Sequence[WorkerCursor]) -> Driver:
        def open_lap(lap: int) -> Driver:
            tasks = [self._left(lap, shard, start) for shard, start in enumerate(starts)]
            for done in [done for done in self._tasks if 0 < done <= lap]:
                del self._tasks[done]
            # A driver that starts at once uses all workers: those that begin in another lap may already work on it.
            needed = self._needed(starts)
            return self._recipe.execution.open(tasks, all(start.lap == lap for start in starts), needed)

        laps = LapDriver(open_lap, starts, lambda shard: self._logs[shard].begin_lap())
        driver = laps if self._recipe.laps else open_lap(0)
        return ReportedDriver(driver, self._recipe.hooks, self._epoch, starts)

    def _needed(self, starts: Sequence[WorkerCursor]) -> Sequence[Sequence[tuple[int, float]]]:
        """For a mix, when each task that a shard still has to read is needed."""
        schedule = self._recipe.plan_of(0).schedule
        if schedule is None:
            return ()
        begins = [itertools.accumulate((task.rows or 0 for task in tasks), initial=0) for tasks in self._tasks_of(0)]
        return [
            schedule.needed(shard, list(rows)[start.task : -1])
            for shard, (rows, start) in enumerate(zip(begins, starts, strict=True))
        ]

    def _left(self, lap: int, shard: int, start: WorkerCursor) -> Sequence[Task]:
        """The tasks that a shard that began at `start` still has to read in a lap."""
        if lap < start.lap:
            return ()
        tasks = self._tasks_of(lap)[shard]
        return tasks[start.task :] if lap == start.lap else tasks

    def _tasks_of(self, lap: int) -> Tasks:
        """The tasks of each shard in a lap."""
        if lap not in self._tasks:
            plan = self._recipe.plan_of(lap)
            self._tasks[lap] = [self._parted(plan.tasks(shard)) for shard in range(len(plan.shards))]
        return self._tasks[lap]

    def _parted(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks, in parts where a transform makes very much of one. Cursors of unknown counts name whole tasks."""
        row_bytes = self._recipe.row_bytes
        if not row_bytes or not self.exact:
            return tasks
        return [part for task in tasks for part in parted(task, row_bytes)]

    def _head(self, shard: int) -> Iterator[Block]:
        """The blocks of a shard from its beginning."""
        driver = self._recipe.execution.inline([self._tasks_of(0)[shard]])
        try:
            while (block := driver.next_block(0)) is not None:
                yield block
        finally:
            driver.close()


def _each(collate: Callable[[Any], Any], batches: Iterator[Any]) -> Iterator[Any]:
    """The function's result for each batch. A StopIteration of its own, which would end a `map`, is an error."""
    for batch in batches:
        yield collate(batch)


def _drop(batches: Iterator[Any], count: int) -> None:
    """Take and discard this many batches."""
    deque(itertools.islice(batches, count), maxlen=0)
