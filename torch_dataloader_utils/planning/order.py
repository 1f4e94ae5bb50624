"""The ordered rows of an epoch, stored in columns: what policies divide.

An `Order` is a sequence of rows: *units* (runs of rows of one split) one after another, optionally restricted to every
n-th block. Its methods return new orders; they use numpy, and their time depends on the number of units, never of rows.
`len` takes no time, so that the shares of all ranks can be compared. One rank's plan of 1,000,000 splits for 4,096
ranks takes tenths of a second and less than 100 MB (`benchmarks/plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Piece, Rows, Split, Window, split_numbers, turn_of
from torch_dataloader_utils.options.late_clashes import SHARDS_UNKNOWN
from torch_dataloader_utils.planning.merging import pattern
from torch_dataloader_utils.planning.splits import I64, Splits, distinct
from torch_dataloader_utils.seeding import permutation

# Runs of rows of one split (all rows, or every n-th block), stored in columns; each becomes a piece.

_MADE = 1 << 13  # pieces created at a time: their columns become Python lists


@dataclass(frozen=True, eq=False)
class Runs:
    """A sequence of rows, run after run; row i of a run's split is selected if `(i - phase) % step < block`.

    Attributes:
        table: the splits.
        source: the split or window of each run (its index in the table), shape [runs].
        place: the position of that source in the epoch's order, shape [runs].
        first: the first row of each run, counted within its split, shape [runs].
        last: the end of each run, exclusive, shape [runs].
        phase: where the blocks of each run begin, counted like `first`, shape [runs].
        step: the distance from block to block, 1 if all rows are selected, shape [runs].
        block: rows per block, shape [runs].
    """

    table: SplitTable
    source: I64
    place: I64
    first: I64
    last: I64
    phase: I64
    step: I64
    block: I64

    @classmethod
    def contiguous_runs(cls, table: SplitTable, source: I64, place: I64, first: I64, last: I64) -> Runs:
        """Runs in which all rows are selected."""
        nothing, one = constant(0, len(first)), constant(1, len(first))
        return cls(table, source, place, first, last, nothing, one, one)

    @cached_property
    def contiguous(self) -> bool:
        """Whether all rows of all runs are selected."""
        return not (self.step > 1).any()

    @property
    def rows(self) -> I64:
        """The number of selected rows of each run, shape [runs]; not kept, as an epoch may have millions of runs."""
        if self.contiguous:
            return self.last - self.first
        return self._before(self.last) - self._before(self.first)

    @cached_property
    def ends(self) -> I64:
        """The number of selected rows up to the end of each run, shape [runs]."""
        ends = self.rows
        return np.cumsum(ends, out=ends)

    @cached_property
    def total(self) -> int:
        """The number of selected rows of all runs."""
        return int(self.rows.sum())

    def take(self, first: int, last: int) -> Runs:
        """The rows `[first, last)` of this sequence."""
        if first >= last:
            return self.select(slice(0, 0))
        low = int(np.searchsorted(self.ends, first, side="right"))
        high = int(np.searchsorted(self.ends, last, side="left"))
        begins = [int(self.ends[run - 1]) if run else 0 for run in (low, high)]
        start, stop = self.rows_of(low).row(first - begins[0]), self.rows_of(high).row(last - 1 - begins[1])
        taken = self.select(slice(low, high + 1))
        firsts, lasts = taken.first.copy(), taken.last.copy()
        firsts[0], lasts[-1] = start, stop + 1
        return taken.between(firsts, lasts)

    def between(self, first: I64, last: I64) -> Runs:
        """The same runs with other ends; `replace` takes several times as long, and plans do this for each rank."""
        return Runs(self.table, self.source, self.place, first, last, self.phase, self.step, self.block)

    def cut(self, first: I64, last: I64) -> Runs:
        """The rows `[first, last)` of this sequence for each of these ranges, one after another.

        Args:
            first: where each range begins, in ascending order, shape [ranges].
            last: where it ends, at most where the next one begins, shape [ranges].
        """
        begin, end = np.append(0, self.ends[:-1]), self.ends
        low, high = np.searchsorted(end, first, side="right"), np.searchsorted(begin, last, side="left")
        counts = np.where(first < last, high - low, 0)
        which = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        runs = self.select(which)
        before = runs._before(runs.first) - begin[which]
        firsts = np.maximum(np.repeat(first, counts), begin[which]) + before
        lasts = np.minimum(np.repeat(last, counts), end[which]) + before
        return runs.between(runs._row(firsts), runs._row(lasts - 1) + 1)

    def by_turn(self) -> Runs:
        """The same runs, partition by partition."""
        return self.select(np.argsort(self.turns, kind="stable"))

    @property
    def turns(self) -> I64:
        """The number of the partition of each run, shape [runs]."""
        return self.table.turns[self.source]

    def select(self, which: slice | Sequence[int] | I64 | npt.NDArray[np.bool_]) -> Runs:
        """The runs at these places."""
        chosen = which if isinstance(which, slice) else np.asarray(which) if len(which) else slice(0, 0)
        return Runs(self.table, *(_selected(column, chosen) for column in self.columns()))

    def pieces(self) -> Iterator[Piece]:
        """A piece for each run, in the same order; of a run of `trimmed` with its pattern, if it has one."""
        for at in range(0, len(self.source), _MADE):
            yield from self.select(slice(at, at + _MADE))._pieces()

    def _pieces(self) -> Iterator[Piece]:
        shift = self.table.starts[self.source]
        columns = (self.place, self.first + shift, self.last + shift, self.step, self.block, self.phase + shift)
        sources, known = self.table.some(self.source), self.table.counted[self.source].tolist()
        for source, has_rows, place, a, b, step, block, phase in zip(
            sources, known, *(column.tolist() for column in columns), strict=True
        ):
            rows = Rows(a, b, step, block, phase) if step > 1 else Rows(a, b)
            yield Piece(source, rows if has_rows else None, place)

    def filled(self) -> Runs:
        """The runs without empty ones; those whose rows are known only after reading stay."""
        kept = (self.rows > 0) | ~self.table.counted[self.source]
        return self if kept.all() else self.select(kept)

    def trimmed(self) -> Runs:
        """The runs that have rows, each from its first row to its last; those without gaps have no pattern.

        To be called once for the rows of a rank: what is cut from its runs keeps their patterns.
        """
        some = self.filled()
        if some.contiguous:
            return some
        lower = some._before(some.first)
        start = some._row(lower)
        lower += some.rows - 1
        stop = some._row(lower) + 1
        gaps = stop - start > some.rows
        if not gaps.any():
            return Runs.contiguous_runs(some.table, some.source, some.place, start, stop)
        pattern = (
            np.where(gaps, column, plain) for column, plain in ((some.phase, 0), (some.step, 1), (some.block, 1))
        )
        return Runs(some.table, some.source, some.place, start, stop, *pattern)

    def in_plan_order(self) -> Runs:
        """The same runs, sorted by the positions of their sources, and within a source by first row."""
        if (np.diff(self.place) > 0).all():
            return self
        starts = self._row(self._before(self.first)) + self.table.starts[self.source]
        return self.select(np.lexsort((starts, self.place)))

    def overlap(self) -> bool:
        """Whether a row is in two runs of one pattern, or a source without a row count occurs twice."""
        runs = self.filled()
        patterns = np.stack([runs.source, runs.step, runs.block, runs.phase % runs.step])
        turns = np.lexsort((runs.first, *patterns))
        same = (np.diff(patterns[:, turns]) == 0).all(axis=0)
        shared = np.diff(runs.first[turns]) < (runs.last - runs.first)[turns[:-1]]
        return bool((same & (shared | ~self.table.counted[runs.source[turns[1:]]])).any())

    def columns(self) -> tuple[I64, ...]:
        """All columns but the table, in the order of the constructor."""
        return self.source, self.place, self.first, self.last, self.phase, self.step, self.block

    def rows_of(self, run: int) -> Rows:
        """The rows of one run, counted within its split."""
        columns = (self.first, self.last, self.step, self.block, self.phase)
        return Rows(*(int(column[run]) for column in columns))

    @staticmethod
    def of_rows(table: SplitTable, runs: Sequence[tuple[int, int, Rows]]) -> Runs:
        """The runs for these tuples (source, place, rows counted within the source)."""
        columns = [(source, place, x.start, x.stop, x.phase, x.step, x.block) for source, place, x in runs]
        return Runs(table, *np.array(columns, dtype=np.int64).reshape(-1, 7).T)

    def _before(self, numbers: I64) -> I64:
        """The number of rows of each run's pattern below a number, counted from its phase, shape [runs]."""
        turn, inside = np.divmod(numbers - self.phase, self.step)
        return turn * self.block + np.minimum(inside, self.block)

    def _row(self, places: I64) -> I64:
        """The row at a position in each run's pattern, counted from its phase, shape [runs]."""
        rows: I64 = self.phase + places // self.block * self.step + places % self.block
        return rows


