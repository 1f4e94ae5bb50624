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
from typing import Any

from torch_dataloader_utils.mixing.curriculum import Curriculum, in_rows
from torch_dataloader_utils.mixing.laps import LapRows, cut_laps, laps_of
from torch_dataloader_utils.mixing.schedule import Stretch, rows_of_sources, whole_steps
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

    def cut(self, counts: Sequence[int]) -> tuple[Laps, list[int]]:
        """The same rows, with laps cut where a stretch of the epoch ends; and the stretch of each.

        Args:
            counts: the rows of each stretch.
        """
        if len(counts) == 1:
            return self, [0] * len(self.sizes)
        cuts = list(cut_laps(self.sizes, counts))
        return self._of([of for _, of in cuts]), [stretch for stretch, _ in cuts]

    def parted(self, count: int) -> tuple[Laps, Laps]:
        """The first `count` rows, and those after them."""
        total = sum(self.sizes)
        if count == total:
            return self, Laps([], self.order)
        cuts = list(cut_laps(self.sizes, [count, total - count]))
        first, rest = ([of for part, of in cuts if part == number] for number in (0, 1))
        return self._of(first), self._of(rest)

    def all(self) -> Iterator[Order]:
        """The rows of each lap."""
        return map(self.order, range(len(self.sizes)))

    def _of(self, rows: list[LapRows]) -> Laps:
        whole = lru_cache(maxsize=2)(self.order)
        sizes = [of.last - of.first for of in rows]
        return Laps(sizes, lambda number: whole(rows[number].lap).take(rows[number].first, rows[number].last))


@dataclass(frozen=True, eq=False)
class MixedEpoch:
    """The rows of an epoch of a mix, over all ranks.

    Attributes:
        laps: the rows of each dataset that ranks share.
        left_out: the rows of each dataset that do not fill a step of all ranks, if `step_rows` was given; they belong
            to the epoch, whose rest other ranks may deliver.
        stretches: the rows of each dataset in the epoch's stretches, without those left out, and their rates.
    """

    laps: tuple[Laps, ...]
    left_out: tuple[Laps, ...]
    stretches: tuple[Stretch, ...]

    @classmethod
    def of_first(cls, rows: Sequence[Laps], stretches: Sequence[Stretch]) -> MixedEpoch:
        """The first of these rows, as many as the stretches have of each dataset."""
        pairs = zip(rows, rows_of_sources(stretches), strict=True)
        laps, left_out = zip(*(laps.parted(count) for laps, count in pairs), strict=True)
        return cls(laps, left_out, tuple(stretches))


def full_step(options: PlanOptions, num_ranks: int) -> int | None:
    """The rows of a step of all ranks, if only full steps are delivered; else None."""
    alone = options.even == "none" and options.last_batch == "drop" and num_ranks == 1
    return num_ranks * options.batch_rows(num_ranks) if options.even == "drop" or alone else None


def mixing_in_rows(mixing: Mapping[str, Any], options: PlanOptions, num_ranks: int) -> Mapping[str, Any]:
    """The option `mixing` with boundaries that are rows of the run, for these options and ranks."""
    full = full_step(options, num_ranks) is not None
    return in_rows(mixing, num_ranks * options.batch_rows(num_ranks), full=full)


def has_all_once(mixing: Mapping[str, Any], datasets: Sequence[DatasetShare]) -> bool:
    """Whether every epoch is a pass over all rows, whatever the epochs before it left out."""
    return "run" not in mixing and mixing.get("rows") == [dataset.rows for dataset in datasets]


