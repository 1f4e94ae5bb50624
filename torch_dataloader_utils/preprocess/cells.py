"""Values that were counted by cells, as they are read: order statistics, quantiles, and where these are in doubt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.kernels.grid import F64, Cells, ordered, values_of


class CountedCells:
    """Cells of values, ascending; of each, its least and its greatest value and their number are known."""

    def cells(self) -> Cells:
        """The cells, which no one writes to."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many values were counted."""
        return int(self.cells().counts.sum())

    @property
    def exact(self) -> bool:
        """Whether each cell is one value, so that all values are known."""
        cells = self.cells()
        return bool(np.array_equal(cells.least, cells.greatest))

    def pairs(self) -> tuple[F64, npt.NDArray[np.int64]]:
        """The distinct values, float64 [n], ascending, and how often each was counted, int64 [n].

        Raises:
            ValueError: they are not exact.
        """
        if not self.exact:
            raise ValueError("the grid is not exact: it does not know the values between the ends of its cells")
        cells = self.cells()
        return values_of(cells.least), cells.counts.astype(np.int64)

    def most_frequent(self) -> float | None:
        """The value counted most often, of several the least; None if they are not exact, or there is none."""
        cells = self.cells()
        if not len(cells.least) or not self.exact:
            return None
        return float(values_of(cells.least)[cells.counts.argmax()])

    def known(self) -> F64:
        """Values that were counted, ascending: all of them if they are exact, else those at the ends of cells."""
        cells = self.cells()
        return np.unique(np.concatenate([values_of(cells.least), values_of(cells.greatest)]))

    def order_statistics(self, places: Sequence[int]) -> list[float]:
        """The values at these places, from 0, of all in ascending order; see `quantiles` for those inside of cells."""
        return self._at(np.array(places, np.int64))[0]

    def in_doubt(self, places: Sequence[int]) -> npt.NDArray[np.intp]:
        """The numbers of the cells inside of which the values at these places lie, ascending, each once."""
        _, cells, doubtful = self._at(np.array(places, np.int64))
        return np.unique(cells[doubtful])

    def _at(self, places: npt.NDArray[np.int64]) -> tuple[list[float], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """The values at places, the numbers of their cells, and which lie between the ends of a cell."""
        cells = self.cells()
        ends = np.cumsum(cells.counts, dtype=np.int64)
        at = np.searchsorted(ends, places, side="right")
        rows = cells.counts[at].astype(np.int64)
        least, greatest = values_of(cells.least[at]), values_of(cells.greatest[at])
        within = places - (ends[at] - rows)
        doubtful = (least != greatest) & (within > 0) & (within < rows - 1)
        values = np.where(within == rows - 1, greatest, least).tolist()
        for i in np.flatnonzero(doubtful).tolist():
            values[i] = between(float(least[i]), float(greatest[i]), int(within[i]) / int(rows[i] - 1))
        return values, at, doubtful

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The quantiles at these shares, in `[0, 1]`: where they are exact, `np.quantile`'s with "linear".

        Elsewhere the values of a cell are taken to lie evenly from its least to its greatest. Values so far apart that
        numpy's difference of them is infinite have a finite quantile.

        Raises:
            ValueError: nothing was counted, or a share is outside of `[0, 1]`.
        """
        ranks = self._ranks(shares)
        found = self.order_statistics([place for first, second, _ in ranks for place in (first, second)])
        return [between(found[2 * i], found[2 * i + 1], part) for i, (_, _, part) in enumerate(ranks)]

    def errors(self, shares: Sequence[float]) -> list[float]:
        """How far the rank of each quantile may be off, as a share of all values.

        0.0 where the quantile is exact: between values that are alone in their cell, or its least or greatest. Else m/n
        for a cell with m of n values.

        Raises:
            ValueError: nothing was counted, or a share is outside of `[0, 1]`.
        """
        return [self.error(self.in_doubt([first, second])) for first, second, _ in self._ranks(shares)]

    def error(self, doubtful: npt.NDArray[np.intp]) -> float:
        """How far ranks within these cells may be off, as a share of all values; 0.0 if there is none."""
        return int(self.cells().counts[doubtful].max(initial=0)) / max(self.count, 1)

    def _ranks(self, shares: Sequence[float]) -> list[tuple[int, int, float]]:
        """The places on both sides of each quantile, and where it lies from one to the other, in `[0, 1)`."""
        count = self.count
        if not count:
            raise ValueError("there are no quantiles of no values")
        return [rank_of(share, count) for share in shares]


class RefinedCells(CountedCells):
    """Cells of a grid, of which some were parted into lesser ones.

    Args:
        cells: ascending and disjoint, of any widths.
    """

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    @classmethod
    def of(cls, whole: CountedCells, ranges: U64, parts: CountedCells) -> RefinedCells:
        """Cells of which those within ranges are replaced.

        Args:
            whole: all cells.
            ranges: as of `kernels.grid.picked`; each cell lies within one of them, or outside of all.
            parts: all values in these ranges, and no others.

        Raises:
            ValueError: other values were counted.
        """
        cells, finer = whole.cells(), parts.cells()
        at = np.maximum(np.searchsorted(ranges[:, 0], cells.least, side="right") - 1, 0)
        inside = (ranges[at, 0] <= cells.least) & (cells.greatest <= ranges[at, 1])
        if cells.counts[inside].sum() != finer.counts.sum():
            raise ValueError("the parts of cells have other values than these")
        columns = [np.concatenate([own[~inside], more]) for own, more in zip(cells[1:], finer[1:], strict=True)]
        order = np.argsort(columns[0])
        return cls(Cells(cells.shift, *(column[order] for column in columns)))

    def cells(self) -> Cells:
        """The cells."""
        return self._cells

    def add_repeated(self, value: float, times: int) -> None:
        """Count a finite value once or more: in the cell in which it lies, or one of its own."""
        shift, least, greatest, counts = self._cells
        bits = ordered(np.array([value], np.float64))
        at = int(np.searchsorted(greatest, bits[0]))
        if at < len(least) and least[at] <= bits[0]:
            counts = counts.copy()
            counts[at] += np.uint64(times)
        else:
            least, greatest = np.insert(least, at, bits), np.insert(greatest, at, bits)
            counts = np.insert(counts, at, np.uint64(times))
        self._cells = Cells(shift, least, greatest, counts)


def rank_of(share: float, count: int) -> tuple[int, int, float]:
    """The places on both sides of the quantile of so many values, and where it lies between them, in `[0, 1)`.

    Raises:
        ValueError: the share is outside of `[0, 1]`.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a quantile's share is from 0 to 1, not {share!r}")
    at = (count - 1) * float(share)
    first = min(int(at), count - 1)
    return first, first + 1 if at > first else first, at - first


def between(low: float, high: float, part: float) -> float:
    """The value that lies a part of the way from one value to another, rounded as numpy's quantiles are."""
    gap = high - low
    if math.isinf(gap):
        return low * (1 - part) + high * part
    return high - gap * (1 - part) if part >= 0.5 else low + gap * part
