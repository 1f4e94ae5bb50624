"""One epoch of a mix: each dataset's rows, lap by lap, cut into equal parts for the ranks.

Each dataset is a shard of its own on every rank, and a rank's batches take rows of its shards by a schedule. So workers
do not change the order, and a state needs only the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.curriculum import Curriculum
from torch_dataloader_utils.mixing.laps import cut_laps, even_counts, laps_of
from torch_dataloader_utils.mixing.schedule import Schedule, Stretch, counts_by_stretch, sum_of
from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.last_batch import padding
from torch_dataloader_utils.planning.mixing import DatasetShare
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Order
from torch_dataloader_utils.planning.pieces import Pieces
from torch_dataloader_utils.planning.splits import I64


@dataclass(frozen=True, eq=False)
class Laps:
    """The rows of one dataset in an epoch.

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
        rows = [of for _, of in cuts]
        whole = lru_cache(maxsize=2)(self.order)
        laps = Laps([of.last - of.first for of in rows], lambda n: whole(rows[n].lap).take(rows[n].first, rows[n].last))
        return laps, [stretch for stretch, _ in cuts]


def mix_of_epoch(
    datasets: Sequence[DatasetShare], mixing: Mapping[str, Any], epoch: int
) -> tuple[tuple[Laps, ...], tuple[Stretch, ...]]:
    """The rows that an epoch takes of each dataset, and its stretches; the rows follow those of the previous epoch."""
    curriculum = Curriculum.of(mixing)
    stretches: tuple[Stretch, ...]
    if curriculum is None:
        stretches = (Stretch(tuple(mixing["rows"]), tuple(mixing["rates"])),)
        before = [epoch * rows for rows in mixing["rows"]]
    else:
        stretches, before = curriculum.of_epoch(epoch), curriculum.before(epoch)
    rows = [sum(counts) for counts in zip(*(stretch.rows for stretch in stretches), strict=True)]
    taken = zip(datasets, before, rows, strict=True)
    laps = tuple(_laps_of_run(dataset, first, first + count) for dataset, first, count in taken)
    return laps, stretches


def mix_of_rest(
    rest: Sequence[Sequence[Order]], mixing: Mapping[str, Any], epoch: int
) -> tuple[tuple[Laps, ...], tuple[Stretch, ...]]:
    """The same for what earlier phases left of an epoch: of each dataset, by lap."""
    laps = tuple(Laps([len(order) for order in orders], orders.__getitem__) for orders in rest)
    rows = tuple(sum(each.sizes) for each in laps)
    curriculum = Curriculum.of(mixing)
    if curriculum is None:
        return laps, (Stretch(rows, tuple(mixing["rates"])),)
    return laps, curriculum.of_rest(epoch, rows)


def _laps_of_run(dataset: DatasetShare, first: int, last: int) -> Laps:
    taken = list(laps_of(dataset.rows, first, last))
    return Laps([end - begin for _, begin, end in taken], lambda number: dataset.lap(*taken[number]))


