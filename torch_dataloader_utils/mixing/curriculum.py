"""The weights of a run, which may change in its course: what each epoch takes of each source, as a function of it.

The units of a run (rows, or steps of one source each) are counted over all ranks and epochs, from 0. A phase is a range
of them with one set of weights, counted anew from its first. Boundaries that were given as steps become rows first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.rows import apportioned, check_laps
from torch_dataloader_utils.mixing.tree import whole_weights
from torch_dataloader_utils.mixing.turns import Stretch, Turns, as_far_as_they_go
from torch_dataloader_utils.options.mix import MOST_PHASES, rows_of_epoch


@dataclass(frozen=True)
class WeightPhase:
    """A phase of a run.

    Attributes:
        first: its first unit.
        weights: of each source; at least one is above 0.
    """

    first: int
    weights: tuple[Fraction, ...]

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """The weights as whole numbers."""
        return whole_weights(self.weights)


@dataclass(frozen=True)
class Curriculum:
    """What the epochs of a run take of each source.

    Attributes:
        phases: the first one begins with unit 0.
        total: the units of an epoch.
        rows: the units of each source in every epoch, whose weights then only order them, counted anew in each epoch;
            None: the next `total` units of the run.
        stride: the units of the run from the first of an epoch to the first of the next: fewer than `total` if an epoch
            leaves out its last ones, which are then the first of the next; None: `total`.
    """

    phases: tuple[WeightPhase, ...]
    total: int
    rows: tuple[int, ...] | None = None
    stride: int | None = None

    @classmethod
    def constant(
        cls, weights: Sequence[Fraction | int], *, total: int = 0, rows: Sequence[int] | None = None
    ) -> Curriculum:
        """One whose weights never change; of epochs of `total` units, or of these of each source."""
        phases = (WeightPhase(0, tuple(map(Fraction, weights))),)
        return cls(phases, total) if rows is None else cls(phases, sum(rows), tuple(rows))

    @classmethod
    def of(cls, mixing: Mapping[str, Any]) -> Curriculum:
        """The curriculum in a plan's option `mixing`."""
        phases = tuple(WeightPhase(first, tuple(map(Fraction, weights))) for first, weights in mixing["phases"])
        return cls(phases, rows_of_epoch(mixing), tuple(mixing["rows"]) if "rows" in mixing else None)

    @property
    def plain(self) -> dict[str, Any]:
        """It as plain values, which `of` reads."""
        phases = [[phase.first, [str(weight) for weight in phase.weights]] for phase in self.phases]
        return {"phases": phases, **({"total": self.total} if self.rows is None else {"rows": list(self.rows)})}

    def first(self, epoch: int) -> int:
        """The first unit of an epoch, of the run."""
        return epoch * (self.stride or self.total)

    @property
    def sources(self) -> int:
        """The number of sources."""
        return len(self.phases[0].weights)

    def step(self, row: int, step_rows: int, *, full: bool) -> int:
        """The step of the run, from 0, that has this row of the run, or would have it; arguments as of `in_rows`."""
        epoch, row_of_epoch = divmod(row, self.first(1))
        return epoch * _steps(self.first(1), step_rows, full=full) + row_of_epoch // step_rows

    def before(self, epoch: int) -> list[int]:
        """The units of each source in all earlier epochs."""
        if self.rows is not None:
            return [epoch * rows for rows in self.rows]
        return self.of_run(0, self.first(epoch)).of_each

    def alike(self, epoch: int) -> Iterator[tuple[int, int]]:
        """The epochs before `epoch`, as runs of epochs with equal turns: the first, and their number.

        Only where `rows` are given.
        """
        changes = {phase.first // self.total + after for phase in self.phases[1:] for after in (0, 1)}
        for first, last in pairwise(sorted({0, epoch} | {change for change in changes if change < epoch})):
            yield first, last - first

    def of_epoch(self, epoch: int) -> Turns:
        """The units of an epoch."""
        first = self.first(epoch)
        if self.rows is not None:
            return self._as_far_as(self.rows, self.rows, first, first)
        return self.of_run(first, first + self.total)

    def of_rest(self, epoch: int, first: int, left: Sequence[int]) -> Turns:
        """The units of the rest of an epoch.

        Args:
            epoch: the epoch.
            first: the rest's first unit, of the run.
            left: its units of each source. If they are those that follow the units before `first` of the epoch, and no
                source has ended, the rest is as in the epoch.
        """
        if self.rows is not None:
            return self._as_far_as(left, self.rows, first, self.first(epoch))
        return self._as_far_as(left, [1] * len(left), first, 0)

    def of_run(self, first: int, last: int) -> Turns:
        """The units `[first, last)` of a run without end."""
        return Turns.of(
            (Stretch(phase.whole, at - phase.first, end - at) for phase, at, end in self._within(first, last)),
            self.sources,
        )

    def _as_far_as(self, left: Sequence[int], whole: Sequence[int], first: int, begin: int) -> Turns:
        """These units from `first` of the run on: each phase takes of what is left by its weights.

        Args:
            left: of each source.
            whole: those of the epoch: a source that has none has no weight.
            first: the first of them.
            begin: where phases that began earlier count anew.
        """
        rest, stretches = list(left), []
        for phase, at, end in self._within(first, first + sum(left)):
            weights = [weight if rows else 0 for weight, rows in zip(phase.whole, whole, strict=True)]
            for stretch in as_far_as_they_go(weights, at - max(phase.first, begin), rest, end - at):
                stretches.append(stretch)
                rest = [more - taken for more, taken in zip(rest, stretch.of_each, strict=True)]
        return Turns.of(stretches, self.sources)

    def _within(self, first: int, last: int) -> Iterator[tuple[WeightPhase, int, int]]:
        """The phases of the units `[first, last)`, each with its units among them."""
        number = bisect_right(self.phases, first, key=lambda phase: phase.first) - 1
        while first < last:
            number += 1
            end = min(last, self.phases[number].first) if number < len(self.phases) else last
            yield self.phases[number - 1], first, end
            first = end


def in_rows(mixing: Mapping[str, Any], step_rows: int, *, full: bool, whole: bool = False) -> Curriculum:
    """The curriculum in a plan's option `mixing`, under the options and ranks of the plan.

    Boundaries are rows (or sequences) of the run, also if they were given as steps.

    Args:
        mixing: the option.
        step_rows: rows per step of all ranks.
        full: whether epochs have only full steps.
        whole: whether an epoch of the next rows of the run takes those of whole steps alone.
    """
    found = Curriculum.of(mixing)
    if found.rows is None and found.total >= step_rows:
        rows = found.total // step_rows * step_rows
        found = replace(found, total=rows if whole else found.total, stride=rows if full else None)
    if mixing.get("unit") != "step":
        return found
    steps, length = _steps(found.first(1), step_rows, full=full), found.first(1)
    phases = (
        replace(phase, first=phase.first // steps * length + phase.first % steps * step_rows) for phase in found.phases
    )
    return replace(found, phases=tuple(phases))


def _steps(rows: int, step_rows: int, *, full: bool) -> int:
    """The steps of an epoch of so many rows."""
    return max(1, rows // step_rows if full else -(-rows // step_rows))


def checked(curriculum: Curriculum, sizes: Sequence[int], names: Sequence[str], unit: int = 1) -> Curriculum:
    """The curriculum, after a check that it fits the sources.

    Args:
        curriculum: of the run.
        sizes: the number of rows of each source.
        names: of the sources, for messages.
        unit: how many rows each of the curriculum's units is.

    Raises:
        OptionError: weights change too often, or a source would repeat too often.
        EmptyDatasetError: a source that must be repeated has no rows.
    """
    if len(curriculum.phases) > MOST_PHASES:
        raise OptionError(
            f"weights has {len(curriculum.phases):,} pairs of a start and weights: expected at most {MOST_PHASES:,}. "
            "Change the weights less often."
        )
    for phase in curriculum.phases:
        rows = apportioned(curriculum.total, phase.weights) if curriculum.rows is None else curriculum.rows
        check_laps(sizes, rows, names, f"a smaller {'rows' if unit == 1 else 'tokens'}_per_epoch=", unit)
    return curriculum
