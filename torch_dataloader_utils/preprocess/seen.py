"""What is known of the numbers at one place of a chain: counted there, or derived from what was counted before it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.kernels.grid import values_of
from torch_dataloader_utils.preprocess.cells import CountedCells, RefinedCells, between, rank_of
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.moments import Moments
from torch_dataloader_utils.preprocess.steps import F64
from torch_dataloader_utils.preprocess.transforms import ColumnTransform, Fitted, Impute, NumberTransform


class Uncounted(Exception):
    """What is asked for was not counted, and does not follow from what was: it takes another scan."""


@dataclass
class NumberStatistics:
    """Statistics of numbers; those of several parts of the data merge to those of all of it, in any order.

    Attributes:
        sums: of the finite ones; None if they were not counted.
        grid: of the finite ones, or what was made of one by another scan; None if they were not counted.
        missing: how many are NaN.
        below: how many are -infinity.
        above: how many are infinity.
        finite: how many are neither.
        through: monotone functions that were applied since the grid was counted; each overwrites an array.
    """

    sums: Moments | None
    grid: Grid | RefinedCells | None
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
        if isinstance(self.grid, Grid):
            self.grid.add(x)

    def merge(self, other: NumberStatistics) -> None:
        """Count what the other has counted, too."""
        self.missing += other.missing
        self.below += other.below
        self.above += other.above
        self.finite += other.finite
        if self.sums is not None and other.sums is not None:
            self.sums.merge(other.sums)
        if isinstance(self.grid, Grid) and isinstance(other.grid, Grid):
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
        ranks, first = self._ranks(shares)
        places = np.array([place - first for one, two, _ in ranks for place in (one, two)])
        own = np.clip(places, 0, self.finite - 1).tolist()
        # Functions keep the order of what was counted: they make the quantiles' neighbours of those before them.
        made = np.array(self.grid.order_statistics(own) if self.finite else [0.0] * len(own))
        made[places < 0], made[places >= self.finite] = -np.inf, np.inf
        for function in self.through:
            function(made)
        pairs = made.reshape(-1, 2).tolist()
        return [between(low, high, part) for (low, high), (_, _, part) in zip(pairs, ranks, strict=True)]

    def _ranks(self, shares: Sequence[float]) -> tuple[list[tuple[int, int, float]], int]:
        """The places of quantiles among all finite numbers, and that of the first one that the grid holds."""
        low, _ = self._ends()
        return [rank_of(share, self.count) for share in shares], self.below if math.isfinite(low) else 0

    def in_doubt(self, shares: Sequence[float], buckets: bool = False) -> npt.NDArray[np.intp]:
        """The numbers of the grid's cells inside of which quantiles lie.

        Args:
            shares: of the quantiles.
            buckets: whether they are those of `bounds`, which look for the next number above the least, too.
        """
        if self.grid is None or not self.count:
            return np.empty(0, np.intp)
        ranks, first = self._ranks(shares)
        places = [place - first for one, two, _ in ranks for place in (one, two)]
        found = self.grid.in_doubt([place for place in places if 0 <= place < self.finite])
        return np.union1d(found, self._around_least(shares)) if buckets else found

    def _around_least(self, shares: Sequence[float]) -> npt.NDArray[np.intp]:
        """The number of the cell in which the numbers that are the least ones end, if a quantile is one of these."""
        assert self.grid is not None
        least, greatest = (values_of(end) for end in self.grid.cells()[1:3])
        for function in self.through:
            function(least)
            function(greatest)
        lowest = self._known()[0]
        straddling = (least == lowest) & (greatest > lowest) & (self.grid.cells().counts > 2)
        return np.flatnonzero(straddling & (min(self.quantiles(shares)) <= lowest))

    def error(self, doubtful: npt.NDArray[np.intp]) -> float:
        """How far ranks of quantiles within these cells may be off, as a share of all numbers; 0.0 if there is none."""
        return 0.0 if self.grid is None else self.grid.error(doubtful)

    def ranges(self, doubtful: npt.NDArray[np.intp]) -> U64:
        """The ordered bits of the ends of these cells, [cells, 2]."""
        if self.grid is None:
            return np.empty((0, 2), np.uint64)
        cells = self.grid.cells()
        return np.stack([cells.least[doubtful], cells.greatest[doubtful]], axis=1)

    def refined(self, ranges: U64, parts: CountedCells) -> NumberStatistics:
        """What is known after another scan has counted the numbers within ranges by lesser cells.

        Raises:
            ValueError: that scan has counted others.
        """
        assert self.grid is not None
        return replace(self, grid=RefinedCells.of(self.grid, ranges, parts))

    def bounds(self, shares: Sequence[float]) -> list[float]:
        """The quantiles at these shares, ascending, but for those that cut off a bucket without a number."""
        known = self._known()
        made: list[float] = []
        for bound in self.quantiles(shares):
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
        if isinstance(self.grid, Grid) and self.grid.exact and not self.through:
            return self._recounted(function, self.grid)
        if self.grid is None or not monotone or self._overflows(function, self.grid):
            return NumberStatistics(None, None, self.missing, self.below, self.above, self.finite)
        return NumberStatistics(
            None, self.grid, self.missing, self.below, self.above, self.finite, (*self.through, function)
        )

    def _overflows(self, function: Callable[[F64], None], grid: CountedCells) -> bool:
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
        sums, counted = Moments(), Grid()
        counted.add_counted(made[finite] + 0.0, times[finite])
        for value, number in zip(made[finite].tolist(), times[finite].tolist(), strict=True):
            sums.add_repeated(value, number)
        missing = self.missing + int(times[np.isnan(made)].sum())
        below, above = int(times[made == -np.inf].sum()), int(times[made == np.inf].sum())
        return NumberStatistics(sums, counted, missing, below, above, int(times[finite].sum()))


def after(numbers: NumberStatistics, link: ColumnTransform, fitted: Fitted) -> NumberStatistics:
    """What is known of the numbers that a link makes."""
    if isinstance(link, Impute):
        try:
            return numbers.imputed(link.number_of(fitted))
        except Uncounted:  # there are numbers, so what follows does not learn that there are none
            finite = numbers.finite + numbers.missing
            return NumberStatistics(None, None, 0, numbers.below, numbers.above, finite, numbers.through)
    if isinstance(link, NumberTransform):
        return numbers.mapped(_Applied(link, fitted), link.monotone)
    return numbers


class _Applied:
    """A link with what it learned, as a function that overwrites numbers."""

    def __init__(self, link: NumberTransform, fitted: Fitted) -> None:
        self._link, self._fitted = link, fitted

    def __call__(self, x: F64) -> None:
        with np.errstate(all="ignore"):
            self._link.apply(x, self._fitted)
