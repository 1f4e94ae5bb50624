"""Runs of rows of one split (all rows, or every n-th block), stored in columns; each becomes a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Piece, Rows
from torch_dataloader_utils.planning.splits import I64

if TYPE_CHECKING:
    from torch_dataloader_utils.planning.order import SplitTable

_CHUNK = 1 << 13  # pieces created at a time: their columns become Python lists


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

    def select(self, which: slice | Sequence[int] | I64 | npt.NDArray[np.bool_]) -> Runs:
        """The runs at these places."""
        chosen = which if isinstance(which, slice) else np.asarray(which) if len(which) else slice(0, 0)
        return Runs(self.table, *(_selected(column, chosen) for column in self._columns()))

    def pieces(self) -> Iterator[Piece]:
        """A piece for each run, in the same order; of a run of `trimmed` with its pattern, if it has one."""
        for at in range(0, len(self.source), _CHUNK):
            yield from self.select(slice(at, at + _CHUNK))._pieces()

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

    def _columns(self) -> tuple[I64, ...]:
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
    return Runs(runs[0].table, *map(np.concatenate, zip(*(some._columns() for some in runs), strict=True)))


def _selected(column: I64, which: slice | I64 | npt.NDArray[np.bool_]) -> I64:
    """The numbers at these places; equal ones stay in the memory of one."""
    if isinstance(which, slice) or not len(column) or column.strides != (0,):
        return column[which]
    return constant(int(column[0]), int(which.sum()) if which.dtype == bool else len(which))


def constant(value: int, n: int) -> I64:
    """`n` equal numbers, read-only, in the memory of one."""
    return np.broadcast_to(np.int64(value), (n,))
