"""A mix of datasets without end, whose units are counted as they are made: sequences of documents, batches by length.

Each rank reads its part of each lap of each dataset, lap after lap, and makes units of that alone; the schedule says of
which dataset the next one is. So an epoch is so many steps, equal on all ranks, whatever filters leave and however full
sequences are. A dataset of few rows is dealt by whole laps, so that a rank does not see the same few of them for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, overload

from torch_dataloader_utils.errors import EmptyDatasetError, ShardingError, use
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.deal import Deal, Schedule
from torch_dataloader_utils.mixing.laps import PART
from torch_dataloader_utils.mixing.shares import one_after_another, tasks_of_laps
from torch_dataloader_utils.mixing.stream_course import StreamCourse
from torch_dataloader_utils.model import Piece, Window
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Order, Pieces
from torch_dataloader_utils.planning.parts import DatasetShare
from torch_dataloader_utils.planning.rank_plan import Endless
from torch_dataloader_utils.planning.read_together import in_windows
from torch_dataloader_utils.planning.rest import BegunLap, RemainingRows, Undelivered, merged, order_of
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.tasks import SegmentTable
from torch_dataloader_utils.planning.windows import windowed
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import derive_key

# The fewest units, and the bytes of their tokens, of laps that are read together: a window of fewer rows than a part,
# or of fewer units, would leave some of them unfilled.
_UNITS = 128
_TOKEN_BYTES = 4
_BEGUN = -1  # comes before the laps


@dataclass(frozen=True, eq=False)
class MixStreams:
    """What ranks read in one epoch of a mix of datasets without end, or in its rest.

    Attributes:
        datasets: the datasets.
        options: the plan's options.
        num_ranks: the number of ranks.
        epoch: the epoch, which begins with laps of its own.
        course: what it takes.
        names: of the datasets, for messages.
        unit_tokens: the tokens of a unit.
        begun: what earlier phases left of it; None: nothing was taken of it.
    """

    datasets: Sequence[DatasetShare]
    options: PlanOptions
    num_ranks: int
    epoch: int
    course: StreamCourse
    names: tuple[str, ...]
    unit_tokens: int
    begun: RemainingRows | None = None

    def check(self, names: Sequence[str]) -> None:
        """Check that there is a step, and something to repeat of each dataset (see `ScheduledShares`)."""
        if not self.course.steps:
            raise ShardingError(
                f"tokens_per_epoch: {self.course.given} sequences or batches are less than one step, which takes "
                f"{self.course.step_units} on {self.num_ranks} ranks.",
                remedies=[use(tokens_per_epoch=self.course.step_units * self.unit_tokens)],
            )
        weighs = [any(phase.weights[number] for phase in self.course.phases) for number in self._numbers]
        for dataset, name, weight in zip(self.datasets, names, weighs, strict=True):
            if weight and (dataset.first == dataset.last or (_counted(dataset) and not dataset.rows)):
                raise EmptyDatasetError(f"{name} has no rows, so that none can be repeated: leave it out.")

    def never_read(self, names: Sequence[str]) -> str:
        """Nothing: each dataset with a weight is read."""
        return ""

    def steps(self) -> list[int]:
        """The number of batches of each rank."""
        return [self._deal.steps] * self.num_ranks

    def rows(self) -> list[int]:
        """The units of each rank."""
        return [self._deal.steps * self._deal.batch_rows] * self.num_ranks

    def schedule(self, rank: int) -> Schedule:
        """The units of each dataset in the batches of a rank."""
        if rank not in self._schedules:
            most = (self._deal.steps * self._deal.batch_rows,) * len(self.datasets)
            self._schedules[rank] = Schedule(
                self._deal, rank, most, unit_rows=self.options.unit_rows, endless=self._endless
            )
        return self._schedules[rank]

    def shards(
        self, rank: int, segments: Callable[[Shards], SegmentTable], key: tuple[int | str, ...], lap: int = 0
    ) -> Shards:
        """A shard for each dataset, made when it is asked for (see `ScheduledShares`)."""
        count = len(self.datasets)
        return OnDemand(lambda number: self._windows(rank, number, lap, segments, (*key, number, lap)), count)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """The pieces of a rank in the first lap of each dataset."""
        laps = (self._laps(rank, number, 0) for number in self._numbers)
        return (piece for each in laps for lap in each for piece in lap)

    def not_delivered(self) -> Iterator[Piece]:
        """Nothing: what an epoch does not come to is not left out of it."""
        return iter(())

    def rest(self, splits: Splits, left: Undelivered, phase: int) -> RemainingRows:
        """The rest of the epoch: of each dataset, the laps that any rank has begun, which all ranks share anew."""
        of_parts = [self._left_of(number, [begun[number] for begun in left.begun]) for number in self._numbers]
        order = order_of(splits, [piece for laps, _ in of_parts for lap in laps for piece in lap])
        ends = pairwise(accumulate((len(lap) for laps, _ in of_parts for lap in laps), initial=0))
        orders = tuple(tuple(order.units(*next(ends)) for _ in laps) for laps, _ in of_parts)
        fresh = tuple(lap for _, lap in of_parts)
        first, more = self._first + left.steps * self.course.step, self.course.after(self._left, left.steps)
        return RemainingRows(self.epoch, phase, order, laps=orders, first=first, fresh=fresh, left=more)

    @property
    def _numbers(self) -> range:
        return range(len(self.datasets))

    @property
    def _first(self) -> int:
        """The first of the run that is taken of what phases count."""
        return self.course.first(self.epoch) if self.begun is None else self.begun.first

    @property
    def _left(self) -> int:
        """The units of the epoch that are left, or its steps."""
        return self.course.left if self.begun is None else self.begun.left

    @cached_property
    def _deal(self) -> Deal:
        steps, size = self.course.steps_of(self._left), self.course.step_units
        turns = self.course.turns(self._first, steps)
        units = tuple(count * size if self.course.single else count for count in turns.of_each)
        key = derive_key("deal", self.options.seed, self.epoch, self._first)
        return Deal(turns, units, self.num_ranks, size // self.num_ranks, self.course.single, key)

    @cached_property
    def _schedules(self) -> dict[int, Schedule]:
        return {}

    @cached_property
    def _endless(self) -> tuple[Endless, ...]:
        total, whole_from = max(sum(self._deal.rows), 1), 0 if self.begun is None else 1
        pairs = zip(self.names, self._deal.rows, strict=True)
        return tuple(Endless(name, units / total, whole_from) for name, units in pairs)

    # What a rank reads of a dataset. A lap of its shard is a group of laps of the dataset if these are small, so that
    # windows and sequences go on over their borders; in the rest of an epoch, the first is what is left of begun laps.

    def _laps(self, rank: int, number: int, lap: int) -> list[Sequence[Piece]]:
        """The pieces of a lap of a rank's shard, for each lap of the dataset."""
        if self.begun is not None:
            if lap == 0:
                return [self._shared(order, rank) for order in self.begun.laps[number]]
            lap -= 1
        group = self._groups[number]
        if self._by_laps[number]:
            first = self._fresh(number) + (lap * self.num_ranks + rank) * group
            return [Pieces(self._order(number, own).runs().trimmed()) for own in range(first, first + group)]
        first = self._fresh(number) + lap * group
        return [self._shared(self._order(number, own), rank) for own in range(first, first + group)]

    def _windows(
        self,
        rank: int,
        number: int,
        lap: int,
        segments: Callable[[Shards], SegmentTable],
        key: tuple[int | str, ...],
    ) -> Sequence[Piece]:
        """A lap of a rank's shard, with rows grouped into windows; memory is shared by what is delivered."""
        laps, options = self._laps(rank, number, lap), self.options
        if options.shuffles_rows:
            size = options.window_bytes and max(1, int(options.window_bytes * self._endless[number].share))
            own, of_files = replace(options, window_bytes=size), segments(laps)
            made = [windowed((each,), of_files, own, (*key, place), exact=False)[0] for place, each in enumerate(laps)]
            return one_after_another(list(tasks_of_laps(made)))
        pieces = [piece for each in laps for piece in each]
        if options.read_together is None:
            return pieces
        return in_windows((pieces,), segments((pieces,)), options.read_together, options.seed, key)[0]

    def _order(self, number: int, lap: int) -> Order:
        """All rows of a lap of a dataset; their places tell laps apart."""
        dataset = self.datasets[number]
        key = derive_key("order", dataset.options.seed, self.epoch, lap) if dataset.options.shuffle else None
        rows = dataset.table.order(key, dataset.first, dataset.last).rows
        return Order(replace(rows, place=rows.place + lap * self._splits))

    def _shared(self, order: Order, rank: int) -> Pieces:
        """The part of a rank: of the rows, or of the splits if their rows are known only after reading."""
        rows, ranks = order.rows, self.num_ranks
        counted = bool(order.table.counted[rows.source].all())
        count = rows.total if counted else order.num_units
        first, last = rank * count // ranks, (rank + 1) * count // ranks
        return Pieces((rows.take(first, last) if counted else rows.select(slice(first, last))).trimmed())

    @property
    def _splits(self) -> int:
        """The number of all splits, by which the places of laps differ."""
        return max(len(self.datasets[0].table.splits), 1)

    def _fresh(self, number: int) -> int:
        """The first lap of a dataset that no earlier phase began."""
        return 0 if self.begun is None else self.begun.fresh[number]

    @cached_property
    def _by_laps(self) -> list[bool]:
        """Of each dataset, whether a rank reads whole laps, every R-th, and not its part of each."""
        return [
            dataset.rows < PART * self.num_ranks if _counted(dataset) else dataset.last - dataset.first < self.num_ranks
            for dataset in self.datasets
        ]

    @cached_property
    def _groups(self) -> list[int]:
        """Of each dataset, how many of its laps are read together, so that windows have enough rows."""
        least, found = _UNITS * _TOKEN_BYTES * self.unit_tokens, []
        for dataset, whole in zip(self.datasets, self._by_laps, strict=True):
            ranks = 1 if whole else self.num_ranks
            size = int(dataset.table.sizes[dataset.first : dataset.last].sum())
            pairs = [(least, size), *([(PART, dataset.rows)] if _counted(dataset) else [])]
            found.append(max(-(-few * ranks // max(own, 1)) for few, own in pairs))
        return found

    def _left_of(self, number: int, begun: Sequence[BegunLap]) -> tuple[list[list[Piece]], int]:
        """What is left of the laps of a dataset that ranks have begun, lap by lap, and the first that none has begun.

        A lap that one rank has begun is begun: the parts that other ranks have of it are left.
        """
        last, pieces = max(own.lap for own in begun), [piece for own in begun for piece in own.pieces]
        for rank, own in enumerate(begun):
            for lap in range(own.lap + 1, last + 1 if not self._by_laps[number] else 0):
                pieces += [piece for part in self._laps(rank, number, lap) for piece in part]
        by_lap: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_lap[_BEGUN if isinstance(piece.source, Window) else piece.order // self._splits].append(piece)
        read = last + (self.begun is None)
        laps = read * self._groups[number] * (self.num_ranks if self._by_laps[number] else 1)
        return [merged(by_lap[lap]) for lap in sorted(by_lap)], self._fresh(number) + laps


def _counted(dataset: DatasetShare) -> bool:
    return bool(dataset.table.counted[dataset.first : dataset.last].all())


class OnDemand(Sequence[Sequence[Piece]]):
    """Shards of which each is made when it is asked for.

    Args:
        make: makes one, by its number.
        count: their number.
    """

    def __init__(self, make: Callable[[int], Sequence[Piece]], count: int) -> None:
        self._make = lru_cache(maxsize=None)(make)
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Sequence[Piece]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[Piece]]: ...

    def __getitem__(self, index: int | slice) -> Sequence[Any]:
        numbers = range(self._count)[index]
        return self._make(numbers) if isinstance(numbers, int) else [self._make(number) for number in numbers]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)
