"""Passes over the data: which position comes next, and how a loader's iterators behave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.events import Hooks, PassEvent
from torch_dataloader_utils.iteration.rank_run import RankRun
from torch_dataloader_utils.metrics.meter import Meter, PassClock
from torch_dataloader_utils.storage.locks import ForkLock

_LOG = logging.getLogger("torch_dataloader_utils")

END: Any = object()  # in place of a batch: there is none
_LOOK = 0.1  # seconds between checks whether there is a pass to be stopped


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
            self.error, self.closed = error, True
            self._stop(False)
            if not isinstance(error, StaleIteratorError):  # else the thread that ended the wait closes it
                self.run.close()
            raise

    def exhausted(self) -> bool:
        """Whether no batch is left, even if that requires fetching one; an exception is kept as the pass's error."""
        if self.complete or self.closed or self.run.steps is not None:
            return self.complete
        try:
            batch = self.take()
        except Exception:  # noqa: BLE001 - kept, and raised at its turn, if there is one
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

    def close(self) -> None:
        """End it: no thread, file or buffer of it stays behind; idempotent."""
        self._stop(self.complete and not self.over)
        self.closed = True
        self.run.close()

    def _stop(self, delivered: bool) -> None:
        self.clock.stop(delivered)
        self.shown.close(self)


class Passes:
    """The sequence of passes over one dataset; at most one is live.

    Threads take turns: one at a time takes a batch, begins a pass or sets the next one. `place`, `epoch` and `live` can
    be read at any time: the next position is known before the pass it follows has ended.

    A pass begins at the first `next` of an iterator, because frameworks call `iter`, `set_epoch` and `load_state_dict`
    in any order. It begins at the loaded position or at the epoch of the last `set_epoch`, whichever was called later
    since the previous pass began (`set_epoch` with the loaded epoch keeps the position). Without either, it is the
    epoch after the last completed pass, or the same epoch again if that pass was abandoned.
    """

    def __init__(self, start: Callable[[EpochPosition], RankRun], hooks: Hooks) -> None:
        self._start = start
        self._hooks = hooks
        self.meter = Meter()
        hooks.add(self.meter.add)
        self.turn = ForkLock()
        self._next_epoch = 0
        self._explicit = False
        self._pending: EpochPosition | None = None
        self._live: Pass | None = None
        self._warned = False

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of this epoch."""
        with self.turn:
            self._next_epoch, self._explicit = epoch, True
            if self._pending is not None and self._pending.epoch != epoch:
                self._pending = None

    def load(self, place: EpochPosition) -> None:
        """End the live pass; the next one begins at this position, and later ones count from there."""
        with self.ended():
            self._next_epoch, self._explicit, self._pending = place.epoch, False, place
            self._live = None

    def skip_steps(self, first: int, last: int) -> None:
        """Leave out the steps `[first, last)` of the live pass, or of the next one."""
        if first == last:
            return
        with self.turn:
            live = self._live
            if live is not None and live.complete and self._pending is None:
                live.over = True
                self.finish(live)
            place = self.place.skipping(first, last)
            if self._live is not None and self._pending is None:
                self._live.skip(place)
            else:
                self._pending = place

    @contextmanager
    def ended(self, find: Callable[[], Pass | None] | None = None) -> Iterator[None]:
        """A pass ended, by default the live one, while holding the turn; a thread waiting for a batch gets an error."""
        find, lock, waiting = find or (lambda: self._live), self.turn.lock, True
        while waiting:
            live = find()
            if live is not None:
                live.run.stop()
            waiting = not lock.acquire(timeout=_LOOK)  # another thread may be beginning a pass
        try:
            live = find()
            if live is not None:
                live.close()
                self._report(live)
            yield
        finally:
            lock.release()

    @property
    def place(self) -> EpochPosition:
        """Where the next pass begins if that was loaded; else the live pass's progress; else the next epoch."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending
        return EpochPosition(self._next_epoch) if live is None else live.now

    @property
    def asked(self) -> int | None:
        """The epoch that was set, loaded or skipped in since the last pass began; None without such a call."""
        if self._pending is not None:
            return self._pending.epoch
        return self._next_epoch if self._explicit else None

    @property
    def epoch(self) -> int:
        """The epoch of that position."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending.epoch
        return self._next_epoch if live is None else live.epoch

    def next_place(self) -> EpochPosition:
        """As `place`, but if no batch of the live pass is left, the beginning of the epoch after it.

        If the length is unknown, this fetches the next batch.
        """
        with self.turn:
            live = self._live
            if self._pending is not None or live is None or not live.exhausted():
                return self.place
            return EpochPosition(self._next_epoch if self._explicit else live.epoch + 1)

    @property
    def live(self) -> Pass | None:
        """The last pass begun, until it ends."""
        return self._live

    def begin(self) -> Pass:
        """End the live pass and start the next one; while holding the turn."""
        old = self._live
        if old is not None:
            old.clock.stop(old.complete)
        clock = PassClock(self.meter)
        if old is not None:
            if old.exhausted():
                self.finish(old)
            elif not self._explicit and self._pending is None:
                _LOG.info("the last pass was abandoned: epoch %d starts again from its beginning", self._next_epoch)
            old.close()
            self._report(old)
        place = self._pending or EpochPosition(self._next_epoch)
        before = self.meter.totals()
        # A failed start changes nothing: the next one is at the same position.
        self._live = Pass(place, self._start(place), clock)
        self.meter.begin(self._live, before)
        self._next_epoch, self._explicit, self._pending = place.epoch, False, None
        return self._live

    def finish(self, over: Pass) -> None:
        """Record that this pass has ended, and end its reading; while holding the turn."""
        if over.run.steps is None and over.over and not over.taken and not self._warned:
            self._warned = True
            _LOG.warning(
                "epoch %d: the pass of this rank was empty, because the filter matched none of its rows", over.epoch
            )
        if self._live is over:
            if not self._explicit and self._pending is None:
                self._next_epoch = over.epoch + 1
            self._live = None
        over.close()  # first: a callback may raise
        self._report(over)

    def _report(self, over: Pass) -> None:
        """Report a pass that has ended, once."""
        self.meter.end(over)
        if not over.reported:
            over.reported = True
            self._hooks(PassEvent(over.epoch, *over.delivered, over.complete))
