"""The ordered rows of an epoch, in columns: what policies cut and deal.

An `Order` is a sequence of rows: *units* (runs of rows of one split) one after another, optionally of which only every
n-th block is meant. Its methods give other orders and cost numpy time in the number of units, never in rows; how many
rows it has costs nothing, so that all ranks' shares can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CountsRequiredError
from torch_dataloader_utils.model import Rows, Split
from torch_dataloader_utils.planning.runs import I64, Runs
from torch_dataloader_utils.seeding import permutation


@dataclass(frozen=True, eq=False)
class SplitTable:
    """All splits in file order; what the numbers of an `Order` refer to."""

    splits: Sequence[Split]

    @cached_property
    def uncounted(self) -> Split | None:
        """The first split whose row count only reading tells, if there is one."""
        return next((split for split in self.splits if split.row_range is None), None)

    @cached_property
    def lengths(self) -> I64:
        """Plan rows of each split (0 where unknown), shape [splits]."""
        return np.array([split.row_count or 0 for split in self.splits], dtype=np.int64)

    @cached_property
    def sizes(self) -> I64:
        """Estimated decoded bytes of each split, shape [splits]."""
        return np.array([split.size_bytes for split in self.splits], dtype=np.int64)

    @cached_property
    def starts(self) -> I64:
        """First plan row of each split, shape [splits]."""
        return np.array([split.row_range.start if split.row_range else 0 for split in self.splits], dtype=np.int64)

    def order(self, key: int | None, first: int = 0, last: int | None = None) -> Order:
        """The rows of the splits `[first, last)`: permuted by `key`, or in file order without one."""
        n = (len(self.splits) if last is None else last) - first
        places = np.arange(n, dtype=np.int64)
        source = first + (places if key is None else permutation(n, key))
        return Order(self, source, places, np.zeros(n, dtype=np.int64), self.lengths[source])


@dataclass(frozen=True, eq=False)
class Order:
    """A sequence of rows; `len` is their number.

    Attributes:
        table: the splits.
        source: the split of each unit (its place in the table), shape [units].
        place: the place of that split in the epoch's order, shape [units].
        first: the unit's first row, counted within its split, shape [units].
        last: where the unit ends, exclusive, shape [units].
        picked: which rows of the units, counted over all of them, are meant; None means all.
    """

    table: SplitTable
    source: I64
    place: I64
    first: I64
    last: I64
    picked: Rows | None = None

    def __len__(self) -> int:
        if self.picked is not None:
            return len(self.picked)
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def num_units(self) -> int:
        """Runs of rows of one split; for a fresh order, the number of splits."""
        return len(self.source)

    @cached_property
    def ends(self) -> I64:
        """Rows up to the end of each unit, shape [units]."""
        return np.cumsum(self.last - self.first)

    def every(self, turn: int, turns: int) -> Order:
        """The units `turn`, `turn + turns`, ...: whole splits of a fresh order."""
        return self._units(slice(turn, None, turns))

    def take(self, first: int, last: int) -> Order:
        """The rows `[first, last)` of this sequence."""
        self._need_counts()
        first, last = max(first, 0), min(last, len(self))
        if self.picked is None or first >= last:
            return self._trim(first, last)
        rows = self.picked.slice(first, last)
        at = rows.start
        return replace(
            self._trim(at, rows.stop),
            picked=replace(rows, start=0, stop=rows.stop - at, phase=rows.phase - at),
        )

    def part(self, number: int, parts: int) -> Order:
        """One of `parts` parts: rows `[floor(number * N / parts), floor((number + 1) * N / parts))`."""
        n = len(self)
        return self.take(number * n // parts, (number + 1) * n // parts)

    def deal(self, turn: int, turns: int, block: int = 1) -> Order:
        """Every `turns`-th block of `block` rows: row g is in it if `(g // block) % turns == turn`."""
        self._need_counts()
        if self.picked is not None:
            raise ValueError("rows that were dealt cannot be dealt again")
        if turns == 1:
            return self
        picked = Rows(0, len(self), turns * block, block, turn * block)
        return replace(self, picked=picked.slice(0, len(picked)))

    def units(self, first: int, last: int) -> Order:
        """The units `[first, last)`: whole splits of a fresh order."""
        return self._units(slice(first, last))

    def shuffled(self, key: int) -> Order:
        """The same units in an order drawn by `key`, numbered anew."""
        shuffled = self._units(permutation(self.num_units, key))
        return replace(shuffled, place=np.arange(self.num_units, dtype=np.int64))

    def in_file_order(self) -> Order:
        """The same rows in file order; each keeps its place."""
        return self._units(np.lexsort((self.first, self.source)))

    def without(self, run: Order) -> Order:
        """The rows that lie, in file order, before the first or after the last row of `run`."""
        before = self._reach(int(run.source[0]), int(run.first[0]))
        after = self._reach(int(run.source[-1]), int(run.last[-1]))
        # A unit that holds the whole run leaves two: before it and after it.
        twice = self._units(np.repeat(np.arange(self.num_units), 2))
        first = np.stack([self.first, after], axis=1).ravel()
        last = np.stack([before, self.last], axis=1).ravel()
        return replace(twice, first=first, last=last)._units(first < last)

    def runs(self, first: int = 0, last: int | None = None) -> Runs:
        """The rows `[first, last)` of this sequence (by default all), as they become pieces."""
        if last is not None:
            return self.take(first, last).runs()
        if self.picked is None:
            nothing, one = np.zeros_like(self.first), np.ones_like(self.first)
            return Runs(self.table, self.source, self.place, self.first, self.last, nothing, one, one)
        picked = self.picked
        # From rows counted over all units to rows of a split.
        shift = self.last - self.ends
        bounds = np.clip([picked.start + shift, picked.stop + shift], self.first, self.last)
        step, block = (np.full_like(shift, value) for value in (picked.step, picked.block))
        return Runs(self.table, self.source, self.place, bounds[0], bounds[1], picked.phase + shift, step, block)

    def _units(self, which: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Order:
        return Order(self.table, self.source[which], self.place[which], self.first[which], self.last[which])

    def _trim(self, start: int, stop: int) -> Order:
        """The rows `[start, stop)` counted over all units."""
        if start >= stop:
            return self._units(slice(0, 0))
        low = int(np.searchsorted(self.ends, start, side="right"))
        high = int(np.searchsorted(self.ends, stop, side="left")) + 1
        trimmed = self._units(slice(low, high))
        first, last = trimmed.first.copy(), trimmed.last.copy()
        last[-1] -= self.ends[high - 1] - stop
        first[0] += start - (self.ends[low] - (self.last[low] - self.first[low]))
        return replace(trimmed, first=first, last=last)

    def _reach(self, source: int, row: int) -> I64:
        """Up to where each unit lies before that row in file order, within `[first, last]`, shape [units]."""
        inside = np.clip(row, self.first, self.last)
        return np.where(self.source < source, self.last, np.where(self.source > source, self.first, inside))

    def _need_counts(self) -> None:
        split = self.table.uncounted
        if split is not None:
            raise CountsRequiredError(
                f"The row count of {split.file.path!r} is not known, and this sharding cuts rows by number: "
                "give count_rows=True, or sharding='interleave', which deals whole splits."
            )


def concatenated(orders: Sequence[Order]) -> Order:
    """The rows of these orders (at least one; of one table, none dealt), one order after another."""
    return Order(
        orders[0].table,
        source=np.concatenate([order.source for order in orders]),
        place=np.concatenate([order.place for order in orders]),
        first=np.concatenate([order.first for order in orders]),
        last=np.concatenate([order.last for order in orders]),
    )
