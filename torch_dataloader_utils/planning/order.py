"""The ordered rows of an epoch, stored in columns: what policies divide.

An `Order` is a sequence of rows: *units* (runs of rows of one split) one after another, optionally restricted to every
n-th block. Its methods return new orders; they use numpy, and their time depends on the number of units, never of rows.
`len` takes no time, so that the shares of all ranks can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CountsRequiredError
from torch_dataloader_utils.model import Rows, Split, Window
from torch_dataloader_utils.planning.merging import pattern
from torch_dataloader_utils.planning.runs import I64, Runs, joined
from torch_dataloader_utils.seeding import permutation


@dataclass(frozen=True, eq=False)
class SplitTable:
    """The splits that the numbers of an `Order` refer to.

    Attributes:
        splits: all splits in file order.
        begun: the sources after the splits: those that earlier phases began, and rests of splits without row counts.
    """

    splits: Sequence[Split]
    begun: Sequence[Split | Window] = ()

    @cached_property
    def sources(self) -> Sequence[Split | Window]:
        """All sources, by number."""
        return [*self.splits, *self.begun]

    @cached_property
    def uncounted(self) -> Split | None:
        """The first split whose row count is known only after reading; None if all are known before."""
        return next((split for split in self.splits if split.row_range is None), None)

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Whether the number of plan rows of each source is known, shape [sources]."""
        if self.uncounted is None:
            return np.ones(len(self.sources), dtype=np.bool_)
        return np.array([source.row_count is not None for source in self.sources], dtype=np.bool_)

    @cached_property
    def lengths(self) -> I64:
        """The number of plan rows of each source (0 if unknown), shape [sources]."""
        return np.array([source.row_count or 0 for source in self.sources], dtype=np.int64)

    @cached_property
    def sizes(self) -> I64:
        """Estimated decoded bytes of each source, shape [sources]."""
        return np.array([source.size_bytes for source in self.sources], dtype=np.int64)

    @cached_property
    def starts(self) -> I64:
        """First plan row of each source, shape [sources]."""
        return np.array([first_row(source) for source in self.sources], dtype=np.int64)

    def order(self, key: int | None, first: int = 0, last: int | None = None) -> Order:
        """The rows of the splits `[first, last)`: permuted by `key`, or in file order if it is None."""
        n = (len(self.splits) if last is None else last) - first
        places = np.arange(n, dtype=np.int64)
        source = first + (places if key is None else permutation(n, key))
        return Order(Runs.contiguous_runs(self, source, places, np.zeros(n, dtype=np.int64), self.lengths[source]))


def first_row(source: Split | Window) -> int:
    """The plan row at which counting begins for the rows of a source."""
    return source.row_range.start if isinstance(source, Split) and source.row_range is not None else 0


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
        return int(self.rows.ends[-1]) if self.num_units else 0

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

    def units(self, first: int, last: int) -> Order:
        """The units `[first, last)`: whole splits of a fresh order."""
        return Order(self.rows.select(slice(first, last)))

    def shuffled(self, key: int) -> Order:
        """The same units in an order drawn by `key`, renumbered."""
        units = self.rows.select(permutation(self.num_units, key))
        return Order(replace(units, place=np.arange(self.num_units, dtype=np.int64)))

    def in_file_order(self) -> Order:
        """The same rows in file order; each keeps its place in the epoch's order."""
        return Order(self.rows.select(np.lexsort((self.rows.first, self.rows.source))))

    def without(self, run: Order) -> Order:
        """The rows that are not in `run`, which holds consecutive rows of this sequence in file order."""
        if self.picked is not None:
            raise ValueError("no rows can be left out of those assigned in turn: give the policy deals_kept=True")
        if not (self.rows.contiguous and run.rows.contiguous):
            return self._without_patterns(run.rows)
        units = self.rows
        before = self._reach(int(run.rows.source[0]), int(run.rows.first[0]))
        after = self._reach(int(run.rows.source[-1]), int(run.rows.last[-1]))
        # A unit that contains the whole run leaves two: one before it and one after it.
        twice = units.select(np.repeat(np.arange(self.num_units), 2))
        first = np.stack([units.first, after], axis=1).ravel()
        last = np.stack([before, units.last], axis=1).ravel()
        return Order(replace(twice, first=first, last=last).select(first < last))

    def runs(self, first: int = 0, last: int | None = None) -> Runs:
        """The rows `[first, last)` of this sequence (all by default), as runs that become pieces."""
        if last is not None:
            return self.take(first, last).runs()
        if self.picked is None:
            return self.rows
        if not self.rows.contiguous:
            return self._picked_of_patterns(self.picked)
        units, picked = self.rows, self.picked
        # From rows counted over all units to rows counted within a split.
        shift = units.last - units.ends
        bounds = np.clip([picked.start + shift, picked.stop + shift], units.first, units.last)
        step, block = (np.full_like(shift, value) for value in (picked.step, picked.block))
        return replace(units, first=bounds[0], last=bounds[1], phase=picked.phase + shift, step=step, block=block)

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

    def _reach(self, source: int, row: int) -> I64:
        """How far each unit lies before that row in file order, within `[first, last]`, shape [units]."""
        units = self.rows
        inside = np.clip(row, units.first, units.last)
        return np.where(units.source < source, units.last, np.where(units.source > source, units.first, inside))

    def _need_counts(self) -> None:
        split = self.table.uncounted
        if split is not None:
            raise CountsRequiredError(
                f"The row count of {split.file.path!r} is unknown, but this sharding cuts rows by number: use "
                "count_rows=True, or sharding='interleave', which assigns whole splits."
            )


def concatenated(orders: Sequence[Order]) -> Order:
    """The rows of these orders, one order after another: at least one, all of one table, none made by `deal`."""
    return Order(joined([order.rows for order in orders]))
