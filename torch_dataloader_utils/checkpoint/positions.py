"""A position in an epoch, and the positions of a rank's workers after some of its batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

import numpy as np

from torch_dataloader_utils.model import RankCursor, Task, WorkerCursor
from torch_dataloader_utils.planning.phases import Phase
from torch_dataloader_utils.planning.rank_plan import RankPlan, places_after
from torch_dataloader_utils.planning.workers import delivered_by_shard
from torch_dataloader_utils.rows import I64

TasksOf = Callable[[int], Sequence[Sequence[Task]]]
Steps = tuple[int, int]  # the steps [a, b) of an epoch


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """A position in an epoch: where a pass begins, or its progress.

    Attributes:
        epoch: the epoch.
        taken: batches of the epoch's current phase that were delivered or left out.
        past: the phases before it, which ran under other options.
        skip: the steps of the epoch that are left out, numbered over all phases: sorted, disjoint.
        cursor: the progress of the workers, if rows are known only after reading.
        ranks: batches of each rank when the pass began, if the ranks were at different steps; None for all of them.
    """

    epoch: int
    taken: int = 0
    past: tuple[Phase, ...] = ()
    skip: tuple[Steps, ...] = ()
    cursor: RankCursor | None = None
    ranks: tuple[int | None, ...] = ()

    @property
    def before(self) -> int:
        """The batches of the phases before the current one."""
        return sum(phase.steps for phase in self.past)

    def skipping(self, first: int, last: int) -> EpochPosition:
        """The same position with the steps `[first, last)` left out, as far as they are still ahead."""
        first = max(first, self.before + self.taken)
        return self if first >= last else replace(self, skip=_joined([*self.skip, (first, last)]))

    def kept(self, steps: int) -> int:
        """How many of the first `steps` steps of the epoch are not left out."""
        return steps - sum(max(0, min(last, steps) - first) for first, last in self.skip)


def _joined(ranges: Iterable[Steps]) -> tuple[Steps, ...]:
    """The same steps as sorted, disjoint ranges."""
    out: list[Steps] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], last)
        else:
            out.append((first, last))
    return tuple(out)


class TakenBlock(Protocol):
    """A block, as far as positions depend on it: see `Block`."""

    @property
    def rows(self) -> int:
        """The number of its rows."""

    @property
    def left_out(self) -> I64 | None:
        """The rows of its task that are left out; None for none."""


@dataclass(slots=True)
class BlockLog:
    """What the loop over the blocks of a shard saw: enough to infer its position after any number of batches.

    So positions cost nothing per batch: they are computed when a state is requested. Cursors count rows that were left
    out of blocks because a transform failed for them; batches do not hold them.

    Attributes:
        start: where it began.
        gaps: for blocks that lack such rows, by their number: those rows, as of `Block`.
        ends: rows up to the end of each block taken (all rows of a block, even if the first was begun before).
        laps: the number of blocks taken when each further lap began.
        ended: whether there are no more.
    """

    start: WorkerCursor = field(default_factory=WorkerCursor)
    ends: list[int] = field(default_factory=list)
    laps: list[int] = field(default_factory=list)
    ended: bool = False
    gaps: dict[int, I64] = field(default_factory=dict)

    def take(self, block: TakenBlock) -> int:
        """Record a block; returns how many of its rows were delivered before."""
        number = len(self.ends)
        if block.left_out is not None:
            self.gaps[number] = block.left_out
        self.ends.append(self._end(number) + block.rows)
        return 0 if number else self._before

    def begin_lap(self) -> None:
        """Record that the next block belongs to the next lap."""
        self.laps.append(len(self.ends))

    def batches(self, size: int, drops_last: bool) -> int | None:
        """How many batches of `size` rows the shard has; None while there are more."""
        if not self.ended:
            return None
        rows = self._end(len(self.ends)) - self._before
        return rows // size if drops_last else -(-rows // size)

    def rows(self, batches: int, size: int) -> int:
        """The number of rows in its first `batches` batches of `size` rows."""
        return min(batches * size, self._end(len(self.ends)) - self._before)

    def after(self, batches: int, size: int) -> WorkerCursor:
        """Where the shard is after that many batches of `size` rows."""
        if not batches:
            return self.start
        rows = self._before + batches * size
        block = bisect_right(self.ends, rows)
        laps = bisect_right(self.laps, block)
        first = self.laps[laps - 1] if laps else 0
        task = block - first + (0 if laps else self.start.task)
        lap = self.start.lap + laps
        begin = self._end(block)
        if block < len(self.ends) and rows > begin:
            return WorkerCursor(task, *self._read(block, rows - begin, self.ends[block] - begin), lap)
        # A lap without a row so far starts again: whether it has any decides if there is another.
        if lap and begin == self._end(first) and (laps or not self.start.task):
            task = 0
        return WorkerCursor(task, 0, 0, lap)

    @property
    def _before(self) -> int:
        """The rows of the first block that were delivered before."""
        gaps = self.gaps.get(0)
        return self.start.rows - (0 if gaps is None else int(np.searchsorted(gaps, self.start.rows)))

    def _read(self, block: int, rows: int, live: int) -> tuple[int, int]:
        """How many rows of its task lie before row `rows` of a block, and how many there are."""
        gaps = self.gaps.get(block)
        if gaps is None:
            return rows, live
        return rows + int(np.searchsorted(gaps - np.arange(len(gaps)), rows, side="right")), live + len(gaps)

    def _end(self, blocks: int) -> int:
        return self.ends[blocks - 1] if blocks else 0


def cursor_after(logs: Sequence[BlockLog], turn: int, taken: int, size: int, drops_last: bool) -> RankCursor:
    """The progress of the workers after `taken` batches of the rank.

    Args:
        logs: of each worker.
        turn: the worker of the first batch.
        taken: batches of the rank since then.
        size: rows of a batch.
        drops_last: whether a worker's short batch is dropped.
    """
    given, at = _batches_by_shard(logs, turn, taken, size, drops_last)
    return RankCursor(at, tuple(log.after(batches, size) for log, batches in zip(logs, given, strict=True)))


def rows_after(logs: Sequence[BlockLog], turn: int, taken: int, size: int, drops_last: bool) -> int:
    """The number of rows in the first `taken` batches of a rank; arguments as for `cursor_after`."""
    given, _ = _batches_by_shard(logs, turn, taken, size, drops_last)
    return sum(log.rows(batches, size) for log, batches in zip(logs, given, strict=True))


def _batches_by_shard(
    logs: Sequence[BlockLog], turn: int, taken: int, size: int, drops_last: bool
) -> tuple[list[int], int]:
    """How many of the first `taken` batches each shard delivered, and whose turn is next."""
    order = [*range(turn, len(logs)), *range(turn)]
    if not any(log.ended for log in logs):
        rounds, at = divmod(taken, len(logs))
        given = [rounds + (place < at) for place in range(len(logs))]
    else:
        counts = [logs[shard].batches(size, drops_last) for shard in order]
        known = [taken if count is None else count for count in counts]
        given, at = delivered_by_shard(known, min(taken, sum(known)))
    by_shard = dict(zip(order, given, strict=True))
    return [by_shard[shard] for shard in range(len(logs))], order[at]


def exact_cursor(plan_of: Callable[[int], RankPlan], tasks_of: TasksOf, taken: int, *, laps: bool) -> RankCursor:
    """Where the workers are after `taken` batches of a plan that knows its counts.

    Args:
        plan_of: the plan of a lap.
        tasks_of: the tasks of each worker in a lap.
        taken: batches of the rank.
        laps: whether a worker that has ended starts again.
    """
    places, turn = places_after(plan_of, taken, laps=laps)
    return RankCursor(turn, tuple(_located(tasks_of(lap)[w], rows, lap) for w, (lap, rows) in enumerate(places)))


def _located(tasks: Sequence[Task], rows: int, lap: int) -> WorkerCursor:
    """The cursor of a worker that has delivered this many rows of a lap."""
    ends = list(accumulate(task.rows or 0 for task in tasks))
    task = bisect_right(ends, rows)
    return WorkerCursor(task, rows - (ends[task - 1] if task else 0), 0, lap)