def joined(runs: Sequence[Runs]) -> Runs:
    """The runs of all sequences, one after another: at least one, all of one table."""
    if len(runs) == 1:
        return runs[0]
    return Runs(runs[0].table, *map(np.concatenate, zip(*(some.columns() for some in runs), strict=True)))


def _selected(column: I64, which: slice | I64 | npt.NDArray[np.bool_]) -> I64:
    """The numbers at these places; equal ones stay in the memory of one."""
    if isinstance(which, slice) or not len(column) or column.strides != (0,):
        return column[which]
    return constant(int(column[0]), int(which.sum()) if which.dtype == bool else len(which))


def constant(value: int, n: int) -> I64:
    """`n` equal numbers, read-only, in the memory of one."""
    return np.broadcast_to(np.int64(value), (n,))


_CHUNK = 1 << 16  # units looked at together
_KEPT = 1 << 15  # splits that stay in memory once created


@dataclass(frozen=True, eq=False)
class SplitTable:
    """The splits that the numbers of an `Order` refer to.

    Attributes:
        splits: all splits in file order.
        begun: the sources after the splits: those that earlier phases began, and rests of splits without row counts.
    """

    splits: Splits
    begun: Sequence[Split | Window] = ()

    _made: dict[int, Split | Window] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._made.update(enumerate(self.begun, len(self.splits)))

    def some(self, numbers: I64) -> list[Split | Window]:
        """The sources with these numbers, shape [any]; a rank often gets them again, so the first ones are kept."""
        places, kept = numbers.tolist(), self._made
        new = np.array([place for place in places if place not in kept], dtype=np.int64)
        made = dict(zip(new.tolist(), self.splits.at(new), strict=True))
        if len(kept) < _KEPT:
            kept.update(made)
        return [made[place] if place in made else kept[place] for place in places]

    @property
    def uncounted(self) -> Split | None:
        """The first split whose row count is known only after reading; None if all are known before."""
        return self.splits.uncounted

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Whether the number of plan rows of each source is known, shape [sources]."""
        return self._and_begun(self.splits.counted, [source.row_count is not None for source in self.begun])

    @cached_property
    def lengths(self) -> I64:
        """The number of plan rows of each source (0 if unknown), shape [sources]."""
        lengths = self.splits.stop - self.splits.start
        return self._and_begun(lengths, [source.row_count or 0 for source in self.begun])

    @cached_property
    def sizes(self) -> I64:
        """Estimated decoded bytes of each source, shape [sources]."""
        return self._and_begun(self.splits.sizes, [source.size_bytes for source in self.begun])

    @cached_property
    def turns(self) -> I64:
        """The number of the partition of each source, shape [sources]."""
        return self._and_begun(self.splits.turns, [turn_of(source) for source in self.begun])

    @cached_property
    def starts(self) -> I64:
        """First plan row of each source, shape [sources]."""
        splits = self.splits.start if self.uncounted is None else np.maximum(self.splits.start, 0)
        return self._and_begun(splits, [first_row(source) for source in self.begun])

    def _and_begun(self, of_splits: npt.NDArray[Any], of_begun: Sequence[int]) -> npt.NDArray[Any]:
        return np.concatenate([of_splits, np.array(of_begun, of_splits.dtype)]) if of_begun else of_splits

    def order(self, key: int | None, first: int = 0, last: int | None = None) -> Order:
        """The rows of the splits `[first, last)`: permuted by `key`, or in file order if it is None."""
        n = (len(self.splits) if last is None else last) - first
        places = np.arange(n, dtype=np.int64)
        source = first + (places if key is None else permutation(n, key))
        return Order(Runs.contiguous_runs(self, source, places, constant(0, n), self.lengths[source]))


def _reach(units: Runs, source: int, row: int) -> I64:
    """How far each unit lies before that row in file order, within `[first, last]`, shape [units]."""
    inside = np.clip(row, units.first, units.last)
    return np.where(units.source < source, units.last, np.where(units.source > source, units.first, inside))


def first_row(source: Split | Window) -> int:
    """The plan row at which counting begins for the rows of a source."""
    return source.row_range.start if isinstance(source, Split) and source.row_range is not None else 0


def from_first(rows: Rows, source: Split | Window) -> Rows:
    """The same rows, counted from the first row of their source."""
    start = first_row(source)
    return replace(rows, start=rows.start - start, stop=rows.stop - start, phase=rows.phase - start)


@dataclass(frozen=True, eq=False)
class Order:
    """A sequence of rows; `len` is the number of rows.

    Attributes:
        rows: the units, in order.
        picked: which of these rows are selected, counted over all units; None means all.
    """

    rows: Runs
    picked: Rows | None = None

    def __len__(self) -> int:
        if self.picked is not None:
            return len(self.picked)
        return self.rows.total

    @property
    def table(self) -> SplitTable:
        """The splits."""
        return self.rows.table

    @property
    def num_units(self) -> int:
        """The number of units; for a fresh order, the number of splits."""
        return len(self.rows.source)

    def every(self, turn: int, turns: int) -> Order:
        """The units `turn`, `turn + turns`, ...: whole splits of a fresh order."""
        return Order(self.rows.select(slice(turn, None, turns)))

    def take(self, first: int, last: int) -> Order:
        """The rows `[first, last)` of this sequence."""
        self._need_counts()
        first, last = max(first, 0), min(last, len(self))
        if first == 0 and last == len(self):
            return self
        if self.picked is None or first >= last:
            return Order(self.rows.take(first, last))
        picked = self.picked.slice(first, last)
        at = picked.start
        return Order(
            self.rows.take(at, picked.stop), replace(picked, start=0, stop=picked.stop - at, phase=picked.phase - at)
        )

    def part(self, number: int, parts: int) -> Order:
        """One of `parts` parts: rows `[floor(number * N / parts), floor((number + 1) * N / parts))`."""
        n = len(self)
        return self.take(number * n // parts, (number + 1) * n // parts)

    def deal(self, turn: int, turns: int, block: int = 1) -> Order:
        """Every `turns`-th block of `block` rows: row g is in it if `(g // block) % turns == turn`."""
        self._need_counts()
        if self.picked is not None:
            raise ValueError("rows that were assigned in turn cannot be assigned again")
        if turns == 1:
            return self
        picked = Rows(0, len(self), turns * block, block, turn * block)
        return replace(self, picked=picked.slice(0, len(picked)))

    def by_turn(self) -> Order:
        """The same units, partition by partition, renumbered."""
        return Order(replace(self.rows.by_turn(), place=np.arange(self.num_units, dtype=np.int64)))

    def units(self, first: int, last: int) -> Order:
        """The units `[first, last)`: whole splits of a fresh order."""
        return Order(self.rows.select(slice(first, last)))

    def shuffled(self, key: int) -> Order:
        """The same units in an order drawn by `key`, renumbered."""
        units = self.rows.select(permutation(self.num_units, key))
        return Order(replace(units, place=np.arange(self.num_units, dtype=np.int64)))

    def in_file_order(self, spans: Sequence[tuple[int, int]]) -> list[Order]:
        """The rows of each span `[first, last)`, counted in file order; each keeps its place in the epoch's order."""
        turns = self._file_order()
        ends = self.rows.rows[turns]
        np.cumsum(ends, out=ends)
        runs = []
        for first, last in spans:
            if first < last:
                low, high = np.searchsorted(ends, first, side="right"), np.searchsorted(ends, last, side="left")
                begin = int(ends[low - 1]) if low else 0
                runs.append(Order(self.rows.select(turns[low : high + 1]).take(first - begin, last - begin)))
        return runs

    def _file_order(self) -> I64:
        """The units sorted by split and first row."""
        source = self.rows.source
        place_of = np.full(len(self.table.counted), -1)
        place_of[source] = np.arange(len(source))
        once = place_of[place_of >= 0]  # several times as fast as sorting
        return once if len(once) == len(source) else np.lexsort((self.rows.first, source))

    def without(self, run: Order) -> Order:
        """The rows that are not in `run`, which holds consecutive rows of this sequence in file order."""
        if self.picked is not None:
            raise ValueError("no rows can be left out of those assigned in turn: give the policy deals_kept=True")
        if not (self.rows.contiguous and run.rows.contiguous):
            return self._without_patterns(run.rows)
        units, (begin, end) = self.rows, run.rows.source[[0, -1]]
        near = (units.source >= begin) & (units.source <= end)
        if not near.any():
            return self
        some = units.select(near)
        before, after = _reach(some, begin, run.rows.first[0]), _reach(some, end, run.rows.last[-1])
        # A unit that contains the whole run leaves two: one before it and one after it.
        first, last = np.stack([some.first, after], axis=1), np.stack([before, some.last], axis=1)
        left = first < last
        counts = np.ones(self.num_units, np.int8)
        counts[near] = left.sum(axis=1)
        which = np.flatnonzero(counts)
        kept, cut = units.select(np.repeat(which, counts[which])), np.repeat(near, counts)
        firsts, lasts = kept.first.copy(), kept.last.copy()
        firsts[cut], lasts[cut] = first[left], last[left]
        return Order(kept.between(firsts, lasts))

    def runs(self, first: int = 0, last: int | None = None) -> Runs:
        """The rows `[first, last)` of this sequence (all by default), as runs that become pieces."""
        if last is not None:
            return self.take(first, last).runs()
        if self.picked is None:
            return self.rows
        if not self.rows.contiguous:
            return self._picked_of_patterns(self.picked)
        picked = self.picked
        # In chunks: the numbers in between take several times the memory of the units.
        chunks = range(0, self.num_units, _CHUNK)
        touched = np.concatenate([constant(0, 0), *(at + self._touched(picked, at, at + _CHUNK) for at in chunks)])
        units = self.rows.select(touched)
        # From rows counted over all units to rows counted within a split.
        shift = units.last - self.rows.ends[touched]
        firsts = np.clip(picked.start + shift, units.first, units.last)
        lasts = np.clip(picked.stop + shift, units.first, units.last)
        step, block = constant(picked.step, len(shift)), constant(picked.block, len(shift))
        return replace(units, first=firsts, last=lasts, phase=picked.phase + shift, step=step, block=block)

    def _touched(self, picked: Rows, begin: int, end: int) -> I64:
        """The units `[begin, end)` that hold picked rows: ranks that take rows in turn need few of many small units."""
        ends = self.rows.ends[max(begin - 1, 0) : end]
        ends = np.clip(ends if begin else np.append(0, ends), picked.start, picked.stop)
        turn, inside = np.divmod(ends - picked.phase, picked.step)
        return np.flatnonzero(np.diff(turn * picked.block + np.minimum(inside, picked.block)))

    def _picked_of_patterns(self, picked: Rows) -> Runs:
        """The picked rows of units that are themselves patterns: after resuming with another number of ranks."""
        units, rows_of_units = self.rows, []
        for unit, (source, place, count, end) in enumerate(
            zip(*(x.tolist() for x in (units.source, units.place, units.rows, units.ends)), strict=True)
        ):
            begin = end - count
            inside = picked.clip(begin, end)
            inside = replace(inside, start=inside.start - begin, stop=inside.stop - begin, phase=inside.phase - begin)
            rows_of_units += [(source, place, rows) for rows in units.rows_of(unit).at(inside)]
        return Runs.of_rows(units.table, rows_of_units)

    def _without_patterns(self, run: Runs) -> Order:
        """The rows that are not in `run`, if units are patterns: the units of `run` were cut from such units."""
        cut: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number in range(len(run.source)):
            rows = run.rows_of(number)
            cut.setdefault((int(run.source[number]), *pattern(rows)), []).append((rows.start, rows.stop))
        rows_of_units = []
        for number, (source, place) in enumerate(zip(self.rows.source.tolist(), self.rows.place.tolist(), strict=True)):
            rest = [self.rows.rows_of(number)]
            for start, stop in cut.get((source, *pattern(rest[0])), ()):
                rest = [part for rows in rest for part in (rows.clip(rows.start, start), rows.clip(stop, rows.stop))]
            rows_of_units += [(source, place, rows) for rows in rest if len(rows)]
        return Order(Runs.of_rows(self.table, rows_of_units))

    def _need_counts(self) -> None:
        split = self.table.uncounted
        if split is not None:
            raise SHARDS_UNKNOWN.between("sharding", repr(split.file.path))