def mix_of_epoch(
    datasets: Sequence[DatasetShare], mixing: Mapping[str, Any], epoch: int, step_rows: int | None = None
) -> MixedEpoch:
    """The rows that an epoch takes of each dataset: those that follow the rows delivered in earlier epochs.

    Args:
        datasets: of the mix.
        mixing: the plan's option.
        epoch: the epoch.
        step_rows: rows per step of all ranks, if only full steps are delivered.
    """
    run = _Run.of(mixing, step_rows)
    stretches, before = run.stretches(epoch), run.before(epoch)
    kept = run.full_steps(stretches)
    if step_rows is not None and has_all_once(mixing, datasets):
        pairs = zip(datasets, rows_of_sources(kept), before, strict=True)
        laps, left_out = zip(*(_parts_of_lap(dataset, epoch, *counts) for dataset, *counts in pairs), strict=True)
        return MixedEpoch(laps, left_out, kept)
    taken = zip(datasets, before, rows_of_sources(stretches), strict=True)
    return MixedEpoch.of_first([_laps_of_run(dataset, at, at + count) for dataset, at, count in taken], kept)


def mix_of_rest(
    rest: Sequence[Sequence[Order]], mixing: Mapping[str, Any], epoch: int, step_rows: int | None = None
) -> MixedEpoch:
    """The same for what earlier phases left of an epoch: of each dataset, by lap."""
    run = _Run.of(mixing, step_rows)
    laps = [Laps([len(order) for order in orders], orders.__getitem__) for orders in rest]
    rows = tuple(sum(each.sizes) for each in laps)
    if run.curriculum is None:
        return MixedEpoch.of_first(laps, run.full_steps((Stretch(rows, tuple(mixing["rates"])),)))
    return MixedEpoch.of_first(laps, run.full_steps(run.curriculum.of_rest(epoch, rows)))


@dataclass(frozen=True)
class _Run:
    """The rows of each dataset in the epochs of a run.

    Attributes:
        mixing: the plan's option.
        curriculum: of the option; None if each epoch takes the same.
        step_rows: rows per step of all ranks, if only full steps are delivered.
    """

    mixing: Mapping[str, Any]
    curriculum: Curriculum | None
    step_rows: int | None

    @classmethod
    def of(cls, mixing: Mapping[str, Any], step_rows: int | None) -> _Run:
        return cls(mixing, Curriculum.of(mixing), step_rows)

    def stretches(self, epoch: int) -> tuple[Stretch, ...]:
        """All rows of an epoch."""
        if self.curriculum is None:
            return (Stretch(tuple(self.mixing["rows"]), tuple(self.mixing["rates"])),)
        return self.curriculum.of_epoch(epoch)

    def full_steps(self, stretches: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
        """Those of them that are delivered."""
        if self.step_rows is None:
            return stretches
        return whole_steps(stretches, self.step_rows, single=self.mixing["batches"] == "single")

    def before(self, epoch: int) -> list[int]:
        """The rows of each dataset that all earlier epochs deliver."""
        if self.curriculum is not None and self.step_rows is None:
            return self.curriculum.before(epoch)
        alike = [(0, epoch)] if self.curriculum is None else [(0, 0), *self.curriculum.alike(epoch)]
        runs = ((times, rows_of_sources(self.full_steps(self.stretches(first)))) for first, times in alike)
        return [sum(rows) for rows in zip(*([times * count for count in rows] for times, rows in runs), strict=True)]


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


def rest_of_mix(splits: Splits, pieces: Sequence[Piece], epoch: int, phase: int, parts: int) -> RemainingRows:
    """The rest of an epoch that consists of these rows; a row may occur once in each lap.

    Args:
        splits: all splits.
        pieces: what no rank has delivered, without padding.
        epoch: the epoch.
        phase: the number of earlier phases.
        parts: the number of datasets.
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
    return RemainingRows(epoch, phase, order, laps=tuple(by_part.get(part, ()) for part in range(parts)))


def _lap_of(piece: Piece, splits: int) -> tuple[int, int]:
    """The dataset of a piece, and its lap."""
    part = split_of(next(split_pieces([piece]))).file.part
    return part, _BEGUN if isinstance(piece.source, Window) else piece.order // splits
