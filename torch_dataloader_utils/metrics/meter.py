"""Measures passes: the time blocked in `next`, and what was delivered; for any thread to read at any time.

Nothing is done per batch but to read the clock twice. Counts are those that a pass keeps anyway, read on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

from torch_dataloader_utils.storage.locks import renew_in_children


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
class Progress:
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


class Delivered(NamedTuple):
    """What passes delivered, and for how long they were live."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0

    def after(self, progress: Progress) -> Delivered:
        """The sums with a further pass."""
        return Delivered(self.steps + progress.steps, self.rows + progress.rows, self.seconds + progress.seconds)


class PassClock:
    """The time that a pass has taken: from its beginning until it is stopped."""

    __slots__ = ("_began", "_ended", "_meter", "_waited", "first_wait")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._began = perf_counter()
        self._waited = meter.waited()  # before
        self._ended: tuple[float, float] | None = None
        self.first_wait: float | None = None

    @property
    def running(self) -> bool:
        """Whether it has not been stopped."""
        return self._ended is None

    def note_first(self) -> None:
        """Note that the first batch was delivered."""
        self.first_wait = self.times(False)[1]

    def times(self, delivered: bool) -> tuple[float, float]:
        """The seconds since the beginning, and those of them for which `next` was blocked.

        Args:
            delivered: whether the last batch was delivered; the time since then is no part of the pass.
        """
        if self._ended is not None:
            return self._ended
        now = self._meter.returned if delivered else perf_counter()
        return now - self._began, self._meter.waited() - self._waited

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
    """

    def __init__(self) -> None:
        self.mark = 0.0
        self.returned = 0.0
        # The passes that have ended; then the one that has not, or how the last one ended.
        self._state: tuple[Delivered, Measured | Progress | None] = (Delivered(), None)
        renew_in_children(self)

    def renew(self) -> None:
        """Forget after a fork that a thread of the parent waits."""
        self.mark = self.waited()

    def waited(self) -> float:
        """The seconds for which `next` was blocked, over all passes, including the current call."""
        mark = self.mark
        return mark if mark >= 0.0 else mark + perf_counter()

    def begin(self, measured: Measured) -> None:
        """Measure this pass."""
        self._state = self._state[0], measured

    def end(self, measured: Measured) -> Progress | None:
        """End its measurement; returns its result, or None if another pass is measured."""
        done, current = self._state
        if current is not measured:
            return None
        measured.clock.stop(measured.complete and not measured.over)
        progress = _progress(measured)
        self._state = done.after(progress), progress
        return progress

    def progress(self) -> Progress | None:
        """The progress of the live pass, else that of the last one; None before the first."""
        current = self._state[1]
        return current if current is None or isinstance(current, Progress) else _progress(current)

    def delivered(self) -> Delivered:
        """What all passes delivered so far, and for how long they were live."""
        done, current = self._state
        return done if current is None or isinstance(current, Progress) else done.after(_progress(current))


def _progress(measured: Measured) -> Progress:
    steps, rows = measured.delivered
    complete = measured.complete
    steps_expected, rows_expected = measured.expected
    clock = measured.clock
    seconds, waited = clock.times(complete and not measured.over)
    return Progress(
        measured.epoch, steps, steps_expected, rows, rows_expected, waited, clock.first_wait, seconds, clock.running,
        complete,
    )  # fmt: skip
