"""One epoch of a mix: each dataset's rows, lap by lap, cut into equal parts for the ranks.

Each dataset is a shard of its own on every rank, and a rank's batches take rows of its shards by a schedule. So workers
do not change the order, and a state needs only the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError, use
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.epochs import Laps, MixedEpoch, full_step
from torch_dataloader_utils.mixing.laps import even_counts
from torch_dataloader_utils.mixing.schedule import Schedule, Stretch, counts_by_stretch, sum_of, whole_steps
from torch_dataloader_utils.model import Piece, Window
from torch_dataloader_utils.planning.even import padding, total_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces
from torch_dataloader_utils.planning.splits import I64
from torch_dataloader_utils.planning.tasks import TASK_ROWS, SegmentTable
from torch_dataloader_utils.planning.windows import windowed
from torch_dataloader_utils.planning.workers import Shards


@dataclass(frozen=True, eq=False)
class MixShares:
    """The rows of each rank in one epoch of a mix, or in its rest.

    Attributes:
        epoch: the rows of each dataset, and those left out.
        options: the plan's options.
        num_ranks: the number of ranks.
        single: whether each batch is of one dataset.
        once: whether each epoch is a pass over all rows, so that a dataset of few rows may be left out of it.
    """

    epoch: MixedEpoch
    options: PlanOptions
    num_ranks: int
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
        taken = [
            sum(rows.sizes) + sum(rest.sizes) for rows, rest in zip(self.epoch.laps, self.epoch.left_out, strict=True)
        ]
        total, even, size = sum(taken), self.options.even, self._size
        if not total and even in ("drop", "pad"):
            raise EmptyDatasetError(f"even={even!r}: an epoch has no row to deliver; check the datasets.")
        if even == "drop" and not any(self.steps()):
            raise ShardingError(
                f"even='drop' with N={total} rows in an epoch, R={self.num_ranks} ranks and batches of B={size}: one "
                f"step needs R*B={self.num_ranks * size}"
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
        kept = [sum(rows) for rows in zip(*map(self._kept_of_each, range(self.num_ranks)), strict=True)]
        pairs = zip(self.epoch.laps, self.epoch.left_out, strict=True)
        taken = [sum(rows.sizes) + sum(rest.sizes) for rows, rest in pairs]
        for dataset, rows, found in zip(names, taken, kept, strict=True):
            if rows and not found:
                name = "even" if self.options.even == "drop" else "last_batch"
                return (
                    f"{name}='drop' with batches='single': an epoch takes N={rows} rows of {dataset}, which fill no "
                    f"batch of B={self._size} on R={self.num_ranks} ranks: it is never read. Use "
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
        given = self._given[:, :, rank]
        key = given.tobytes()
        if key not in self._schedules:  # most ranks have as many rows of each as others
            kept = self._kept(given)
            pairs = zip(kept.tolist(), self.epoch.stretches, strict=True)
            stretches = tuple(Stretch(tuple(rows), stretch.rates) for rows, stretch in pairs)
            self._schedules[key] = Schedule(stretches, self._size, self.single, self._padding(int(kept.sum())))
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

    def shards(self, rank: int, segments: Callable[[Shards], SegmentTable], key: tuple[int | str, ...]) -> Shards:
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
            piece for laps in self.epoch.left_out for order in laps.all() for piece in order.runs().trimmed().pieces()
        )
        for rank in range(self.num_ranks):
            given = self._given[:, :, rank].sum(axis=0).tolist()
            for number, (kept, rows) in enumerate(zip(self._kept_of_each(rank), given, strict=True)):
                yield from (piece for lap in self._taken(number, rank, kept, rows) for piece in lap)

    @property
    def _size(self) -> int:
        return self.options.batch_rows(self.num_ranks)

    @cached_property
    def _cut(self) -> tuple[list[Laps], list[list[int]]]:
        """The laps of each dataset, cut where stretches end, and the stretch of each."""
        stretches = self.epoch.stretches
        cut = [laps.cut([each.rows[number] for each in stretches]) for number, laps in enumerate(self.epoch.laps)]
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
        shape = (len(self.epoch.stretches), len(self.epoch.laps), self.num_ranks)
        given = np.zeros(shape, dtype=np.int64)
        for number, (counts, stretches) in enumerate(zip(self._by_lap, self._cut[1], strict=True)):
            np.add.at(given[:, number], stretches, counts)
        return given

    @cached_property
    def _schedules(self) -> dict[bytes, Schedule]:
        return {}

    def _kept(self, given: I64) -> I64:
        """The rows that a rank delivers of those it is given, int64 [stretches, datasets]: the first of the mix."""
        by_rank = self.options.even == "none" and self.options.last_batch == "drop"
        if not by_rank or full_step(self.options, self.num_ranks) is not None:
            return given
        pairs = zip(given.tolist(), self.epoch.stretches, strict=True)
        stretches = [Stretch(tuple(rows), stretch.rates) for rows, stretch in pairs]
        return np.array([stretch.rows for stretch in whole_steps(stretches, self._size, single=self.single)], np.int64)

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
        out.append(list(_with_tasks(shuffled)))
    return out


def _share_of(options: PlanOptions, rows: int, total: int) -> PlanOptions:
    """The options for one dataset's windows."""
    if options.window_bytes is None:
        return options
    return replace(options, window_bytes=max(options.window_bytes * rows // max(total, 1), 1))


def _with_tasks(laps: Sequence[Sequence[Piece]]) -> Iterator[Sequence[Piece]]:
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
