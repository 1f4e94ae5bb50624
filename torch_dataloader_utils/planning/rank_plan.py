"""The plan of one rank for one epoch."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count, groupby, islice
from textwrap import wrap
from typing import Any, Protocol

from torch_dataloader_utils.errors import CountsRequiredError
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import (
    DataFileInfo,
    FileKey,
    FileLayout,
    Piece,
    Shard,
    Split,
    Task,
    Unit,
    Window,
    split_of,
    split_pieces,
)
from torch_dataloader_utils.planning.even import take, total_rows
from torch_dataloader_utils.planning.order import Pieces, real_pieces, splits_read
from torch_dataloader_utils.planning.plan_table import html_of_plan, reads, text_of_plan, window_in_words
from torch_dataloader_utils.planning.row_ranges import RowRange, row_ranges
from torch_dataloader_utils.planning.tasks import SegmentTable, make_tasks
from torch_dataloader_utils.planning.windows import ShuffleWindow, window_of_batches
from torch_dataloader_utils.planning.workers import Shards, begun_in_laps, delivered_by_shard
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.rows import I64

_WIDTH = 80  # characters per line of a printed plan's title


@dataclass(frozen=True)
class Endless:
    """How a shard is read that has no end: lap after lap, as far as its batches need it.

    Attributes:
        name: of its dataset, for messages.
        share: its part of what all shards deliver; 0 if nothing of it is read.
        whole_from: the first lap that is a whole one: before it may be what earlier phases of the epoch left.
    """

    name: str
    share: float
    whole_from: int = 0


class BatchSchedule(Protocol):
    """The rows of each shard in a rank's batches, if batches take rows of several."""

    @property
    def batch_rows(self) -> int:
        """Rows per batch."""

    @property
    def single(self) -> bool:
        """Whether each batch is of one shard."""

    @property
    def steps(self) -> int:
        """The number of batches."""

    def after(self, steps: int) -> list[int]:
        """The rows of each shard in the first `steps` batches."""

    def table(self, first: int, last: int) -> I64:
        """The rows of each shard in the first `first`, ..., `last` batches, int64 [last - first + 1, shards]."""

    @property
    def endless(self) -> tuple[Endless, ...]:
        """Of each shard, if they have no end: rows are then counted as they are made; else nothing."""

    def needed(self, shard: int, rows: Sequence[int]) -> list[float]:
        """When these rows of a shard are delivered, relative to those of others: numbers that order them."""