@dataclass(frozen=True, eq=False)
class MixShares:
    """The rows of each rank in one epoch of a mix, or in its rest.

    Attributes:
        datasets: the rows of each.
        stretches: the rows of each in the epoch's stretches, and their rates.
        options: the plan's options, with `mixing`.
        num_ranks: the number of ranks.
    """

    datasets: tuple[Laps, ...]
    stretches: tuple[Stretch, ...]
    options: PlanOptions
    num_ranks: int

    def check_rows(self) -> None:
        """Check that there are rows for `even`.

        Raises:
            EmptyDatasetError: an epoch has no rows.
            ShardingError: `even="drop"` would leave out all rows.
        """
        total, even, size = int(self._given.sum()), self.options.even, self._size
        if not total and even in ("drop", "pad"):
            raise EmptyDatasetError(f"even={even!r}: an epoch has no row to deliver; check the datasets.")
        if even == "drop" and not any(self.steps()):
            raise ShardingError(
                f"even='drop' with N={total} rows in an epoch, R={self.num_ranks} ranks and batches of B={size}: one "
                f"step needs R*B={self.num_ranks * size}"
                f"{' of one dataset' if self._single else ''}. Use fewer ranks, or a smaller batch_size."
            )

    def steps(self) -> list[int]:
        """The number of batches of each rank."""
        return [self.schedule(rank).steps for rank in range(self.num_ranks)]

    def rows(self) -> list[int]:
        """The number of real rows of each rank, without padding."""
        return [self.schedule(rank).rows for rank in range(self.num_ranks)]

    def schedule(self, rank: int) -> Schedule:
        """The rows of each dataset in the batches of a rank."""
        given = self._given[:, :, rank]
        key = given.tobytes()
        if key not in self._schedules:  # most ranks have as many rows of each as others
            kept = self._kept(given)
            pairs = zip(kept.tolist(), self.stretches, strict=True)
            stretches = tuple(Stretch(tuple(rows), stretch.rates) for rows, stretch in pairs)
            self._schedules[key] = Schedule(stretches, self._size, self._single, self._padding(int(kept.sum())))
        return self._schedules[key]

    def laps(self, rank: int) -> list[list[Pieces]]:
        """For each dataset, the pieces of a rank in each lap, in delivery order, without padding."""
        return [self._taken(number, rank, 0, count) for number, count in enumerate(self._kept_of_each(rank))]

    def pads(self, rank: int) -> tuple[Piece, ...]:
        """The padding of a rank: its first rows (those of rank 0 if it has none), repeated as often as needed."""
        missing = self.schedule(rank).padding
        if not missing:
            return ()
        of = rank if self.schedule(rank).rows else 0
        schedule = self.schedule(of)
        first = sum_of(counts_by_stretch(schedule.stretches, np.array([min(missing, schedule.rows)])))[0].tolist()
        laps = [lap for number, count in enumerate(first) for lap in self._taken(number, of, 0, count)]
        return tuple(padding([piece for lap in laps for piece in lap], missing))

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank without padding, dataset by dataset."""
        return (piece for laps in self.laps(rank) for lap in laps for piece in lap)

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` or `last_batch` is `"drop"`."""
        for rank in range(self.num_ranks):
            given = self._given[:, :, rank].sum(axis=0).tolist()
            for number, (kept, rows) in enumerate(zip(self._kept_of_each(rank), given, strict=True)):
                yield from (piece for lap in self._taken(number, rank, kept, rows) for piece in lap)

    @property
    def _single(self) -> bool:
        return self.options.mixing is not None and self.options.mixing["batches"] == "single"

    @property
    def _size(self) -> int:
        return self.options.batch_rows(self.num_ranks)

    @cached_property
    def _cut(self) -> tuple[list[Laps], list[list[int]]]:
        """The laps of each dataset, cut where stretches end, and the stretch of each."""
        cut = [
            laps.cut([stretch.rows[number] for stretch in self.stretches]) for number, laps in enumerate(self.datasets)
        ]
        return [laps for laps, _ in cut], [stretches for _, stretches in cut]

    @cached_property
    def _by_lap(self) -> list[I64]:
        """The rows of each rank, for each dataset int64 [laps, ranks]."""
        laps, stretches = self._cut
        sizes = np.array([size for each in laps for size in each.sizes], dtype=np.int64)
        # As they are delivered, so that ranks share the rows of each stretch evenly.
        turns = np.argsort([number for each in stretches for number in each], kind="stable")
        counts = np.empty((len(sizes), self.num_ranks), dtype=np.int64)
        counts[turns] = even_counts(sizes[turns].tolist(), self.num_ranks)
        return np.split(counts, np.cumsum([len(each.sizes) for each in laps])[:-1])

    @cached_property
    def _given(self) -> I64:
        """The rows of each rank before any are left out, int64 [stretches, datasets, ranks]."""
        given = np.zeros((len(self.stretches), len(self.datasets), self.num_ranks), dtype=np.int64)
        for number, (counts, stretches) in enumerate(zip(self._by_lap, self._cut[1], strict=True)):
            np.add.at(given[:, number], stretches, counts)
        return given

    @cached_property
    def _schedules(self) -> dict[bytes, Schedule]:
        return {}

    def _kept(self, given: I64) -> I64:
        """The rows that a rank delivers of those it is given, int64 [stretches, datasets]: the first of the mix."""
        size = self._size
        step = self.num_ranks * size
        if self.options.even == "drop":
            whole = self._given.sum(axis=2) // step * size if self._single else int(self._given.sum()) // step * size
        elif self.options.even == "none" and self.options.last_batch == "drop":
            whole = given // size * size if self._single else int(given.sum()) // size * size
        else:
            return given
        if self._single:
            return np.asarray(whole)
        pairs = zip(given.tolist(), self.stretches, strict=True)
        stretches = [Stretch(tuple(rows), stretch.rates) for rows, stretch in pairs]
        return np.concatenate(list(counts_by_stretch(stretches, np.array([whole]))))

    def _kept_of_each(self, rank: int) -> list[int]:
        """The rows of each dataset that a rank delivers."""
        return [sum(rows) for rows in zip(*(stretch.rows for stretch in self.schedule(rank).stretches), strict=True)]

    def _padding(self, rows: int) -> int:
        size = self._size
        if self.options.even == "pad":
            return -(-int(self._given.sum()) // (self.num_ranks * size)) * size - rows
        return -rows % size if self.options.even == "none" and self.options.last_batch == "pad" else 0

    def _taken(self, number: int, rank: int, first: int, last: int) -> list[Pieces]:
        """The rows `[first, last)` of a rank's rows of a dataset, lap by lap."""
        counts, taken, at = self._by_lap[number], [], 0
        for lap, count in enumerate(counts[:, rank].tolist()):
            low, high = max(first - at, 0), min(last - at, count)
            if low < high:
                begin = int(counts[lap, :rank].sum())
                order = self._cut[0][number].order(lap).take(begin + low, begin + high)
                taken.append(Pieces(order.runs().trimmed()))
            at += count
        return taken


def one_after_another(laps: Sequence[Sequence[Piece]]) -> Sequence[Piece]:
    """The pieces of all laps as those of one shard."""
    return laps[0] if len(laps) == 1 else tuple(piece for lap in laps for piece in lap)
