"""One epoch of a mix: each dataset's rows, lap by lap, of which each rank gets as many as it draws.

Each dataset is a shard of its own on every rank, and a rank's batches take rows of its shards by a schedule. So workers
do not change the order, and a state needs only the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError, use
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.deal import Deal, Schedule
from torch_dataloader_utils.mixing.epochs import MixedEpoch, rest_of_mix
from torch_dataloader_utils.mixing.laps import PART, shared_laps, whole_laps
from torch_dataloader_utils.model import Piece, Window
from torch_dataloader_utils.planning.even import padding, total_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces
from torch_dataloader_utils.planning.rest import RemainingRows, Undelivered
from torch_dataloader_utils.planning.splits import I64, Splits
from torch_dataloader_utils.planning.tasks import TASK_ROWS, SegmentTable
from torch_dataloader_utils.planning.windows import windowed
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import derive_key


@dataclass(frozen=True, eq=False)
class MixShares:
    """The rows of each rank in one epoch of a mix, or in its rest.

    Attributes:
        mixed: the rows of each dataset, and those left out.
        options: the plan's options.
        num_ranks: the number of ranks.
        epoch: the epoch.
        single: whether each batch is of one dataset.
        once: whether each epoch is a pass over all rows, so that a dataset of few rows may be left out of it.
    """

    mixed: MixedEpoch
    options: PlanOptions
    num_ranks: int
    epoch: int
    single: bool
    once: bool

    def check(self, names: Sequence[str]) -> None:
        """Check that there are rows for `even`.

        Args:
            names: of the datasets.

        Raises:
            EmptyDatasetError: an epoch has no rows.
            ShardingError: `even="drop"` would leave out all rows, or all of one dataset if each batch is of one.
        """
        taken = [rows // self._unit for rows in self.mixed.taken]
        total, even, size = sum(taken), self.options.even, self._size
        if not total and even in ("drop", "pad"):
            raise EmptyDatasetError(f"even={even!r}: an epoch has no row to deliver; check the datasets.")
        if even == "drop" and not any(self.steps()):
            raise ShardingError(
                f"even='drop' with N={total} {self._units} in an epoch, R={self.num_ranks} ranks and batches of "
                f"B={size}: one step needs R*B={self.num_ranks * size}"
                f"{' of one dataset' if self.single else ''}. Use fewer ranks, or a smaller batch_size.",
                remedies=[use(batch_size=most)] if (most := max(taken) // self.num_ranks) else [],
            )
        if not self.once and (advice := self.never_read(names)):
            raise ShardingError(advice)

    def never_read(self, names: Sequence[str]) -> str:
        """A text about the dataset that is left out of every epoch, as its batches would be short; "" if there is none.

        Args:
            names: of the datasets.
        """
        if not self.single or "drop" not in (self.options.even, self.options.last_batch):
            return ""
        kept = [
            sum(rows) for rows in zip(*(self.schedule(rank).of_each for rank in range(self.num_ranks)), strict=True)
        ]
        taken = (rows // self._unit for rows in self.mixed.taken)
        for dataset, rows, found in zip(names, taken, kept, strict=True):
            if rows and not found:
                name = "even" if self.options.even == "drop" else "last_batch"
                return (
                    f"{name}='drop' with batches='single': an epoch takes N={rows} {self._units} of {dataset}, which "
                    f"fill no batch of B={self._size} on R={self.num_ranks} ranks: it is never read. Use "
                    "batches='proportional', fewer ranks, a smaller batch_size, or more of its rows (repeat=)."
                )
        return ""

    def steps(self) -> list[int]:
        """The number of batches of each rank."""
        return [self.schedule(rank).steps for rank in range(self.num_ranks)]

    def rows(self) -> list[int]:
        """The number of real rows of each rank, without padding."""
        return [self.schedule(rank).rows for rank in range(self.num_ranks)]

    def schedule(self, rank: int) -> Schedule:
        """The rows of each dataset in the batches of a rank."""
        if rank not in self._schedules:
            self._schedules[rank] = self._schedule(rank)
        return self._schedules[rank]

    def laps(self, rank: int) -> list[list[Pieces]]:
        """For each dataset, the pieces of a rank in each lap, in delivery order, without padding."""
        kept = self.schedule(rank).of_each
        return [self._taken(number, rank, 0, count * self._unit) for number, count in enumerate(kept)]

    def pads(self, rank: int) -> tuple[Piece, ...]:
        """The padding of a rank: its first rows (if it has none, those of another), repeated as often as needed."""
        missing = self.schedule(rank).padding
        if not missing:
            return ()
        of = next(other for other in (rank, *range(self.num_ranks)) if self.schedule(other).rows)
        first = self.schedule(of).first_rows(missing)
        laps = [lap for number, count in enumerate(first) for lap in self._taken(number, of, 0, count * self._unit)]
        return tuple(padding([piece for lap in laps for piece in lap], missing * self._unit))

    def shards(
        self, rank: int, segments: Callable[[Shards], SegmentTable], key: tuple[int | str, ...], lap: int = 0
    ) -> Shards:
        """A shard for each dataset, and one for the padding if there is any (see `ScheduledShares`)."""
        laps, pads = self.laps(rank), self.pads(rank)
        made: Sequence[Sequence[Sequence[Piece]]] = laps
        if self.options.shuffles_rows:
            made = windowed_laps(laps, segments(tuple(lap for each in laps for lap in each)), self.options, key)
        shards = tuple(map(one_after_another, made))
        return (*shards, pads) if pads else shards

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank without padding, dataset by dataset."""
        return (piece for laps in self.laps(rank) for lap in laps for piece in lap)

    def not_delivered(self) -> Iterator[Piece]:
        """The rows that no rank delivers because `even` or `last_batch` is `"drop"`."""
        yield from (
            piece for laps in self.mixed.left_out for order in laps.all() for piece in order.runs().trimmed().pieces()
        )
        for rank in range(self.num_ranks):
            given = self._deal.draws[:, rank].tolist()
            for number, (kept, rows) in enumerate(zip(self.schedule(rank).of_each, given, strict=True)):
                left = self._taken(number, rank, kept * self._unit, rows * self._unit)
                yield from (piece for lap in left for piece in lap)

    def rest(self, splits: Splits, left: Undelivered, phase: int) -> RemainingRows:
        """The rest of the epoch (see `ScheduledShares`)."""
        return rest_of_mix(splits, left.pieces, self.epoch, phase, self.mixed)

    @property
    def _size(self) -> int:
        """Rows, or sequences, per batch."""
        return self.options.batch_rows(self.num_ranks) // self._unit

    @property
    def _unit(self) -> int:
        return self.mixed.unit_rows

    @property
    def _units(self) -> str:
        return "rows" if self._unit == 1 else "sequences"

    @cached_property
    def _deal(self) -> Deal:
        key = derive_key("deal", self.options.seed, self.epoch, self.mixed.first)
        rows = tuple(laps.rows // self._unit for laps in self.mixed.laps)
        return Deal(self.mixed.turns, rows, self.num_ranks, self._size, self.single, key)

    @cached_property
    def _by_lap(self) -> list[I64]:
        """The rows of each rank, for each dataset int64 [laps, ranks]."""
        draws = self._deal.draws * self._unit
        return [
            (whole_laps if self._is_small(laps.sizes) else shared_laps)(laps.sizes, own)
            for laps, own in zip(self.mixed.laps, draws, strict=True)
        ]

    def _is_small(self, sizes: Sequence[int]) -> bool:
        """Whether a rank's part of a lap would be few sequences, whose documents are mostly cut, the same ones always.

        Rows are not cut.
        """
        return self._unit > 1 and max(sizes, default=0) < PART * self.num_ranks * self._unit

    @cached_property
    def _schedules(self) -> dict[int, Schedule]:
        return {}

    def _schedule(self, rank: int) -> Schedule:
        deal, drops = self._deal, self.options.even == "none" and self.options.last_batch == "drop"
        absent, kept = [], deal.draws[:, rank].copy()
        for step in () if self.options.even == "pad" else deal.short_steps:
            rows = deal.of_rank(rank, step, step + 1)[0]
            if not rows.sum() or (drops and rows.sum() < self._size):
                absent.append(step)
                kept -= rows
        padding = self._padding(int(kept.sum()))
        return Schedule(deal, rank, tuple(kept.tolist()), tuple(absent), padding, self._unit)

    def _padding(self, rows: int) -> int:
        if self.options.even == "pad":
            return self._deal.steps * self._size - rows
        return -rows % self._size if self.options.even == "none" and self.options.last_batch == "pad" else 0

    def _taken(self, number: int, rank: int, first: int, last: int) -> list[Pieces]:
        """The rows `[first, last)` of a rank's rows of a dataset, lap by lap."""
        counts, taken, at = self._by_lap[number], [], 0
        for lap, count in enumerate(counts[:, rank].tolist()):
            low, high = max(first - at, 0), min(last - at, count)
            if low < high:
                begin = int(counts[lap, :rank].sum())
                order = self.mixed.laps[number].order(lap).take(begin + low, begin + high)
                taken.append(Pieces(order.runs().trimmed()))
            at += count
        return taken


def one_after_another(laps: Sequence[Sequence[Piece]]) -> Sequence[Piece]:
    """The pieces of all laps as those of one shard."""
    return laps[0] if len(laps) == 1 else tuple(piece for lap in laps for piece in lap)


# Shuffle windows of a mix: each holds rows of one lap of one dataset, so that no row repeats before all are read.


def windowed_laps(
    laps: Sequence[Sequence[Pieces]], segments: SegmentTable, options: PlanOptions, key: tuple[int | str, ...]
) -> list[Sequence[Sequence[Piece]]]:
    """The laps of each dataset, with rows grouped into windows; memory is shared by the number of rows.

    Args:
        laps: of each dataset, in delivery order.
        segments: the segments of each file.
        options: the size of the windows of all datasets together.
        key: the key of the rank's windows; the numbers of a dataset and of a lap complete it.
    """
    rows = [sum(map(total_rows, each)) for each in laps]
    out: list[Sequence[Sequence[Piece]]] = []
    for number, each in enumerate(laps):
        own = _share_of(options, rows[number], sum(rows))
        shuffled = [
            windowed((lap,), segments, own, (*key, number, place), exact=True)[0] for place, lap in enumerate(each)
        ]
        out.append(list(tasks_of_laps(shuffled)))
    return out


def _share_of(options: PlanOptions, rows: int, total: int) -> PlanOptions:
    """The options for one dataset's windows."""
    if options.window_bytes is None:
        return options
    return replace(options, window_bytes=max(options.window_bytes * rows // max(total, 1), 1))


def tasks_of_laps(laps: Sequence[Sequence[Piece]]) -> Iterator[Sequence[Piece]]:
    """The laps with tasks of their own; consecutive small laps share a task, which decodes the rows once for all."""
    if len(laps) == 1:
        yield laps[0]
        return
    base, held, last = 0, 0, 0
    for lap in laps:
        rows, most = total_rows(lap), max((_task(piece) for piece in lap), default=0)
        if held and (last or most or held + rows > TASK_ROWS):
            base, held = base + last + 1, 0
        yield tuple(_moved(piece, base) for piece in lap)
        held, last = held + rows, most


def _task(piece: Piece) -> int:
    return piece.source.task if isinstance(piece.source, Window) else 0


def _moved(piece: Piece, by: int) -> Piece:
    window = piece.source
    return replace(piece, source=replace(window, task=window.task + by)) if isinstance(window, Window) else piece