def concatenated(orders: Sequence[Order]) -> Order:
    """The rows of these orders, one order after another: at least one, all of one table, none made by `deal`."""
    return Order(joined([order.rows for order in orders]))


# Pieces stored in columns: a `Piece` is created only when somebody asks for it.


@dataclass(frozen=True, eq=False, repr=False)
class Pieces(Sequence[Piece]):
    """Pieces in delivery order, up to 56 bytes each, and padding after them.

    A rank that takes single rows in turn reads a piece of nearly every split, and each object takes 600 bytes.

    Attributes:
        runs: the pieces without padding; none of them is empty.
        pads: the padding.
        repeats: whether all rows are repeats.
    """

    runs: Runs
    pads: tuple[Piece, ...] = ()
    repeats: bool = False

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Pieces:
        """These pieces, padding last, in columns."""
        if isinstance(pieces, Pieces):
            return pieces
        real = [piece for piece in pieces if not piece.pad]
        table = SplitTable(Splits.of((), ()), [piece.source for piece in real])
        runs = [
            (number, piece.order, Rows(0, 0) if piece.rows is None else from_first(piece.rows, piece.source))
            for number, piece in enumerate(real)
        ]
        return cls(Runs.of_rows(table, runs).filled(), tuple(pieces[len(real) :]))

    def __len__(self) -> int:
        return len(self.runs.source) + len(self.pads)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self.runs.pieces():
            yield replace(piece, pad=True) if self.repeats else piece
        yield from self.pads

    @overload
    def __getitem__(self, index: int) -> Piece: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Piece, ...]: ...

    def __getitem__(self, index: int | slice) -> Piece | tuple[Piece, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self):,} pieces>"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)  # without the columns, which refer to all splits

    @property
    def rows(self) -> int:
        """The number of rows, padding included; those known only after reading count as 0."""
        return self.runs.total + sum(map(len, self.pads))

    @property
    def real(self) -> Pieces:
        """The pieces that are not repeats."""
        return Pieces(self.runs.select(slice(0, 0)) if self.repeats else self.runs)

    @property
    def without_windows(self) -> bool:
        """Whether all pieces without padding are known to be of splits of the plan."""
        return not (self.runs.source >= len(self.runs.table.splits)).any()

    def first(self, rows: int) -> Pieces:
        """The first rows, without padding."""
        return Pieces(self.runs.take(0, min(rows, self.runs.total)))


def real_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces that are not padding."""
    return pieces.real if isinstance(pieces, Pieces) else [piece for piece in pieces if not piece.pad]


def splits_read(shards: Sequence[Sequence[Piece]]) -> I64:
    """The numbers of the splits that hold rows of these shards, or belong to their windows, shape [any], each once."""
    return distinct(np.concatenate([np.zeros(0, np.int64), *map(_splits_of, shards)]))


def _splits_of(pieces: Sequence[Piece]) -> I64:
    if isinstance(pieces, Pieces) and pieces.without_windows:
        return np.append(pieces.runs.source, _splits_of(pieces.pads))
    numbers = split_numbers(pieces)
    return np.fromiter(numbers, np.int64, len(numbers))