@dataclass(frozen=True)
class RankPlan:
    """What one rank delivers in one epoch. Print it to see the first files and rows of each worker.

    Attributes:
        epoch: the epoch.
        rank: the global rank.
        shards: the pieces of each worker, in delivery order.
        steps: the number of batches, or None if known only after reading.
        rows: the number of real rows (without padding), or None if known only after reading.
        layouts: the layout of each file, by its key.
        batch_rows: rows per batch of this rank.
        joint: whether each batch combines rows of every shard (with `canonical_ranks`, where a shard is a virtual
            rank); otherwise the shards take turns, one batch each.
        num_ranks: the number of ranks.
        schedule: for a mix, whose shards are datasets (and padding): the rows of each in every batch.
        num_all_splits: for a mix, the number of splits of all datasets, by which the orders of laps differ.
        unit: what a row becomes; of a batch with a budget of tokens, `batch_rows` is 1.
        unit_rows: rows that stay together in batches, such as the tokens of a sequence (L); else 1.
        cut: whether its steps may end before its rows do (`steps_per_epoch`).
        amplification: computes `read_amplification` from the rows of all ranks.
    """

    epoch: int
    rank: int
    shards: Shards = field(repr=False)  # grows with the data
    steps: int | None
    rows: int | None
    layouts: Mapping[FileKey, FileLayout] = field(repr=False, compare=False)
    batch_rows: int = 1
    joint: bool = False
    num_ranks: int = 1
    schedule: BatchSchedule | None = None
    num_all_splits: int = 1
    unit: Unit = Unit.ROW
    unit_rows: int = 1
    cut: bool = field(default=False, repr=False)
    amplification: Callable[[], float] = field(default=lambda: 1.0, repr=False, compare=False)

    def __repr__(self) -> str:
        return text_of_plan(self._title, self._delivered, self.unit.planned)

    def _repr_html_(self) -> str:
        return html_of_plan(self._title, self._delivered, self.unit.planned)

    def __getstate__(self) -> bytes:
        return packed({item.name: getattr(self, item.name) for item in fields(self)})

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(pickle.loads(state))

    def table(self) -> list[dict[str, Any]]:
        """What each worker reads, in delivery order: a dict for each run of rows of a file.

        Its keys are `worker`, `order` (the position among the worker's reads), `file`, `first_row` and `last_row`
        (inclusive, numbered as the plan counts rows), `rows` (fewer than between first and last if ranks take rows in
        turn), `split` (its number), `window` (the number of the worker's shuffle window, in which rows are permuted)
        and `padding` (whether the rows are repeats). Values that are known only after reading are None.
        """
        return list(reads(self._delivered))

    @property
    def read_amplification(self) -> float:
        """Rows of the segments that each rank decodes in this epoch, summed over ranks, per row that any decodes.

        1.0 means that no segment is decoded by two ranks. If a custom strategy generates the shards, it is unknown,
        and given as 1.0.
        """
        return self.amplification()

    @property
    def _title(self) -> str:
        known = self.rows if self.num_splits else 0
        rows = "rows known only after reading" if known is None else plural(known, self.unit.planned)
        steps = "" if self.steps is None else f" in {plural(self.steps, 'step')}"
        size = plural(self.batch_rows, self.unit.planned)
        batches = "batches by length" if self.unit is Unit.BATCH else f"batches of {size}"
        lines = [
            f"RankPlan: epoch {self.epoch}, rank {self.rank} of {self.num_ranks}",
            f"{rows}{steps} ({batches}), {plural(self.num_splits, 'split')}",
        ]
        if self.window is not None:
            words = window_in_words(self.window, self.batch_rows, self.unit)
            lines += wrap(f"{'permuted' if self.unit is Unit.BATCH else 'shuffled'} in {words}", _WIDTH)
        return "\n".join(lines)

    @property
    def num_splits(self) -> int:
        """The number of splits from which this rank delivers rows."""
        return len(splits_read([real_pieces(shard) for shard in self._delivered]))

    @cached_property
    def window(self) -> ShuffleWindow | None:
        """A typical shuffle window that batches draw from; None if rows are not shuffled."""
        return window_of_batches(self.shards, joint=self.joint)

    def ending_after(self, steps: int) -> RankPlan:
        """The same plan with so many steps: fewer than it has leave rows out, more repeat them in later laps."""
        plan = replace(self, steps=steps, cut=True)
        if self.rows is None:
            return plan
        if self.steps is not None and steps >= self.steps:
            return replace(plan, cut=False)
        real = (total_rows(real_pieces(shard)) for shard in self.shards)  # before all padding
        return replace(plan, rows=sum(map(min, real, plan._delivered_rows)))

    @cached_property
    def _delivered(self) -> Shards:
        """What each worker delivers in the first lap, as far as the steps go."""
        if not self.cut or self.rows is None or self.steps is None:
            return self.shards
        counts = zip(self.shards, self._delivered_rows, strict=True)
        return tuple(tuple(take(shard, 0, count)) for shard, count in counts)

    @cached_property
    def _delivered_rows(self) -> list[int]:
        """The rows of each shard in its steps, as far as they are of the first lap."""
        return _delivered(self, [self.shard_rows()], self.steps or 0)[1]

    def as_repeats(self) -> RankPlan:
        """The same rows in the same order, marked as repeats."""
        return replace(self, shards=tuple(map(_as_repeats, self.shards)))

    def shard(self, worker: int) -> Shard:
        """What a worker delivers, as splits restricted to the delivered rows, without padding.

        If an earlier phase began a shuffle window, the result includes all splits of that window.
        """
        splits = tuple(_as_split(piece) for piece in split_pieces(real_pieces(self._delivered[worker])))
        counts = [split.row_count for split in splits]
        known = [count for count in counts if count is not None]
        rows = sum(known) if len(known) == len(counts) else None
        return Shard(worker, splits, rows, sum(split.size_bytes for split in splits))

    def shard_rows(self) -> list[int]:
        """The number of rows of each shard, including repeats; with known row counts."""
        return [total_rows(shard) for shard in self.shards]

    def tasks(self, worker: int) -> tuple[Task, ...]:
        """The decode jobs of a worker, in delivery order."""
        shard = self.shards[worker]
        if self.schedule is None:
            return make_tasks(shard, self._segments, self.epoch)
        laps = groupby(shard, key=lambda piece: piece.order // self.num_all_splits)
        return tuple(task for _, lap in laps for task in make_tasks(lap, self._segments, self.epoch))

    @cached_property
    def _segments(self) -> SegmentTable:
        return SegmentTable(self.layouts)


def lap_rows(sizes: Callable[[int], Sequence[int]]) -> Iterator[list[int]]:
    """The number of rows of each shard in lap 0, 1, ...; a shard without rows in a lap after its first has ended.

    Args:
        sizes: returns the number of planned rows of each shard in a lap.
    """
    going: list[bool] = []
    for lap in count():
        rows = sizes(lap)
        going = [more and size > 0 for more, size in zip(going, rows, strict=True)] if lap else [True] * len(rows)
        if not any(going):
            return
        yield [size * more for size, more in zip(rows, going, strict=True)]


def places_after(plans: Callable[[int], RankPlan], batches: int, *, laps: bool) -> tuple[list[tuple[int, int]], int]:
    """The position of each shard after this many batches of the rank, and the shard whose turn is next.

    A position is (lap, rows of that lap delivered).

    Args:
        plans: returns the rank's plan for a lap; with known row counts.
        batches: the number of batches that the rank has delivered.
        laps: whether shards that have ended start again (`steps_per_epoch`).
    """
    sizes = lap_rows(lambda lap: plans(lap).shard_rows())
    seen, rows, turn = _delivered(plans(0), sizes if laps else islice(sizes, 1), batches)
    return [_lap_place([lap[shard] for lap in seen], done) for shard, done in enumerate(rows)], turn


def rows_of_batches(plan: RankPlan, laps: Iterable[list[int]], batches: int) -> int:
    """The number of rows in the rank's first batches.

    Args:
        plan: with known row counts.
        laps: the number of rows of each shard, for each lap (see `lap_rows`).
        batches: the number of batches.
    """
    return sum(_delivered(plan, laps, batches)[1])


def _delivered(plan: RankPlan, laps: Iterable[list[int]], batches: int) -> tuple[list[list[int]], list[int], int]:
    """The laps that the rank's first batches have begun; the rows delivered by each shard; the shard that is next."""
    seen: list[list[int]] = []
    following = iter(laps)

    def sizes() -> Iterator[list[int]]:
        for rows in following:
            seen.append(rows)
            yield rows

    turn = 0
    if plan.schedule is not None:
        rows = plan.schedule.after(batches)
    elif plan.joint:
        rows = [batches * (plan.batch_rows // len(plan.shards))] * len(plan.shards)
    else:
        given, turn = _given(begun_in_laps(sizes(), plan.batch_rows), len(plan.shards), batches)
        rows = [number * plan.batch_rows for number in given]
    totals = [sum(lap) for lap in zip(*seen, strict=True)] or [0] * len(rows)
    while any(total < wanted for total, wanted in zip(totals, rows, strict=True)):
        more = next(sizes(), None)
        if more is None:
            break
        totals = [total + size for total, size in zip(totals, more, strict=True)]
    return seen, [min(total, wanted) for total, wanted in zip(totals, rows, strict=True)], turn


def _given(laps: Iterable[Sequence[int]], shards: int, batches: int) -> tuple[list[int], int]:
    """The number of batches that each shard has delivered after `batches` of the rank, and the shard that is next.

    Args:
        laps: for each lap, the number of batches of each shard that begin in it.
        shards: the number of shards.
        batches: the number of batches that the rank has delivered.
    """
    given, turn = [0] * shards, 0
    for begun in laps:
        now, turn = delivered_by_shard(begun, min(batches, sum(begun)))
        given = [sum(pair) for pair in zip(given, now, strict=True)]
        batches -= sum(now)
        if now != begun:
            break
    return given, turn


def _lap_place(sizes: Sequence[int], rows: int) -> tuple[int, int]:
    lap = 0
    while lap + 1 < len(sizes) and rows >= sizes[lap]:
        rows -= sizes[lap]
        lap += 1
    return lap, rows


def rows_of_step(
    plans: Callable[[int], RankPlan], step: int, *, laps: bool = False, tokens: bool = False
) -> tuple[RowRange, ...]:
    """The rows of one batch of a rank, in file order.

    Args:
        plans: returns the rank's plan for a lap.
        step: the index of the batch.
        laps: whether shards that have ended start again (`steps_per_epoch`).
        tokens: whether rows are tokens (`Pack(method="wrap")`).

    Raises:
        CountsRequiredError: row counts, or with `Pack(method="wrap")` the order of tokens, are unknown before reading.
        IndexError: the rank has no such step.
    """
    plan = plans(0)
    if plan.rows is None or plan.steps is None:
        raise CountsRequiredError(
            "rows_of: the rows of a step are known only if all row counts are: use count_rows=True."
        )
    if not 0 <= step < plan.steps:
        raise IndexError(f"step {step} of {plan.steps}: rank {plan.rank} has no such step in epoch {plan.epoch}.")
    first, last = (places_after(plans, number, laps=laps)[0] for number in (step, step + 1))
    pieces = []
    for shard, ((lap, begin), (last_lap, end)) in enumerate(zip(first, last, strict=True)):
        for number in range(lap, last_lap + 1):
            rows = plans(number).shards[shard]
            pieces += take(rows, begin if number == lap else 0, end if number == last_lap else total_rows(rows))
    if tokens and any(isinstance(piece.source, Window) for piece in pieces):
        raise CountsRequiredError(
            "rows_of: a window permutes documents of unknown lengths. Use shuffle=False or 'splits'."
        )
    return row_ranges(pieces)


def _as_repeats(shard: Sequence[Piece]) -> Sequence[Piece]:
    if isinstance(shard, Pieces):
        return replace(shard, repeats=True)
    return tuple(replace(piece, pad=True) for piece in shard)


def _as_split(piece: Piece) -> Split:
    """The split of the piece, restricted to its rows, with their share of the bytes."""
    source = split_of(piece)
    if piece.rows == source.row_range:
        return source
    share = source.size_bytes * len(piece) // max(source.row_count or 0, 1)
    return replace(source, row_range=piece.rows, segments=None, size_bytes=share)


# A plan as bytes that anybody may keep: its files are named without secrets, as in messages.


def packed(values: Mapping[str, Any]) -> bytes:
    """The pickled attributes of a plan, in which no file's name holds a secret."""
    names = _names(values["layouts"])
    layouts = {(key[0], names[key]): layout for key, layout in values["layouts"].items()}
    sink = io.BytesIO()
    _Pickler(sink, names).dump({**values, "layouts": layouts})
    return sink.getvalue()


def _names(keys: Iterable[FileKey]) -> dict[FileKey, str]:
    """For each file a name without secrets; those that differ only in what is hidden are numbered."""
    names: dict[FileKey, str] = {}
    taken: set[FileKey] = set()
    numbers: Counter[FileKey] = Counter()
    for part, path in keys:
        name = plain = redacted(path)
        while (part, name) in taken:
            numbers[part, plain] += 1
            name = f"{plain} ({numbers[part, plain] + 1})"
        names[part, path] = name
        taken.add((part, name))
    return names


class _Pickler(pickle.Pickler):
    def __init__(self, sink: io.BytesIO, names: Mapping[FileKey, str]) -> None:
        super().__init__(sink)
        self._names = names

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, DataFileInfo):
            return NotImplemented
        path = self._names.get(value.key) or redacted(value.path)
        return NotImplemented if path == value.path else replace(value, path=path).__reduce_ex__(4)
