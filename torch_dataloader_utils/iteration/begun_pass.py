"""A pass that has begun."""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf
from typing import Any

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.iteration.failures import kept
from torch_dataloader_utils.iteration.rank_run import RankRun
from torch_dataloader_utils.metrics.meter import PassClock

# Never freed: closing a file of a server with sessions would end the parent's connection.
_OF_PARENTS: list[RankRun] = []

END: Any = object()  # in place of a batch: there is none


class Pass:
    """A pass that has begun: what it executes, and its progress."""

    __slots__ = (
        "_ahead", "_counted", "_skip", "clock", "closed", "error", "jump_at", "over", "place", "reported", "run",
        "shown", "taken",
    )  # fmt: skip

    def __init__(self, place: EpochPosition, run: RankRun, clock: PassClock) -> None:
        self.place = place
        self.run = run
        self.clock = clock
        self.taken = place.taken
        self.error: BaseException | None = None
        self._ahead: list[Any] = []
        self._counted = (0, 0, place.taken)  # batches and rows before the last jump, or the beginning; then its place
        self.over = self.closed = self.reported = False
        self.skip(place)
        self.shown = run.show(self)

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.place.epoch

    @property
    def now(self) -> EpochPosition:
        """Its progress; for any thread."""
        taken = self.taken
        return replace(self.place, taken=taken, cursor=self.run.cursor(taken))

    @property
    def steps(self) -> int:
        """How many batches it delivered; for any thread."""
        batches, _, begun = self._counted
        return batches + max(self.taken - begun, 0)

    @property
    def delivered(self) -> tuple[int, int]:
        """How many batches it delivered, and their rows; for any thread."""
        taken = self.taken  # first: a jump sets what it counted before it moves on
        batches, rows, begun = self._counted
        return (batches, rows) if taken <= begun else (batches + taken - begun, rows + self.run.rows(begun, taken))

    @property
    def expected(self) -> tuple[int | None, int | None]:
        """How many batches it delivers in all, and their rows; None where known only after reading; for any thread."""
        (batches, rows), taken, steps = self.delivered, self.taken, self.run.steps
        if steps is None:
            return None, None
        left = [(taken, steps, 1), *((max(first, taken), min(last, steps), -1) for first, last in self._skip)]
        ahead = [span for span in left if span[0] < span[1]]
        batches += sum(sign * (last - first) for first, last, sign in ahead)
        if not self.run.exact:
            return batches, None
        return batches, rows + sum(sign * self.run.rows(first, last) for first, last, sign in ahead)

    @property
    def complete(self) -> bool:
        """Whether no batch is known to be left: the last one was delivered, or the rest is skipped."""
        steps = self.run.steps
        for first, last in reversed(self._skip):
            if steps is not None and last >= steps:
                steps = min(steps, first)
        return self.over or (steps is not None and self.taken >= steps)

    def take(self) -> Any:
        """The next batch, or END. An exception ends the pass and is kept as its error."""
        try:
            if self.taken == self.jump_at:
                self._jump()
            return self._ahead.pop() if self._ahead else next(self.run.batches, END)
        except BaseException as error:
            self.error, self.closed = kept(error), True
            self._stop(False)
            if not isinstance(error, StaleIteratorError):  # else the thread that ended the wait closes it
                self.run.close(failed=True)
            raise

    def error_again(self) -> BaseException:
        """Its error, to be raised; a copy is kept for the next time."""
        assert self.error is not None
        error, self.error = self.error, kept(self.error)
        return error

    def exhausted(self) -> bool:
        """Whether no batch is left, even if that requires fetching one; an exception is kept as the pass's error."""
        if self.complete or self.closed or self.run.steps is not None:
            return self.complete
        try:
            batch = self.take()
        except Exception as error:  # noqa: BLE001 - kept, and raised at its turn, if there is one
            self.error = error
            return False
        if batch is not END:
            self._ahead.append(batch)
        return batch is END

    def skip(self, place: EpochPosition) -> None:
        """Skip the steps that this position skips."""
        self.place = replace(self.place, skip=place.skip)
        before = place.before
        self._skip = [(max(first - before, 0), last - before) for first, last in place.skip if last > before]
        self._mark()

    def _jump(self) -> None:
        """Continue after the skipped steps that begin here."""
        taken, steps = self.taken, self.run.steps
        last = next(last for first, last in self._skip if first <= taken < last)
        target = last if steps is None else max(taken, min(last, steps))
        self._counted = (*self.delivered, target)
        self.run.jump(taken + len(self._ahead), target)
        self._ahead.clear()
        self.taken = target
        self._mark()

    def _mark(self) -> None:
        """Record where the next jump is."""
        self.jump_at = next((max(first, self.taken) for first, last in self._skip if last > self.taken), -1)

    def leave_to_parent(self) -> None:
        """Make it unusable in this process, which was forked from the one that reads it; its progress stays known."""
        _OF_PARENTS.append(self.run)
        self.run.leave_to_parent()
        self.closed = self.reported = True
        self.shown.due = inf  # its bar is the parent's
        self.error = StaleIteratorError(
            f"this iterator of epoch {self.epoch} was begun by the parent of this process (pid {os.getpid()}), which "
            "continues to read it. Iterate the loader here for a pass with workers of its own."
        )

    def close(self) -> None:
        """End it: no thread, file or buffer of it stays behind; idempotent."""
        self._stop(self.complete and not self.over)
        self.closed = True
        self.run.close()

    def _stop(self, delivered: bool) -> None:
        self.clock.stop(delivered)
        self.shown.close(self)
