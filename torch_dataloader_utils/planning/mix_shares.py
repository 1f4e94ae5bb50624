"""One epoch of a mix: each dataset's rows, lap by lap, cut into equal parts for the ranks.

Each dataset is a shard of its own on every rank, and a rank's batches take rows of its shards by a schedule. So workers
do not change the order, and a state needs only the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.laps import even_counts, laps_of
from torch_dataloader_utils.mixing.schedule import Schedule, prefix_counts
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


def laps_of_epoch(dataset: DatasetShare, rows: int, epoch: int) -> Laps:
    """The rows that an epoch takes of a dataset: those of its endless run that follow the previous epoch's."""
    taken = list(laps_of(dataset.rows, rows, epoch))
    return Laps([last - first for _, first, last in taken], lambda number: dataset.lap(*taken[number]))


def laps_of_rest(laps: Sequence[Order]) -> Laps:
    """The rows of a dataset that earlier phases of an epoch left."""
    return Laps([len(order) for order in laps], laps.__getitem__)


@dataclass(frozen=True, eq=False)
class MixShares:
    """The rows of each rank in one epoch of a mix, or in its rest.

    Attributes:
        datasets: the rows of each.
        options: the plan's options, with `mixing`.
        num_ranks: the number of ranks.
    """

    datasets: tuple[Laps, ...]
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
        return [sum(self._kept(rank)) for rank in range(self.num_ranks)]

    def schedule(self, rank: int) -> Schedule:
        """The rows of each dataset in the batches of a rank."""
        kept = self._kept(rank)
        return Schedule(kept, tuple(self._rates), self._size, self._single, self._padding(sum(kept)))

    def laps(self, rank: int) -> list[list[Pieces]]:
        """For each dataset, the pieces of a rank in each lap, in delivery order, without padding."""
        return [self._taken(number, rank, 0, count) for number, count in enumerate(self._kept(rank))]

    def pads(self, rank: int) -> tuple[Piece, ...]:
        """The padding of a rank: its first rows (those of rank 0 if it has none), repeated as often as needed."""
        missing = self.schedule(rank).padding
        if not missing:
            return ()
        of = rank if sum(self._kept(rank)) else 0
        kept = self._kept(of)
        first = prefix_counts(kept, self._rates, np.array([min(missing, sum(kept))]))[0].tolist()
        laps = [lap for number, count in enumerate(first) for lap in self._taken(number, of, 0, count)]
        return tuple(padding([piece for lap in laps for piece in lap], missing))

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank without padding, dataset by dataset."""
        return (piece for laps in self.laps(rank) for lap in laps for piece in lap)

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` or `last_batch` is `"drop"`."""
        for rank in range(self.num_ranks):
            for number, (kept, given) in enumerate(zip(self._kept(rank), self._given[:, rank].tolist(), strict=True)):
                yield from (piece for lap in self._taken(number, rank, kept, given) for piece in lap)

    @property
    def _single(self) -> bool:
        return self.options.mixing is not None and self.options.mixing["batches"] == "single"

    @property
    def _size(self) -> int:
        return self.options.batch_rows(self.num_ranks)

    @property
    def _rates(self) -> Sequence[float]:
        return (self.options.mixing or {})["rates"]  # type: ignore[no-any-return]

    @cached_property
    def _by_lap(self) -> list[I64]:
        """The rows of each rank, for each dataset int64 [laps, ranks]."""
        sizes = [size for laps in self.datasets for size in laps.sizes]
        counts = even_counts(sizes, self.num_ranks)
        return np.split(counts, np.cumsum([len(laps.sizes) for laps in self.datasets])[:-1])

    @cached_property
    def _given(self) -> I64:
        """The rows of each rank before any are left out, int64 [datasets, ranks]."""
        return np.stack([counts.sum(axis=0) for counts in self._by_lap])

    def _kept(self, rank: int) -> tuple[int, ...]:
        """The rows of each dataset that a rank delivers: the first ones, in the order of the mix."""
        given, size, total = self._given[:, rank], self._size, int(self._given.sum())
        if self.options.even == "drop":
            step = self.num_ranks * size
            whole = self._given.sum(axis=1) // step * size if self._single else total // step * size
        elif self.options.even == "none" and self.options.last_batch == "drop":
            whole = given // size * size if self._single else int(given.sum()) // size * size
        else:
            return tuple(given.tolist())
        kept = whole if self._single else prefix_counts(given.tolist(), self._rates, np.array([whole]))[0]
        return tuple(np.asarray(kept).tolist())

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
                order = self.datasets[number].order(lap).take(begin + low, begin + high)
                taken.append(Pieces(order.runs().trimmed()))
            at += count
        return taken


def one_after_another(laps: Sequence[Sequence[Piece]]) -> Sequence[Piece]:
    """The pieces of all laps as those of one shard."""
    return laps[0] if len(laps) == 1 else tuple(piece for lap in laps for piece in lap)
