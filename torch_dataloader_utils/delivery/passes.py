"""Passes over the data: which place comes next, and what an iterator of a loader does."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.model import RankCursor

_LOG = logging.getLogger("torch_dataloader_utils")

Steps = tuple[int, int]  # the steps [a, b) of an epoch


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an epoch: where a pass begins, or how far it came.

    Attributes:
        epoch: the epoch.
        taken: batches of the current stretch of the epoch that were delivered or left out.
        past: the stretches before it, which ran under other options; opaque here.
        before: the batches of those.
        skip: the steps of the epoch that are left out, numbered over all stretches: sorted, disjoint.
        cursor: how far the workers came, where only reading tells how many rows there are.
        ranks: batches of each rank (None: all of them) when the pass began, where the ranks were at different steps.
    """

    epoch: int
    taken: int = 0
    past: tuple[Any, ...] = ()
    before: int = 0
    skip: tuple[Steps, ...] = ()
    cursor: RankCursor | None = None
    ranks: tuple[int | None, ...] = ()

    def skipping(self, first: int, last: int) -> Place:
        """The same place with the steps `[first, last)` left out, as far as they are yet to come."""
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


class Run(Protocol):
    """What a pass executes: batches from a place on."""

    batches: Iterator[Any]  # in order
    steps: int | None  # batches of the whole stretch, those before the place included; None where only reading tells

    def jump(self, taken: int, target: int) -> None:
        """Go on behind the first `target` batches of the stretch, from behind the first `taken`."""

    def cursor(self, taken: int) -> RankCursor | None:
        """How far the workers are once `taken` batches are; None where the number says it all."""

    def close(self) -> None:
        """Stop the reading; idempotent. `cursor` still answers."""


class Pass:
    """A pass that has begun: what it executes, and how far it came."""

    __slots__ = ("_skip", "ahead", "closed", "error", "jump_at", "over", "place", "run", "taken")

    def __init__(self, place: Place, run: Run) -> None:
        self.place = place
        self.run = run
        self.taken = place.taken
        self.error: BaseException | None = None
        self.ahead: list[Any] = []
        self.over = self.closed = False
        self.skip(place)

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.place.epoch

    @property
    def now(self) -> Place:
        """How far it came."""
        return replace(self.place, taken=self.taken, cursor=self.run.cursor(self.taken))

    @property
    def complete(self) -> bool:
        """Whether it is known that no batch is left: the last was delivered, or what is left is left out."""
        steps = self.run.steps
        for first, last in reversed(self._skip):
            if steps is not None and last >= steps:
                steps = min(steps, first)
        return self.over or (steps is not None and self.taken >= steps)

    def exhausted(self) -> bool:
        """Whether no batch is left, even if that takes a look."""
        if self.complete or self.error is not None or self.closed or self.run.steps is not None:
            return self.complete
        if not self.ahead:
            self.ahead.extend(batch for batch in [next(self.run.batches, None)] if batch is not None)
        return not self.ahead

    def skip(self, place: Place) -> None:
        """Leave out the steps that this place leaves out."""
        self.place = replace(self.place, skip=place.skip)
        before = place.before
        self._skip = [(max(first - before, 0), last - before) for first, last in place.skip if last > before]
        self._mark()

    def jump(self) -> None:
        """Go on behind the steps to be left out that begin here."""
        taken, steps = self.taken, self.run.steps
        last = next(last for first, last in self._skip if first <= taken < last)
        self.taken = last if steps is None else max(taken, min(last, steps))
        self.run.jump(taken, self.taken)
        self._mark()

    def _mark(self) -> None:
        """Note where the next jump is."""
        self.jump_at = next((max(first, self.taken) for first, last in self._skip if last > self.taken), -1)

    def close(self) -> None:
        """End it: no thread, file or buffer of it stays behind; idempotent."""
        self.closed = True
        self.run.close()


