"""Passes over the data: which position comes next, and how a loader's iterators behave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.events import Hooks, PassEvent
from torch_dataloader_utils.iteration.begun_pass import Pass
from torch_dataloader_utils.iteration.rank_run import RankRun
from torch_dataloader_utils.metrics.meter import Meter, PassClock
from torch_dataloader_utils.storage.locks import ForkLock, renew_in_children

_LOG = logging.getLogger("torch_dataloader_utils")

_LOOK = 0.1  # seconds between checks whether there is a pass to be stopped


class Passes:
    """The sequence of passes over one dataset; at most one is live.

    Threads take turns: one at a time takes a batch, begins a pass or sets the next one. `place`, `epoch` and `live` can
    be read at any time: the next position is known before the pass it follows has ended.

    A pass begins at the first `next` of an iterator, because frameworks call `iter`, `set_epoch` and `load_state_dict`
    in any order. It begins at the loaded position or at the epoch of the last `set_epoch`, whichever was called later
    since the previous pass began (`set_epoch` with the loaded epoch keeps the position, and a framework's
    `propose_epoch` any loaded one). Without either, it is the epoch after the last completed pass, or the same epoch
    again if that pass was abandoned.

    Args:
        start: begins to read at a position.
        hooks: are told of passes that have ended.
        why_empty: what it means that a pass has no batch, if their number was unknown.
    """

    def __init__(self, start: Callable[[EpochPosition], RankRun], hooks: Hooks, why_empty: str) -> None:
        self._start = start
        self._why_empty = why_empty
        self._hooks = hooks
        self.meter = Meter()
        hooks.add(self.meter.add)
        self.turn = ForkLock()
        self._next_epoch = 0
        self._explicit = False
        self._pending: EpochPosition | None = None
        self._loaded_by_counter = self._spent = False
        self._live: Pass | None = None
        self._warned = False
        self._enders: list[None] = []  # one for each thread that ends whatever pass is live or begins
        renew_in_children(self)

    def renew(self) -> None:
        """Leave the live pass to the parent of this process, which was forked from it."""
        self._enders.clear()  # their threads are not here
        if self._live is not None and not self._live.closed:
            self._live.leave_to_parent()

    def set_epoch(self, epoch: int) -> EpochPosition | None:
        """The position that is given up because the next pass is now that of this epoch; None if there was none."""
        with self.turn:
            given_up = self._pending
            self._next_epoch, self._explicit = epoch, True
            if given_up is None or given_up.epoch == epoch:
                return None
            self._pending, self._spent = None, False
            return given_up

    def propose_epoch(self, epoch: int, *, fixed: bool = False) -> EpochPosition | None:
        """As `set_epoch`, for an epoch that a framework counts: a position that was loaded or skipped to outranks it.

        Args:
            epoch: of the framework.
            fixed: whether it is the same in all passes: then no position at the beginning of another outranks it.
        """
        with self.turn:
            pending = self._pending
            if pending is not None and not (
                (self._loaded_by_counter and epoch > pending.epoch)
                or (fixed and pending == EpochPosition(pending.epoch))
            ):
                return None
        return self.set_epoch(epoch)

    def load(self, place: EpochPosition, *, by_counter: bool = False, spent: bool = False) -> None:
        """End the live pass; the next one begins at this position, and later ones count from there.

        Args:
            place: the position.
            by_counter: whether a framework loads it that counts epochs: a later epoch that it proposes then means that
                it has finished with this one.
            spent: whether the iterator that asks next gets no batch, and the one after it begins there.
        """
        with self.ended():
            self._next_epoch, self._explicit, self._pending = place.epoch, False, place
            self._live, self._loaded_by_counter, self._spent = None, by_counter, spent

    def is_spent(self) -> bool:
        """Whether the iterator that asks gets no batch, once after a position was loaded so; while holding the turn."""
        spent, self._spent = self._spent, False
        return spent

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
                self._pending, self._loaded_by_counter = place, False

    @contextmanager
    def ended(self, find: Callable[[], Pass | None] | None = None) -> Iterator[None]:
        """A pass ended, by default the live one, while holding the turn; a thread waiting for a batch gets an error."""
        ender = [None] if find is None else []
        find, lock, waiting = find or (lambda: self._live), self.turn.lock, True
        self._enders += ender
        try:
            while waiting:
                live = find()
                if live is not None:
                    live.run.stop()
                waiting = not lock.acquire(timeout=_LOOK)  # another thread may be beginning a pass
        finally:
            del self._enders[: len(ender)]
        try:
            live = find()
            if live is not None:
                live.close()
                self._report(live)
            yield
        finally:
            lock.release()

    @property
    def ending(self) -> bool:
        """Whether a thread waits to end any pass: one that waits to begin must give up."""
        return bool(self._enders)

    @property
    def place(self) -> EpochPosition:
        """Where the next pass begins if that was loaded; else the live pass's progress; else the next epoch."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending
        return EpochPosition(self._next_epoch) if live is None else live.now

    @property
    def loaded(self) -> EpochPosition | None:
        """The position that was loaded or skipped to, and at which no pass has begun yet."""
        return self._pending

    @property
    def start(self) -> EpochPosition:
        """Where the next pass begins: if a live one is left before its end, the beginning of its epoch."""
        pending, live = self._pending, self._live
        if pending is not None:
            return pending
        over = live is not None and live.complete and not self._explicit
        return EpochPosition(self._next_epoch + over)

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
            _LOG.warning("epoch %d: the pass of this rank was empty: %s", over.epoch, self._why_empty)
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
