"""The rows that one epoch of a mix takes of each dataset, lap by lap, and those that it leaves out.

With `even="drop"`, an epoch delivers the rows of its full steps alone. The next one takes the rows that follow them, so
that no row is skipped. Where each epoch has every row once, it leaves out other rows of each dataset in each epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from torch_dataloader_utils.errors import ShardingError, use
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase, in_rows
from torch_dataloader_utils.mixing.laps import LapRows, cut_laps, laps_of
from torch_dataloader_utils.mixing.turns import Turns
from torch_dataloader_utils.model import Piece, Window, split_of, split_pieces
from torch_dataloader_utils.planning.even import left_out_runs
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Order
from torch_dataloader_utils.planning.parts import DatasetShare
from torch_dataloader_utils.planning.rest import RemainingRows, merged, order_of
from torch_dataloader_utils.planning.splits import Splits


@dataclass(frozen=True, eq=False)
class Laps:
    """Rows of one dataset in an epoch.

    Attributes:
        sizes: the number of rows of each lap.
        order: maps a lap, counted from the epoch's first, to its rows. No row is twice in a lap.
    """

    sizes: list[int]
    order: Callable[[int], Order]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(self.sizes)

    def parted(self, count: int) -> tuple[Laps, Laps]:
        """The first `count` rows, and those after them."""
        if count == self.rows:
            return self, Laps([], self.order)
        first, rest = map(self._of, cut_laps(self.sizes, count))
        return first, rest

    def all(self) -> Iterator[Order]:
        """The rows of each lap."""
        return map(self.order, range(len(self.sizes)))

    def _of(self, rows: list[LapRows]) -> Laps:
        whole = lru_cache(maxsize=2)(self.order)
        sizes = [of.last - of.first for of in rows]
        return Laps(sizes, lambda number: whole(rows[number].lap).take(rows[number].first, rows[number].last))


@dataclass(frozen=True, eq=False)
class MixedEpoch:
    """The rows of an epoch of a mix, or of its rest, over all ranks.

    Attributes:
        laps: the rows of each dataset that ranks share.
        left_out: the rows of each dataset that fill no step of all ranks, where only full ones are delivered; they
            belong to the epoch, whose rest other ranks may deliver.
        turns: the order of the datasets' units (rows, sequences, steps), without those left out.
        first: the number of its first row or sequence among those of the run.
        unit_rows: the rows of the plan in each: 1, or the tokens of a sequence (L).
    """

    laps: tuple[Laps, ...]
    left_out: tuple[Laps, ...]
    turns: Turns
    first: int
    unit_rows: int = 1

    @property
    def taken(self) -> list[int]:
        """The rows of each dataset, with those left out."""
        return [rows.rows + rest.rows for rows, rest in zip(self.laps, self.left_out, strict=True)]


class EpochTurns(NamedTuple):
    """What ranks deliver of the rows, or sequences, that an epoch, or its rest, takes.

    Attributes:
        turns: their order, in full steps if only these are delivered.
        rows: of each dataset.
        taken: the same with those left out.
    """

    turns: Turns
    rows: Sequence[int]
    taken: Sequence[int]


@dataclass(frozen=True)
class Course:
    """What epochs take of each dataset, under the options and ranks of a plan.

    Attributes:
        curriculum: in rows, or in sequences if rows of the plan are tokens, as all below.
        step_rows: rows per step of all ranks (R*B).
        full: whether only full steps are delivered.
        single: whether each step is of one dataset.
        run: whether epochs that have every row once still continue where the last one ended.
        unit_rows: the rows of the plan in each: 1, or the tokens of a sequence (L).
    """

    curriculum: Curriculum
    step_rows: int
    full: bool
    single: bool
    run: bool
    unit_rows: int

    @classmethod
    def of(cls, mixing: Mapping[str, Any], options: PlanOptions, num_ranks: int) -> Course:
        """That of a plan's option `mixing`.

        Raises:
            ShardingError: an epoch of so many tokens has not one step.
        """
        alone = options.even == "none" and options.last_batch == "drop" and num_ranks == 1
        unit, single, full = options.unit_rows, mixing["batches"] == "single", options.even == "drop" or alone
        step_rows = num_ranks * options.batch_rows(num_ranks) // unit
        if unit > 1 and mixing.get("total", step_rows) < step_rows:
            raise ShardingError(
                f"tokens_per_epoch: {mixing['total']} sequences of {unit} tokens are less than one step of {step_rows} "
                f"sequences, {step_rows * unit} tokens, on {num_ranks} ranks.",
                remedies=[use(tokens_per_epoch=step_rows * unit)],
            )
        curriculum = in_rows(mixing, step_rows, full=full, whole=single or unit > 1)
        return cls(curriculum, step_rows, full, single, "run" in mixing, unit)

    @property
    def phases(self) -> tuple[WeightPhase, ...]:
        """The weights of the run."""
        return self.curriculum.phases

    def is_pass(self, datasets: Sequence[DatasetShare]) -> bool:
        """Whether every epoch is a pass over all rows, whatever the epochs before it left out."""
        return not self.run and self.curriculum.rows == tuple(dataset.rows // self.unit_rows for dataset in datasets)

    def epoch(self, datasets: Sequence[DatasetShare], epoch: int) -> MixedEpoch:
        """The rows that an epoch takes of each dataset: those that follow the rows delivered in earlier epochs."""
        found, first, once = self.delivered(epoch), self.curriculum.first(epoch), self.is_pass(datasets)
        before, rows, taken = map(self._in_plan, (self._before(epoch), found.rows, found.taken))
        if self.full and once:
            of_each = zip(datasets, rows, before, strict=True)
            laps, left_out = zip(*(_parts_of_lap(dataset, epoch, *counts) for dataset, *counts in of_each), strict=True)
            return MixedEpoch(laps, left_out, found.turns, first, self.unit_rows)
        if once:  # with the tokens that fill no sequence
            before, taken = ([times * dataset.rows for dataset in datasets] for times in (epoch, 1))
        ends = zip(datasets, before, taken, strict=True)
        return self._parted([_laps_of_run(dataset, at, at + count) for dataset, at, count in ends], found, first)

    def rest(self, rest: RemainingRows, epoch: int) -> MixedEpoch:
        """The same for what earlier phases left of an epoch."""
        laps = [Laps([len(order) for order in orders], orders.__getitem__) for orders in rest.laps]
        left = [each.rows // self.unit_rows for each in laps]
        found = self._steps_of(left) if self.single else self._whole(self.curriculum.of_rest(epoch, rest.first, left))
        return self._parted(laps, found, rest.first)

    def _in_plan(self, counts: Sequence[int]) -> list[int]:
        return [count * self.unit_rows for count in counts]

    def _parted(self, laps: Sequence[Laps], found: EpochTurns, first: int) -> MixedEpoch:
        """An epoch that takes these rows of the plan."""
        kept = zip(laps, self._in_plan(found.rows), strict=True)
        parts, left_out = zip(*(rows.parted(count) for rows, count in kept), strict=True)
        return MixedEpoch(parts, left_out, found.turns, first, self.unit_rows)

    def delivered(self, epoch: int) -> EpochTurns:
        """What an epoch delivers."""
        if not self.single:
            return self._whole(self.curriculum.of_epoch(epoch))
        if self.curriculum.rows is not None:
            return self._steps_of(self.curriculum.rows)
        steps, rows = self._single_steps
        turns = steps.of_epoch(epoch)
        taken = [count * rows for count in turns.of_each]
        short = self.full and rows < self.step_rows
        return EpochTurns(turns.until(0), [0] * len(taken), taken) if short else EpochTurns(turns, taken, taken)

    @property
    def _single_steps(self) -> tuple[Curriculum, int]:
        """The steps of a run of one dataset each, and the rows of each: fewer only if an epoch has not as many."""
        total, phases = self.curriculum.total, self.curriculum.phases
        rows = min(self.step_rows, total)
        return Curriculum(phases, total // rows), rows

    def _whole(self, turns: Turns) -> EpochTurns:
        kept = turns.until(turns.total // self.step_rows * self.step_rows) if self.full else turns
        return EpochTurns(kept, kept.of_each, turns.of_each)

    def _steps_of(self, taken: Sequence[int]) -> EpochTurns:
        """These rows in steps of one dataset each, of which the last of each dataset may be short."""
        steps = [(count if self.full else count + self.step_rows - 1) // self.step_rows for count in taken]
        turns = Curriculum(self.curriculum.phases, sum(steps), tuple(steps)).of_epoch(0)
        rows = [min(count * self.step_rows, most) for count, most in zip(steps, taken, strict=True)]
        return EpochTurns(turns, rows, taken)

    def _before(self, epoch: int) -> list[int]:
        """The rows of each dataset that all earlier epochs deliver."""
        if self.curriculum.rows is None:
            if not self.single:
                return self.curriculum.before(epoch)
            steps, rows = self._single_steps
            return [count * rows for count in steps.before(epoch)]
        if not self.full:
            return self.curriculum.before(epoch)
        runs = [(0, 0), *self.curriculum.alike(epoch)]
        taken = [[times * count for count in self.delivered(first).rows] for first, times in runs]
        return [sum(rows) for rows in zip(*taken, strict=True)]


def _laps_of_run(dataset: DatasetShare, first: int, last: int) -> Laps:
    taken = list(laps_of(dataset.rows, first, last))
    return Laps([end - begin for _, begin, end in taken], lambda number: dataset.lap(*taken[number]))


def _parts_of_lap(dataset: DatasetShare, lap: int, count: int, before: int) -> tuple[Laps, Laps]:
    """`count` rows of a lap, and those left out; each row is left out once before any is left out twice.

    Args:
        dataset: of the rows.
        lap: the lap.
        count: the number of rows to deliver.
        before: the number of rows that earlier laps delivered.
    """
    kept, rows, seed = dataset.lap(lap, 0, dataset.rows), dataset.rows, dataset.options.seed
    left_out = left_out_runs(kept, rows - count, seed if dataset.options.shuffle else None, lap * rows - before)
    for run in left_out:
        kept = kept.without(run)
    whole = [kept] if count else []
    return Laps([count] * len(whole), whole.__getitem__), Laps([len(run) for run in left_out], left_out.__getitem__)


# The rest of a mixed epoch: what is left of each lap of each dataset, because a row may be left in several laps. Laps
# differ in `Piece.order`, which counts on from lap to lap.

_BEGUN = -1  # comes before the laps


def rest_of_mix(splits: Splits, pieces: Sequence[Piece], epoch: int, phase: int, of: MixedEpoch) -> RemainingRows:
    """The rest of an epoch that consists of these rows; a row may occur once in each lap.

    Args:
        splits: all splits.
        pieces: what no rank has delivered, without padding.
        epoch: the epoch.
        phase: the number of earlier phases.
        of: what the last of them had of the epoch.
    """
    by_lap: defaultdict[tuple[int, int], list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_lap[_lap_of(piece, len(splits))].append(piece)
    keys = sorted(by_lap)
    laps = [merged(by_lap[key]) for key in keys]
    order = order_of(splits, [piece for lap in laps for piece in lap])
    units = pairwise(accumulate(map(len, laps), initial=0))
    orders = {key: order.units(first, last) for key, (first, last) in zip(keys, units, strict=True)}
    by_part = {part: tuple(orders[key] for key in some) for part, some in groupby(keys, key=lambda key: key[0])}
    of_parts = tuple(by_part.get(part, ()) for part in range(len(of.laps)))
    taken = zip(of.taken, of_parts, strict=True)
    delivered = sum((rows - sum(map(len, left))) // of.unit_rows for rows, left in taken)
    return RemainingRows(epoch, phase, order, laps=of_parts, first=of.first + delivered)


def _lap_of(piece: Piece, splits: int) -> tuple[int, int]:
    """The dataset of a piece, and its lap."""
    part = split_of(next(split_pieces([piece]))).file.part
    return part, _BEGUN if isinstance(piece.source, Window) else piece.order // splits
