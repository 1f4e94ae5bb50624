"""One pass: an epoch being read, from a position in it on."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from torch_dataloader_utils.batching.cutter import Cutter
from torch_dataloader_utils.batching.sent import on_current_stream, prefetched
from torch_dataloader_utils.checkpoint.positions import BlockLog, EpochPosition, cursor_after, exact_cursor, rows_after
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.events import BlockEvent
from torch_dataloader_utils.executors.drivers import EndlessDriver, LapDriver, ReportedDriver
from torch_dataloader_utils.executors.task_stream import LapStream
from torch_dataloader_utils.executors.workers import Workers
from torch_dataloader_utils.iteration.failures import kept
from torch_dataloader_utils.iteration.pass_progress import PassProgress
from torch_dataloader_utils.metrics.meter import PassClock
from torch_dataloader_utils.model import RankCursor, Task, WorkerCursor
from torch_dataloader_utils.planning.rank_plan import BatchSchedule, RankPlan, rows_of_batches
from torch_dataloader_utils.reading.blocks import Block, Driver

Tasks = Sequence[Sequence[Task]]

# Never freed: closing a file of a server with sessions would end the parent's connection.
_OF_PARENTS: list[Pass] = []

END: Any = object()  # instead of a batch: there is none


class Pass:
    """One epoch being read: its plan, its driver, its batches, and how many of them were taken.

    If counts are known, a position is a number of batches. Otherwise it is the progress of the workers or, if that is
    unknown, a number of batches that are read and dropped.

    Args:
        position: where it begins.
        plan_of: the plan of a lap, with the shards that are read here.
        steps: batches of the phase, or None if known only after reading.
        cutter: how blocks become batches.
        workers: open drivers of tasks by shard.
        report: where blocks are reported.
        clock: of the pass, which runs.

    Attributes:
        position: where it began, and what it skips.
        steps: batches of the whole phase, including those before the position; None if known only after reading.
        taken: the batches of the phase that were taken, with those before the position.
        clock: its time.
        exact: whether counts are known.
        has_splits: whether this rank got any.
        shown: its bar or line.
        error: what ended it.
        over: whether its end was delivered.
        closed: whether no batch can be taken any more.
        reported: whether its end was reported.
    """

    shown: PassProgress

    def __init__(
        self,
        position: EpochPosition,
        plan_of: Callable[[int], RankPlan],
        steps: int | None,
        cutter: Cutter,
        workers: Workers,
        report: Callable[[BlockEvent], None],
        clock: PassClock,
    ) -> None:
        self.position, self.taken, self.steps, self.clock = position, position.taken, steps, clock
        self._plan_of, self._cutter, self._workers, self._report = plan_of, cutter, workers, report
        self.exact = plan_of(0).rows is not None
        self.has_splits = plan_of(0).num_splits > 0
        self.error: BaseException | None = None
        self.over = self.closed = self.reported = False
        # Batches and rows before the last jump, or the beginning; then the batch at which that was.
        self._counted = (0, 0, position.taken)
        self._ahead: list[Any] = []
        self._tasks: dict[int, Tasks] = {}
        self._logs: list[BlockLog] = []
        self._driver: Driver | None = None
        self._streams: list[LapStream] = []  # of shards without end
        self._closing = threading.Lock()  # taken once
        self._bare: Iterator[Any] = iter(())  # batches before they are handed over and collated
        self._batches = self._bare
        # Asked for at any time, by any thread, and by the garbage collector, so without a lock. Kept, because counting
        # millions of pieces takes a second.
        self._shard_rows = cache(lambda lap: plan_of(lap).shard_rows())
        self.skip(position)
        try:
            self._open(position.taken, position.cursor)
        except BaseException:
            self._end_reading(failed=True)
            raise

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.position.epoch

    @property
    def now(self) -> EpochPosition:
        """Its progress; for any thread."""
        taken = self.taken
        return replace(self.position, taken=taken, cursor=self._cursor(taken))

    @property
    def delivered_steps(self) -> int:
        """How many batches it delivered; for any thread."""
        batches, _, begun = self._counted
        return batches + max(self.taken - begun, 0)

    @property
    def delivered(self) -> tuple[int, int]:
        """How many batches it delivered, and their rows; for any thread."""
        taken = self.taken  # first: a jump sets what it counted before it moves on
        batches, rows, begun = self._counted
        return (batches, rows) if taken <= begun else (batches + taken - begun, rows + self._rows(begun, taken))

    @property
    def expected(self) -> tuple[int | None, int | None]:
        """How many batches it delivers in all, and their rows; None where known only after reading; for any thread."""
        (batches, rows), taken, steps = self.delivered, self.taken, self.steps
        if steps is None:
            return None, None
        left = [(taken, steps, 1), *((max(first, taken), min(last, steps), -1) for first, last in self._skip)]
        ahead = [span for span in left if span[0] < span[1]]
        batches += sum(sign * (last - first) for first, last, sign in ahead)
        if not self.exact:
            return batches, None
        return batches, rows + sum(sign * self._rows(first, last) for first, last, sign in ahead)

    @property
    def complete(self) -> bool:
        """Whether no batch is known to be left: the last one was delivered, or the rest is skipped."""
        steps = self.steps
        for first, last in reversed(self._skip):
            if steps is not None and last >= steps:
                steps = min(steps, first)
        return self.over or (steps is not None and self.taken >= steps)

    def take(self) -> Any:
        """The next batch, or END. An exception ends the pass and is kept as its error."""
        try:
            if self.taken == self._jump_at:
                self._jump()
            return self._ahead.pop() if self._ahead else next(self._batches, END)
        except BaseException as error:
            self.error, self.closed = kept(error), True
            self._stop_clock(False)
            if not isinstance(error, StaleIteratorError):  # else the thread that ended the wait closes it
                self._end_reading(failed=True)
            raise

    def error_again(self) -> BaseException:
        """Its error, to be raised; a copy is kept for the next time."""
        assert self.error is not None
        error, self.error = self.error, kept(self.error)
        return error

    def exhausted(self) -> bool:
        """Whether no batch is left, even if that requires fetching one; an exception is kept as the pass's error."""
        if self.complete or self.closed or self.steps is not None:
            return self.complete
        try:
            batch = self.take()
        except Exception as error:  # noqa: BLE001 - kept, and raised at its turn, if there is one
            self.error = error
            return False
        if batch is not END:
            self._ahead.append(batch)
        return batch is END

    def skip(self, position: EpochPosition) -> None:
        """Skip the steps that this position skips."""
        self.position = replace(self.position, skip=position.skip)
        before = position.before
        self._skip = [(max(first - before, 0), last - before) for first, last in position.skip if last > before]
        self._mark()

    def stop(self) -> None:
        """Let anyone waiting for a batch get an error; for any thread."""
        driver = self._driver
        if driver is not None:
            driver.stop()

    def close(self) -> None:
        """End it: no thread, file or buffer of it stays behind; idempotent, for any thread while none takes a batch.

        How far it came is still known.
        """
        self._stop_clock(self.complete and not self.over)
        self.closed = True
        self._end_reading()

    def leave_to_parent(self) -> None:
        """Make it unusable in this process, which was forked from the one that reads it; its progress stays known."""
        _OF_PARENTS.append(self)
        self._closing.acquire(blocking=False)  # nothing is closed here
        self.closed = self.reported = True
        self.shown.due = inf  # its bar is the parent's
        self.error = StaleIteratorError(
            f"this iterator of epoch {self.epoch} was begun by the parent of this process (pid {os.getpid()}), which "
            "continues to read it. Iterate the loader here for a pass with workers of its own."
        )

    def _stop_clock(self, delivered: bool) -> None:
        self.clock.stop(delivered)
        self.shown.close(self)

    def _end_reading(self, failed: bool = False) -> None:
        """Stop the reading and free its memory; after a failure, worker processes end, too: one may hang."""
        if not self._closing.acquire(blocking=False):
            return
        driver, self._driver = self._driver, None
        if failed:
            self._workers.close()
        if driver is not None:
            driver.close()
        self._batches = self._bare = iter(())
        self._tasks.clear()
        self._workers.end_pass()

    def _jump(self) -> None:
        """Continue after the skipped steps that begin here."""
        taken, steps = self.taken, self.steps
        last = next(last for first, last in self._skip if first <= taken < last)
        target = last if steps is None else max(taken, min(last, steps))
        self._counted = (*self.delivered, target)
        if self.exact:
            if self._driver is not None:
                self._driver.close()
            self._open(target, None)
        else:
            _drop(self._bare, target - taken - len(self._ahead))
        self._ahead.clear()
        self.taken = target
        self._mark()

    def _mark(self) -> None:
        """Record where the next jump is."""
        self._jump_at = next((max(first, self.taken) for first, last in self._skip if last > self.taken), -1)

    def _cursor(self, taken: int) -> RankCursor | None:
        """The progress of the workers after `taken` batches; None if the number of batches determines it."""
        if self.exact:
            return None
        if (schedule := self._endless) is not None:
            return self._cursor_of_streams(schedule, taken)
        size = self._cutter.size
        return cursor_after(self._logs, self._turn, taken - self._base, size.size, size.last_batch == "drop")

    @property
    def _endless(self) -> BatchSchedule | None:
        """The schedule, if shards have no end."""
        schedule = self._plan_of(0).schedule
        return schedule if schedule is not None and schedule.endless else None

    def _cursor_of_streams(self, schedule: BatchSchedule, taken: int) -> RankCursor:
        """The progress of shards without end after `taken` batches: the lap of each, and how far it is in it."""
        pairs = zip(schedule.after(self._base), schedule.after(taken), strict=True)
        cursors = []
        for (before, after), log, stream in zip(pairs, self._logs, self._streams, strict=True):
            at = log.after(after - before, 1)
            lap, task = stream.place(at.task) if at.task or at.rows else stream.start
            cursors.append(replace(at, lap=lap, task=task))
        return RankCursor(0, tuple(cursors))

    def _rows(self, first: int, last: int) -> int:
        """The number of rows in the batches `[first, last)`, none of them before the last jump."""
        plan = self._plan_of(0)
        if self._endless is not None or (self.exact and self._cutter.laps):
            return (last - first) * plan.batch_rows  # all are full, and the laps may be too many to plan
        if self.exact:
            rows = [rows_of_batches(plan, [self._shard_rows(0)], taken) for taken in (first, last)]
        else:
            size, drops = self._cutter.size.size, self._cutter.size.last_batch == "drop"
            rows = [rows_after(self._logs, self._turn, taken - self._base, size, drops) for taken in (first, last)]
        return rows[1] - rows[0]

    def _open(self, taken: int, cursor: RankCursor | None) -> None:
        """Begin to read after this number of batches, or at this progress of the workers."""
        plan, cutter = self._plan_of(0), self._cutter
        starts = cursor or RankCursor(0, (WorkerCursor(),) * len(plan.shards))
        if self.exact and taken:
            starts = exact_cursor(self._plan_of, self._tasks_of, taken, laps=cutter.laps)
        self._turn = starts.turn
        self._base = 0 if not self.exact and cursor is None else taken
        endless = self._endless is not None
        self._streams = [self._stream(*each) for each in enumerate(starts.shards)] if endless else []
        self._logs = [BlockLog(replace(start, task=0, lap=0) if endless else start) for start in starts.shards]
        self._bare = iter(())
        if self.steps is None or taken < self.steps:
            self._driver = driver = self._open_driver(starts.shards)
            batches = cutter.batches(plan, driver, self._logs, self._base, starts.turn, self._head, self._shard_rows)
            _drop(batches, taken - self._base)
            if cutter.sent:
                # Below what ends batches: see `prefetched`.
                batches = prefetched(itertools.islice(batches, None if self.steps is None else self.steps - taken))
            self._bare = cutter.ended(batches, taken)
        handed = on_current_stream(self._bare) if cutter.sent else self._bare
        # A StopIteration ends them and is never an error of the user's.
        self._batches = handed if cutter.collate is None else _each(cutter.collate, handed)

    def _stream(self, shard: int, start: WorkerCursor) -> LapStream:
        """The tasks of a shard without end, from there on."""
        plan_of = self._plan_of
        return LapStream(lambda lap: plan_of(lap).tasks(shard), start)

    def _open_streams(self, schedule: BatchSchedule, starts: Sequence[WorkerCursor]) -> Driver:
        """A driver of shards without end; of those of which nothing is needed, nothing is read."""
        pairs = list(zip(self._streams, schedule.endless, strict=True))
        tasks = [stream if shard.share else () for stream, shard in pairs]
        driver = self._workers.open(tasks)
        units = self._plan_of(0).unit.plural
        return EndlessDriver(driver, self._streams, schedule.endless, starts, units)

    def _open_driver(self, starts: Sequence[WorkerCursor]) -> Driver:
        if (schedule := self._endless) is not None:
            return ReportedDriver(self._open_streams(schedule, starts), self._report, self.epoch, starts)

        def open_lap(lap: int) -> Driver:
            tasks = [self._left(lap, shard, start) for shard, start in enumerate(starts)]
            for done in [done for done in self._tasks if 0 < done <= lap]:
                del self._tasks[done]
            # A driver that starts at once uses all workers: those that begin in another lap may already work on it.
            needed = self._needed(starts)
            return self._workers.open(tasks, all(start.lap == lap for start in starts), needed)

        laps = LapDriver(open_lap, starts, lambda shard: self._logs[shard].begin_lap())
        driver = laps if self._cutter.laps else open_lap(0)
        return ReportedDriver(driver, self._report, self.epoch, starts)

    def _needed(self, starts: Sequence[WorkerCursor]) -> Sequence[Sequence[float]]:
        """For a mix, when each task that a shard still has to read is needed."""
        schedule = self._plan_of(0).schedule
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
        """The tasks of each shard in a lap; whole ones where counts are unknown, because cursors name those."""
        if lap not in self._tasks:
            plan = self._plan_of(lap)
            tasks: Iterable[Sequence[Task]] = (plan.tasks(shard) for shard in range(len(plan.shards)))
            self._tasks[lap] = list(map(self._workers.parts, tasks) if self.exact else tasks)
        return self._tasks[lap]

    def _head(self, shard: int) -> Iterator[Block]:
        """The blocks of a shard from its beginning."""
        driver = self._workers.inline([self._tasks_of(0)[shard]])
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
