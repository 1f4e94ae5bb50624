"""Measures passes: the time blocked in `next`, and what was delivered; for any thread to read at any time.

Nothing is done per batch but to read the clock twice. Counts are those that a pass keeps anyway, read on request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from torch_dataloader_utils.events import BlockEvent, Event
from torch_dataloader_utils.metrics.totals import BlockTotals, Totals
from torch_dataloader_utils.storage.locks import ForkLock, renew_in_children


class Measured(Protocol):
    """A pass, as the meter reads it; each attribute may be read by any thread at any time."""

    clock: PassClock

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def over(self) -> bool:
        """Whether its end was delivered."""

    @property
    def complete(self) -> bool:
        """Whether no batch is known to be left."""

    @property
    def delivered(self) -> tuple[int, int]:
        """How many batches it delivered, and their rows."""

    @property
    def expected(self) -> tuple[int | None, int | None]:
        """How many batches it delivers in all, and their rows; None where known only after reading."""


@dataclass(frozen=True, slots=True)
class PassStatus:
    """How far a pass is. A resumed pass counts from where it began.

    Attributes:
        epoch: the epoch.
        steps: batches delivered.
        steps_expected: batches that the pass delivers in all; None if known only after reading.
        rows: rows delivered, including repeats.
        rows_expected: rows that the pass delivers in all; None if known only after reading.
        waited: seconds for which `next` was blocked.
        first_wait: seconds until the first batch, of those waited; None before it.
        seconds: since the pass began; until it ended.
        live: whether it has not ended.
        complete: whether no batch is known to be left.
    """

    epoch: int
    steps: int
    steps_expected: int | None
    rows: int
    rows_expected: int | None
    waited: float
    first_wait: float | None
    seconds: float
    live: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class PassTotals:
    """A pass that has ended.

    Attributes:
        progress: at its end.
        totals: what happened during it.
        steady: what of that happened after the first batch.
    """

    progress: PassStatus
    totals: Totals
    steady: Totals


class PassClock:
    """The time that a pass has taken: from its beginning until it is stopped.

    Attributes:
        first: what had happened when the first batch was delivered; None before it.
        first_wait: the seconds of this pass waited by then; None before it.
    """

    __slots__ = ("_began", "_ended", "_meter", "_waited", "first", "first_wait")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._began = perf_counter()
        self._waited = meter.waited()  # before
        self._ended: tuple[float, float] | None = None
        self.first: Totals | None = None
        self.first_wait: float | None = None

    @property
    def running(self) -> bool:
        """Whether it has not been stopped."""
        return self._ended is None

    def note_first(self) -> None:
        """Note that the first batch was delivered."""
        self.first, self.first_wait = self._meter.totals(), self.times(False)[1]

    def times(self, delivered: bool) -> tuple[float, float]:
        """The seconds since the beginning, and those of them for which `next` was blocked.

        Args:
            delivered: whether the last batch was delivered; the time since then is no part of the pass.
        """
        if self._ended is not None:
            return self._ended
        waited = self._meter.waited() - self._waited  # first: it is never more than the seconds
        # A pass that begins after its last step has delivered nothing yet.
        now = max(self._meter.returned, self._began) if delivered else perf_counter()
        return now - self._began, waited

    def stop(self, delivered: bool) -> None:
        """Stop, unless it has; for any thread."""
        if self._ended is None:
            self._ended = self.times(delivered)


class Meter:
    """The measurements of one dataset in one process.

    Threads that share an iterator wait in turn, so no second counts twice.

    Attributes:
        mark: seconds waited in all; while a thread waits, less the moment since which it does. A single number, so that
            other threads always read a consistent one.
        returned: when `next` returned last.
        blocks: what I/O workers did for the blocks that were taken.
        skipped: damaged files that are left out, and their rows as far as known.
        listed: seconds spent listing files and reading their footers.
        last: the end of the last pass that has ended; None before it.
    """

    def __init__(self) -> None:
        self.renew()
        self._reading = ForkLock()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin at zero: so does a forked child, because its parent reports what happened before."""
        self.mark = 0.0
        self.returned = 0.0
        self.blocks = BlockTotals()
        self.skipped = (0, 0)
        self.listed = 0.0
        self.last: PassStatus | None = None
        self._completed: PassTotals | None = None  # the last complete pass that has ended
        # What the passes that have ended delivered; then the pass that has not.
        self._state: tuple[Totals, Measured | None] = (Totals(), None)
        self._begun = Totals()  # when that pass began
        self._seen = Totals()  # what `read` returned last
        self._taken = Totals()  # what `take` has returned so far

    def add(self, event: Event) -> None:
        """Measure the block of this event, if it is one."""
        if isinstance(event, BlockEvent):
            self.blocks.add(event)

    def waited(self) -> float:
        """The seconds for which `next` was blocked, over all passes, including the current call."""
        mark = self.mark
        return mark if mark >= 0.0 else mark + perf_counter()

    def begin(self, measured: Measured, before: Totals) -> None:
        """Measure this pass, which began when `before` had happened."""
        self._begun = before
        self._state = self._state[0], measured

    def end(self, measured: Measured) -> None:
        """End the measurement of this pass, if it is measured."""
        if self._state[1] is measured:
            measured.clock.stop(measured.complete and not measured.over)
            if measured.complete:
                self._completed = self._measured(measured)
            self.last = _progress(measured)
            self._state = self.totals(), None

    @property
    def completed(self) -> PassTotals | None:
        """The last pass of which no batch is left; None before it."""
        current = self._state[1]
        return self._measured(current) if current is not None and current.complete else self._completed

    def _measured(self, measured: Measured) -> PassTotals:
        """What happened during this pass, the live one."""
        now = self.totals()
        return PassTotals(_progress(measured), now.since(self._begun), now.since(measured.clock.first or now))

    def progress(self) -> PassStatus | None:
        """The progress of the live pass, else that of the last one; None before the first."""
        current, last = self._state[1], self.last
        return last if current is None else _progress(current)

    def totals(self) -> Totals:
        """What has happened so far; for any thread."""
        done, current = self._state
        steps, rows = (0, 0) if current is None else current.delivered
        seconds, waited = (0.0, 0.0) if current is None else _times(current)
        return Totals(
            done.waited + waited, done.seconds + seconds, done.steps + steps, done.rows + rows, self.listed,
            *self.blocks.sums(), self.skipped,
        )  # fmt: skip

    def read(self) -> Totals:
        """What has happened so far, never less than in an earlier call; for any thread."""
        with self._reading:
            now, before = self.totals(), self._seen
            # A pass that ends while another thread reads its time ends a moment before that.
            waited, seconds = max(now.waited, before.waited), max(now.seconds, before.seconds)
            self._seen = replace(now, waited=waited, seconds=seconds)
            return self._seen

    def take(self) -> Totals:
        """What has happened since the last call; for any thread."""
        with self._reading:
            now, before = self.read(), self._taken
            self._taken = now
            return now.since(before)


def _times(measured: Measured) -> tuple[float, float]:
    """The seconds of a pass, and those of them for which `next` was blocked."""
    return measured.clock.times(measured.complete and not measured.over)


def _progress(measured: Measured) -> PassStatus:
    (steps, rows), (steps_expected, rows_expected) = measured.delivered, measured.expected
    seconds, waited = _times(measured)
    clock = measured.clock
    return PassStatus(
        measured.epoch, steps, steps_expected, rows, rows_expected, waited, clock.first_wait, seconds, clock.running,
        measured.complete,
    )  # fmt: skip
