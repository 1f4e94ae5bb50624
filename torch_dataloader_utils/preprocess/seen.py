"""What is known of the numbers at one place of a chain: counted there, or derived from what was counted before it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torch_dataloader_utils.preprocess.grid import Grid, between
from torch_dataloader_utils.preprocess.moments import Moments

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.steps import F64


class Uncounted(Exception):
    """What is asked for was not counted, and does not follow from what was: it takes another scan."""


@dataclass
class NumberStatistics:
    """Statistics of numbers; those of several parts of the data merge to those of all of it, in any order.

    Attributes:
        sums: of the finite ones; None if they were not counted.
        grid: of the finite ones; None if they were not counted.
        missing: how many are NaN.
        below: how many are -infinity.
        above: how many are infinity.
        finite: how many are neither.
        through: monotone functions that were applied since the grid was counted; each overwrites an array.
    """

    sums: Moments | None
    grid: Grid | None
    missing: int = 0
    below: int = 0
    above: int = 0
    finite: int = 0
    through: tuple[Callable[[F64], None], ...] = field(default=(), repr=False)

    @classmethod
    def none(cls, needs: frozenset[str]) -> NumberStatistics:
        """Of no numbers yet, with these statistics."""
        return cls(Moments() if "moments" in needs else None, Grid() if "grid" in needs else None)

    def add(self, x: F64) -> None:
        """Count numbers, shape [n]."""
        finite = np.isfinite(x)
        count = int(np.count_nonzero(finite))
        if count < len(x):
            self.missing += int(np.count_nonzero(np.isnan(x)))
            self.below += int(np.count_nonzero(x == -np.inf))
            self.above += int(np.count_nonzero(x == np.inf))
            x = x[finite]
        self.finite += count
        if self.sums is not None:
            self.sums.add(x)
        if self.grid is not None:
            self.grid.add(x)

    def merge(self, other: NumberStatistics) -> None:
        """Count what the other has counted, too."""
        self.missing += other.missing
        self.below += other.below
        self.above += other.above
        self.finite += other.finite
        if self.sums is not None and other.sums is not None:
            self.sums.merge(other.sums)
        if self.grid is not None and other.grid is not None:
            self.grid.merge(other.grid)

    @property
    def infinite(self) -> int:
        """How many are infinite."""
        return self.below + self.above

    @property
    def count(self) -> int:
        """How many are finite."""
        low, high = self._ends()
        return self.finite + self.below * math.isfinite(low) + self.above * math.isfinite(high)

    def _ends(self) -> tuple[float, float]:
        """What the infinities have become."""
        ends = np.array([-np.inf, np.inf])
        for function in self.through:
            function(ends)
        return float(ends[0]), float(ends[1])

    def moments(self) -> Moments:
        """The sums of the finite numbers.

        Raises:
            Uncounted: see there.
        """
        if self.sums is None:
            raise Uncounted
        return self.sums

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The quantiles of the finite numbers, 0 if there is none.

        Raises:
            Uncounted: see there.
        """
        if self.grid is None:
            raise Uncounted
        if not self.count:
            return [0.0] * len(shares)
        return self._between(shares) if self.through else self.grid.quantiles(shares)

    def _between(self, shares: Sequence[float]) -> list[float]:
        """The quantiles of what functions made of the counted numbers: they keep the order of these."""
        assert self.grid is not None
        low, _ = self._ends()
        first = self.below if np.isfinite(low) else 0  # where the counted ones begin
        count = self.count
        ranks = [share * (count - 1) for share in shares]
        places = [place for rank in ranks for place in (math.floor(rank), min(math.floor(rank) + 1, count - 1))]
        own = [min(max(place - first, 0), self.finite - 1) for place in places]
        made = np.array(self.grid.order_statistics(own) if self.finite else [0.0] * len(own))
        made[[place < first for place in places]] = -np.inf
        made[[place - first >= self.finite for place in places]] = np.inf
        for function in self.through:
            function(made)
        pairs = made.reshape(-1, 2).tolist()
        return [between(a, b, rank - math.floor(rank)) for (a, b), rank in zip(pairs, ranks, strict=True)]

    def bounds(self, buckets: int) -> list[float]:
        """Quantiles that cut the numbers into so many buckets, or fewer, none of them empty."""
        known = self._known()
        made: list[float] = []
        for bound in self.quantiles([i / buckets for i in range(1, buckets)]):
            if bound <= known[0]:  # no value is below it: the next one
                if len(known) == 1:
                    continue
                bound = known[1]
            at = bisect_left(known, made[-1] if made else known[0])
            if at < len(known) and known[at] < bound:  # the bucket that ends here holds a value
                made.append(bound)
        return made

    def _known(self) -> list[float]:
        """Numbers that are known to occur, ascending."""
        if self.grid is None:
            raise Uncounted
        known = np.concatenate([self.grid.known(), [-np.inf] * (self.below > 0), [np.inf] * (self.above > 0)])
        for function in self.through:
            function(known)
        found: list[float] = np.unique(known[np.isfinite(known)]).tolist()
        return found

    def imputed(self, value: float) -> NumberStatistics:
        """With this number in place of the missing ones."""
        sums, grid = deepcopy(self.sums), deepcopy(self.grid)
        if self.missing and self.through:
            raise Uncounted  # where it lies among the counted ones is not known
        if self.missing:
            if sums is not None:
                sums.add_repeated(value, self.missing)
            if grid is not None:
                grid.add_repeated(value, self.missing)
        return NumberStatistics(sums, grid, 0, self.below, self.above, self.finite + self.missing, self.through)

    def mapped(self, function: Callable[[F64], None], monotone: bool) -> NumberStatistics:
        """What a function makes of them: counted again if each value is known, else only what follows."""
        if self.grid is not None and self.grid.exact and not self.through:
            return self._recounted(function, self.grid)
        if self.grid is None or not monotone or self._overflows(function, self.grid):
            return NumberStatistics(None, None, self.missing, self.below, self.above, self.finite)
        return NumberStatistics(
            None, self.grid, self.missing, self.below, self.above, self.finite, (*self.through, function)
        )

    def _overflows(self, function: Callable[[F64], None], grid: Grid) -> bool:
        """Whether finite numbers become infinite, and so are no numbers to learn from any more."""
        ends = grid.known()[[0, -1]] if self.finite else np.empty(0)
        for each in (*self.through, function):
            each(ends)
        return not np.isfinite(ends).all()

    def _recounted(self, function: Callable[[F64], None], grid: Grid) -> NumberStatistics:
        values, counts = grid.pairs()
        ends = np.array([self.below, self.above])
        made = np.concatenate([values, np.array([-np.inf, np.inf])[ends > 0]])
        times = np.concatenate([counts, ends[ends > 0]])
        function(made)
        finite = np.isfinite(made)
        result = NumberStatistics(Moments(), Grid(), self.missing, finite=int(times[finite].sum()))
        result.missing += int(times[np.isnan(made)].sum())
        result.below, result.above = int(times[made == -np.inf].sum()), int(times[made == np.inf].sum())
        assert result.sums is not None
        assert result.grid is not None
        result.grid.add_counted(made[finite] + 0.0, times[finite])
        for value, number in zip(made[finite].tolist(), times[finite].tolist(), strict=True):
            result.sums.add_repeated(value, number)
        return result
