"""Shows how far a pass is, while it lasts."""

from __future__ import annotations

from math import inf
from typing import Protocol

from torch_dataloader_utils.checkpoint.positions import EpochPosition, Steps
from torch_dataloader_utils.metrics.meter import Measured, Meter
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.progress import Progress


class ShownPass(Measured, Protocol):
    """A pass, as it is shown."""

    position: EpochPosition

    @property
    def delivered_steps(self) -> int:
        """How many batches it delivered."""


class PassProgress:
    """Shows the rows of the epoch that were delivered, their rate, and the share of the time spent waiting for data.

    Args:
        begun: the pass, which has begun.
        progress: how it is shown.
        options: the options of its plan.
        num_ranks: the number of ranks.
        meter: measures the passes.
        units: what it counts, in a word.

    Attributes:
        due: the time (of `perf_counter`) from which an update is shown.
    """

    def __init__(
        self, begun: ShownPass, progress: Progress, options: PlanOptions, num_ranks: int, meter: Meter, units: str
    ) -> None:
        self._meter, self._totals = meter, meter.totals()
        self._batch_rows = options.batch_rows(num_ranks)
        self._most = options.steps_per_epoch
        self._before = rows_before(begun.position, options, num_ranks)
        self._skip: tuple[Steps, ...] | None = None
        self._total: int | None = None
        self._shows = progress.show  # otherwise there is time until the first line, and no last one
        if self._shows:
            self._expect(begun)
        self._shown = progress.begin(f"epoch {begun.epoch}", units, self._total, self._before)
        self.due = self._shown.due

    def update(self, live: ShownPass) -> None:
        """Show how far the pass is."""
        if live.position.skip is not self._skip:
            self._expect(live)
        self._shown.at(self._delivered(live), self._total, self._note(live))
        self.due = self._shown.due

    def close(self, ended: ShownPass) -> None:
        """Show how far the pass came, and leave that on the screen; idempotent."""
        ends, self.due = self.due < inf and self._shows, inf
        if ends:
            rows = self._delivered(ended)
            self._shown.end(rows, rows if ended.complete else self._total, self._note(ended))

    def _note(self, live: ShownPass) -> str:
        """The share of the time spent waiting; with a cache, the share of the bytes that were found in it."""
        seconds, waited = live.clock.times(False)
        totals = self._meter.totals().since(self._totals)
        hits, misses = totals.of_workers("cache_hit_bytes"), totals.of_workers("cache_miss_bytes")
        cached = f", from cache {hits / (hits + misses):.0%}" if hits or misses else ""
        return f"data wait {waited / seconds if seconds else 0:.0%}{cached}"

    def _delivered(self, live: ShownPass) -> int:
        """The rows of the epoch that were delivered."""
        # With `steps_per_epoch`, all batches are full, and laps need not be planned to count them.
        return self._before + (live.delivered[1] if self._most is None else live.delivered_steps * self._batch_rows)

    def _expect(self, live: ShownPass) -> None:
        """Set how many rows the epoch has, with those delivered before; None if known only after reading."""
        self._skip = live.position.skip
        if self._most is None:
            rows = live.expected[1]
        else:
            position = live.position
            rows = (position.kept(self._most) - position.kept(position.before + position.taken)) * self._batch_rows
        self._total = None if rows is None else self._before + rows


def rows_before(position: EpochPosition, options: PlanOptions, num_ranks: int) -> int:
    """A rank's rows of an epoch that were delivered before a position, counting batches as full.

    What other numbers of ranks delivered in earlier phases counts as shared by the ranks of today.

    Args:
        position: the position.
        options: of the plan.
        num_ranks: the number of ranks.
    """
    shapes = [(phase.steps, *phase.shape(options)) for phase in position.past]
    rows = sum(steps * then.batch_rows(ranks) * ranks for steps, then, ranks in shapes) // num_ranks
    steps = position.before + position.taken
    return max(0, rows + (position.taken - (steps - position.kept(steps))) * options.batch_rows(num_ranks))