class Passes:
    """The sequence of passes over one dataset; at most one is live.

    A pass begins at the first `next` of an iterator, since frameworks call `iter`, `set_epoch` and `load_state_dict` in
    any order. It begins at the place that was loaded, or at the epoch of the last `set_epoch`, whichever was called
    later since the pass before it began (`set_epoch` of the loaded epoch keeps the place); without either it is the
    epoch after the last completed pass, or the same epoch afresh if that pass was left half-way.
    """

    def __init__(self, start: Callable[[Place], Run]) -> None:
        self._start = start
        self._next_epoch = 0
        self._explicit = False
        self._pending: Place | None = None
        self._live: Pass | None = None
        self._warned = False

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch's."""
        if self._pending is not None and self._pending.epoch != epoch:
            self._pending = None
        self._next_epoch, self._explicit = epoch, True

    def load(self, place: Place) -> None:
        """End the live pass; the next one begins at this place, and those after it count on from there."""
        if self._live is not None:
            self._live.close()
        self._live = None
        self._next_epoch, self._explicit, self._pending = place.epoch, False, place

    def skip_steps(self, first: int, last: int) -> None:
        """Leave out the steps `[first, last)` of the live pass, or of the next one."""
        if first == last:
            return
        live = self._live
        if live is not None and live.complete and self._pending is None:
            live.over = True
            self.finish(live)
        place = self.place.skipping(first, last)
        if self._live is not None and self._pending is None:
            self._live.skip(place)
        else:
            self._pending = place

    @property
    def place(self) -> Place:
        """Where the next pass begins if it was loaded; else how far the live pass came; else the next epoch."""
        if self._pending is not None:
            return self._pending
        return Place(self._next_epoch) if self._live is None else self._live.now

    @property
    def epoch(self) -> int:
        """The epoch of that place."""
        if self._pending is not None:
            return self._pending.epoch
        return self._next_epoch if self._live is None else self._live.epoch

    @property
    def live(self) -> Pass | None:
        """The pass that was begun last, while it is not over."""
        return self._live

    def begin(self) -> Pass:
        """End the live pass and start the next one."""
        old = self._live
        if old is not None:
            if old.exhausted():
                self.finish(old)
            elif not self._explicit and self._pending is None:
                _LOG.info("the last pass was left half-way: epoch %d starts afresh", self._next_epoch)
            old.close()
        place = self._pending or Place(self._next_epoch)
        # A start that fails changes nothing: the next one is of the same place.
        self._live = Pass(place, self._start(place))
        self._next_epoch, self._explicit, self._pending = place.epoch, False, None
        return self._live

    def finish(self, over: Pass) -> None:
        """Note that this pass is over."""
        if over.run.steps is None and over.over and not over.taken and not self._warned:
            self._warned = True
            _LOG.warning("epoch %d: the filter let no row of this rank through; the pass was empty", over.epoch)
        if self._live is over:
            self._live = None
            if not self._explicit and self._pending is None:
                self._next_epoch = over.epoch + 1


class BatchIterator:
    """One pass: begins at the first `next`, ends at its last batch, at `close()`, or when another pass begins."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._pass: Pass | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StaleIteratorError: another pass was started on this loader, or a state was loaded.
        """
        own = self._pass
        if own is None:
            own = self._begin()
        if own.over:
            raise StopIteration
        if self._passes.live is not own:
            raise StaleIteratorError(
                f"another pass was started on this loader, or a state was loaded: this iterator of epoch {own.epoch} "
                f"ended after {own.taken} batches. Use one iterator at a time, or a loader for each."
            )
        if own.error is not None:
            raise own.error
        try:
            if own.taken == own.jump_at:
                own.jump()
            batch = own.ahead.pop() if own.ahead else next(own.run.batches)
        except StopIteration:
            own.over = True
            self._passes.finish(own)
            own.close()
            raise
        except BaseException as error:
            own.error = error
            own.close()
            raise
        own.taken += 1
        return batch

    def at_end(self) -> bool:
        """Whether no batch follows the newest one; where the length is unknown, that takes a look at the next.

        What goes wrong in the look is raised in its turn, by the next `next`.
        """
        own = self._pass
        if own is None or own.error is not None:
            return False
        try:
            if own.run.steps is None and own.taken == own.jump_at:
                own.jump()
            return own.exhausted()
        except Exception as error:  # noqa: BLE001 - kept, and raised in its turn
            own.error = error
            own.close()
            return False

    def _begin(self) -> Pass:
        own = self._pass = self._passes.begin()
        # The passes keep how far it came; its reading ends with this iterator.
        weakref.finalize(self, own.close).atexit = False
        return own

    def close(self) -> None:
        """End the pass: no thread, file or buffer of it stays behind; idempotent."""
        if self._pass is not None:
            self._pass.close()
