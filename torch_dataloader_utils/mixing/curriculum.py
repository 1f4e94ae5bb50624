"""Weights that change in the course of a run: what each epoch takes of each source, as closed forms of the epoch.

The rows of a run are counted over all ranks and epochs, from 0. A phase is a range of them with one set of weights, and
a stretch is what an epoch has of a phase. Boundaries that were given as steps become rows first, by the rows of a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.mixing.rows import apportioned, check_apart, check_laps
from torch_dataloader_utils.mixing.schedule import Stretch, prefix_counts
from torch_dataloader_utils.options.mix import MOST_PHASES, rows_of_epoch

_LAST = 1e-30  # the rate of a source of weight 0, relative to the largest: its rows come after those of all others


@dataclass(frozen=True)
class WeightPhase:
    """A phase of a run.

    Attributes:
        first: its first row.
        weights: of each source; at least one is above 0.
    """

    first: int
    weights: tuple[Fraction, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates at which rows are delivered."""
        most = max(self.weights)
        return tuple(float(weight / most) or _LAST for weight in self.weights)


@dataclass(frozen=True)
class Curriculum:
    """What the epochs of a run take of each source.

    Attributes:
        phases: the first one begins with row 0.
        total: the rows of an epoch.
        rows: the rows of each source in every epoch, whose weights then only order them; None: `total` by weight.
    """

    phases: tuple[WeightPhase, ...]
    total: int
    rows: tuple[int, ...] | None = None

    @classmethod
    def of(cls, mixing: Mapping[str, Any]) -> Curriculum | None:
        """The curriculum in a plan's option `mixing`; None if there is none."""
        if "phases" not in mixing:
            return None
        phases = tuple(WeightPhase(first, tuple(map(Fraction, weights))) for first, weights in mixing["phases"])
        return cls(phases, rows_of_epoch(mixing), tuple(mixing["rows"]) if "rows" in mixing else None)

    @property
    def plain(self) -> dict[str, Any]:
        """It as plain values, which `of` reads."""
        phases = [[phase.first, [str(weight) for weight in phase.weights]] for phase in self.phases]
        return {"phases": phases, **({"total": self.total} if self.rows is None else {"rows": list(self.rows)})}

    def step(self, row: int, step_rows: int, *, full: bool) -> int:
        """The step of the run, from 0, that has this row of the run, or would have it; arguments as of `in_rows`."""
        epoch, row_of_epoch = divmod(row, self.total)
        steps = self.total // step_rows if full else -(-self.total // step_rows)
        return epoch * steps + row_of_epoch // step_rows

    def before(self, epoch: int) -> list[int]:
        """The rows of each source in all earlier epochs."""
        if self.rows is not None:
            return [epoch * rows for rows in self.rows]
        taken = [0] * len(self.phases[0].weights)
        for phase, first, last in self._within(0, epoch * self.total):
            head = min(-(-first // self.total) * self.total, last)
            tail = max(last // self.total * self.total, head)
            for rows, times in ((head - first, 1), (self.total, (tail - head) // self.total), (last - tail, 1)):
                if rows and times:
                    counts = apportioned(rows, phase.weights)
                    taken = [count + times * more for count, more in zip(taken, counts, strict=True)]
        return taken

    def alike(self, epoch: int) -> Iterator[tuple[int, int]]:
        """The epochs before `epoch`, as runs of epochs that have the same stretches: the first, and their number."""
        changes = {phase.first // self.total + after for phase in self.phases[1:] for after in (0, 1)}
        for first, last in pairwise(sorted({0, epoch} | {change for change in changes if change < epoch})):
            yield first, last - first

    def of_epoch(self, epoch: int) -> tuple[Stretch, ...]:
        """The stretches of an epoch."""
        if self.rows is not None:
            return self._ordered(self.rows, epoch * self.total)
        counts = [
            apportioned(last - first, phase.weights)
            for phase, first, last in self._within(epoch * self.total, (epoch + 1) * self.total)
        ]
        return tuple(Stretch(tuple(rows), tuple(float(count) or 1.0 for count in rows)) for rows in counts)

    def of_rest(self, epoch: int, rows: Sequence[int]) -> tuple[Stretch, ...]:
        """The stretches of the last rows of an epoch, which are these of each source."""
        return self._ordered(rows, epoch * self.total + max(self.total - sum(rows), 0))

    def _ordered(self, rows: Sequence[int], first: int) -> tuple[Stretch, ...]:
        """These rows from row `first` of the run on: each phase takes of what is left by its weights."""
        left, stretches = np.asarray(rows, np.int64), []
        for phase, begin, end in self._within(first, first + sum(rows)):
            counts = prefix_counts(left.tolist(), phase.rates, np.array([end - begin]))[0]
            stretches.append(Stretch(tuple(counts.tolist()), phase.rates))
            left = left - counts
        return tuple(stretches) or (Stretch(tuple(rows), self.phases[-1].rates),)

    def _within(self, first: int, last: int) -> Iterator[tuple[WeightPhase, int, int]]:
        """The phases of the rows `[first, last)`, each with its rows among them."""
        number = bisect_right(self.phases, first, key=lambda phase: phase.first) - 1
        while first < last:
            number += 1
            end = min(last, self.phases[number].first) if number < len(self.phases) else last
            yield self.phases[number - 1], first, end
            first = end


def in_rows(mixing: Mapping[str, Any], step_rows: int, *, full: bool) -> Mapping[str, Any]:
    """A plan's option `mixing` with boundaries that are rows of the run, also if they were given as steps.

    Args:
        mixing: the option.
        step_rows: rows per step of all ranks.
        full: whether epochs have only full steps.
    """
    if mixing.get("unit") != "step":
        return mixing
    total = rows_of_epoch(mixing)
    steps = max(1, total // step_rows if full else -(-total // step_rows))  # of an epoch
    phases = [[step // steps * total + step % steps * step_rows, weights] for step, weights in mixing["phases"]]
    return {name: value for name, value in mixing.items() if name != "unit"} | {"phases": phases}


def checked(curriculum: Curriculum, sizes: Sequence[int], names: Sequence[str]) -> Curriculum:
    """The curriculum, after a check that it fits the sources.

    Args:
        curriculum: of the run.
        sizes: the number of rows of each source.
        names: of the sources, for messages.

    Raises:
        OptionError: weights change too often, a source would repeat too often, or weights are too far apart.
        EmptyDatasetError: a source that must be repeated has no rows.
    """
    if len(curriculum.phases) > MOST_PHASES:
        raise OptionError(
            f"weights has {len(curriculum.phases):,} pairs of a start and weights: expected at most {MOST_PHASES:,}. "
            "Change the weights less often."
        )
    for phase in curriculum.phases:
        rows = apportioned(curriculum.total, phase.weights) if curriculum.rows is None else curriculum.rows
        check_laps(sizes, rows, names, "a smaller rows_per_epoch=")
        check_apart([weight for weight in phase.weights if weight])
    return curriculum
