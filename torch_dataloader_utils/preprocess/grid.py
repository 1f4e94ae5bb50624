"""Quantiles of the values of a column, which are a function of the multiset of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.grid import F64, CellCounter, Cells, SortedCells, cell_counter, ordered, values_of


class Grid:
    """Counts finite values by cells, whose number never exceeds `limit`; exact while the values are as few.

    The cell of a value is its ordered bits without the lower ones: the least number of them for which all values seen
    lie in at most `limit` cells. Each cell has a count, a least and a greatest value. So any order, cut and merge of
    the same values gives equal grids. Threads may add to one grid, which pickles; 3 MiB hold 65,536 cells.
    """

    limit: ClassVar[int] = 65_536

    def __init__(self) -> None:
        self._lock = Lock()
        self._counter: CellCounter = cell_counter(self.limit)

    def _cells(self) -> Cells:
        with self._lock:
            return self._counter.cells()

    def add(self, values: F64) -> None:
        """Count values.

        Args:
            values: finite float64, of any shape; -0.0 counts as 0.0.

        Raises:
            ValueError: there are NaN or infinities.
        """
        wanted = np.require(values, np.float64, ["C", "A"]).reshape(-1)
        if not np.isfinite(wanted).all():
            raise ValueError("a grid counts finite values; leave out NaN and infinities before")
        with self._lock:
            self._counter.add(wanted)

    def add_repeated(self, value: float, times: int) -> None:
        """Count a value as often as this.

        Args:
            value: finite.
            times: 0 or more.

        Raises:
            ValueError: the value is not finite, or `times` is negative.
        """
        if not math.isfinite(value) or times < 0:
            raise ValueError(f"a grid counts finite values, 0 or more times; got {value!r}, {times} times")
        if times:
            bits = ordered(np.array([value], np.float64))
            with self._lock:
                self._counter.merge(Cells(0, bits, bits, np.array([times], np.uint64)))

    def add_counted(self, values: F64, times: npt.NDArray[np.int64]) -> None:
        """Count each of these values as often as it says, both of shape [n]; values may repeat.

        Raises:
            ValueError: a value is not finite, or a number is below 1.
        """
        if not np.isfinite(values).all() or (times < 1).any():
            raise ValueError("a grid counts finite values, each 1 or more times")
        if not len(values):
            return
        bits, places = np.unique(ordered(np.ascontiguousarray(values, np.float64)), return_inverse=True)
        sums = np.zeros(len(bits), np.uint64)
        np.add.at(sums, places, times.astype(np.uint64))
        with self._lock:
            self._counter.merge(Cells(0, bits, bits, sums))

    def merge(self, other: Grid) -> None:
        """Count the values that another grid has counted."""
        cells = other._cells()
        with self._lock:
            self._counter.merge(cells)

    def compact(self) -> None:
        """Hold the cells alone, in half the memory; to count more values is slower then."""
        cells = self._cells()
        with self._lock:
            self._counter = SortedCells(self.limit)
            self._counter.merge(cells)

    @property
    def count(self) -> int:
        """How many values were counted."""
        return int(self._cells().counts.sum())

    @property
    def exact(self) -> bool:
        """Whether each cell is one value, so that the grid knows all values."""
        return _is_exact(self._cells())

    def pairs(self) -> tuple[F64, npt.NDArray[np.int64]]:
        """The distinct values, float64 [n], ascending, and how often each was counted, int64 [n].

        Raises:
            ValueError: the grid is not exact.
        """
        cells = self._cells()
        if not _is_exact(cells):
            raise ValueError("the grid is not exact: it does not know the values between the ends of its cells")
        return values_of(cells.least), cells.counts.astype(np.int64)

    def most_frequent(self) -> float | None:
        """The value counted most often, of several the least; None if the grid is not exact, or empty."""
        cells = self._cells()
        if not len(cells.least) or not _is_exact(cells):
            return None
        return float(values_of(cells.least)[cells.counts.argmax()])

    def known(self) -> F64:
        """Values that were counted, ascending: all of them if the grid is exact, else those at the ends of cells."""
        cells = self._cells()
        return np.unique(np.concatenate([values_of(cells.least), values_of(cells.greatest)]))

    def order_statistics(self, places: Sequence[int]) -> list[float]:
        """The values at these places, from 0, of all in ascending order; see `quantiles` for those inside of cells."""
        statistics = _OrderStatistics(self._cells())
        return [statistics[place].value for place in places]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The quantiles at these shares, in `[0, 1]`: where the grid is exact, `np.quantile`'s with "linear".

        Elsewhere the values of a cell are taken to lie evenly from its least to its greatest. Values so far apart that
        numpy's difference of them is infinite have a finite quantile.

        Raises:
            ValueError: nothing was counted, or a share is outside of `[0, 1]`.
        """
        return [between(one.value, two.value, part) for one, two, part in _neighbours(self._cells(), shares)]

    def errors(self, shares: Sequence[float]) -> list[float]:
        """How far the rank of each quantile may be off, as a share of all values.

        0.0 where the quantile is exact: between values that are alone in their cell, or its least or greatest. Else m/n
        for a cell with m of n values.

        Raises:
            ValueError: nothing was counted, or a share is outside of `[0, 1]`.
        """
        return [max(one.error, two.error) for one, two, _ in _neighbours(self._cells(), shares)]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state: equal grids have equal arrays.

        Returns:
            `shift`, uint8 [], the bits that a cell spans; `least` and `greatest`, float64 [n], the ends of each cell,
            ascending; `counts`, int64 [n].
        """
        shift, least, greatest, counts = self._cells()
        return {
            "shift": np.array(shift, np.uint8),
            "least": values_of(least),
            "greatest": values_of(greatest),
            "counts": counts.astype(np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Grid:
        """The grid with this state.

        Raises:
            ValueError: `to_arrays` never returns such arrays.
        """
        grid = cls()
        grid._counter.merge(_checked(arrays, cls.limit))
        return grid

    def __reduce__(self) -> tuple[Callable[..., Grid], tuple[Any, ...]]:
        return type(self).from_arrays, (self.to_arrays(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        one, two = self._cells(), other._cells()
        return one.shift == two.shift and all(map(np.array_equal, one[1:], two[1:]))

    __hash__ = None  # type: ignore[assignment]  # it changes


def _is_exact(cells: Cells) -> bool:
    return bool(np.array_equal(cells.least, cells.greatest))


class _OrderStatistic(NamedTuple):
    value: float
    error: float  # how far its rank may be off, as a share of all values


class _OrderStatistics:
    """The values of cells in order, by place."""

    def __init__(self, cells: Cells) -> None:
        self._least, self._greatest = values_of(cells.least).tolist(), values_of(cells.greatest).tolist()
        self._rows = cells.counts.tolist()
        self._ends = np.cumsum(cells.counts, dtype=np.int64)
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, i: int) -> _OrderStatistic:
        cell = int(np.searchsorted(self._ends, i, side="right"))
        rows, least, greatest = self._rows[cell], self._least[cell], self._greatest[cell]
        place = i - (int(self._ends[cell]) - rows)
        if least == greatest or place == 0:
            return _OrderStatistic(least, 0.0)
        if place == rows - 1:
            return _OrderStatistic(greatest, 0.0)
        return _OrderStatistic(between(least, greatest, place / (rows - 1)), rows / self.count)


def _neighbours(cells: Cells, shares: Sequence[float]) -> list[tuple[_OrderStatistic, _OrderStatistic, float]]:
    """The order statistics on both sides of each quantile, and where it lies from one to the other, in `[0, 1)`."""
    if not len(cells.least):
        raise ValueError("there are no quantiles of no values")
    statistics = _OrderStatistics(cells)
    found = []
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile's share is from 0 to 1, not {share!r}")
        at = (statistics.count - 1) * float(share)
        first = min(int(at), statistics.count - 1)
        one = statistics[first]
        found.append((one, statistics[first + 1] if at > first else one, at - first))
    return found


def between(low: float, high: float, part: float) -> float:
    """The value that lies a part of the way from one value to another, rounded as numpy's quantiles are."""
    gap = high - low
    if math.isinf(gap):
        return low * (1 - part) + high * part
    return high - gap * (1 - part) if part >= 0.5 else low + gap * part


# The dtype and the number of dimensions of each array.
_TYPES = {"shift": ("uint8", 0), "least": ("float64", 1), "greatest": ("float64", 1), "counts": ("int64", 1)}


def _checked(arrays: Mapping[str, npt.NDArray[Any]], limit: int) -> Cells:
    """The cells that `Grid.to_arrays` returned as these arrays."""
    if problem := _wrong_types(arrays) or _wrong_values(arrays, limit):
        raise ValueError(f"these are not the arrays of a grid: {problem}")
    shift, least, greatest, counts = (arrays[name] for name in _TYPES)
    return Cells(int(shift), ordered(least), ordered(greatest), counts.astype(np.uint64))


def _wrong_types(arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    if set(arrays) != set(_TYPES):
        return f"they are {sorted(_TYPES)}, not {sorted(arrays)}"
    for name, wanted in _TYPES.items():
        dtype, dimensions = str(arrays[name].dtype), arrays[name].ndim
        if (dtype, dimensions) != wanted:
            return f"{name!r} is {wanted[0]} of {wanted[1]} dimensions, not {dtype} of {dimensions}"
    lengths = {len(arrays[name]) for name in ("least", "greatest", "counts")}
    return f"lengths differ: {sorted(lengths)}" if len(lengths) > 1 else None


def _wrong_values(arrays: Mapping[str, npt.NDArray[Any]], limit: int) -> str | None:
    shift, least, greatest, counts = (arrays[name] for name in _TYPES)
    if shift > 63:
        return f"a shift is at most 63, not {shift}"
    if len(least) > limit:
        return f"there are {len(least)} cells, more than {limit}"
    if not (np.isfinite(least).all() and np.isfinite(greatest).all()):
        return "values are not finite"
    if (least > greatest).any():
        return "a least value is above the greatest of its cell"
    if (counts < 1).any() or counts.sum(dtype=np.float64) >= 2.0**63:
        return "counts are below 1, or their sum is above that of int64"
    low, high, bits = ordered(least), ordered(greatest), shift.astype(np.uint64)
    if (low >> bits != high >> bits).any():
        return "a greatest value lies outside of the cell of the least"
    if ((low[1:] >> bits) <= (low[:-1] >> bits)).any():
        return "cells are not ascending, or one stands twice"
    if ((counts == 1) & (low != high)).any():
        return "a cell of one value has two ends"
    # Each cell is one or two of half its size.
    if shift and len(low) + np.count_nonzero((low ^ high) >> (bits - np.uint64(1))) <= limit:
        return f"the shift {shift} is not the least with at most {limit} cells"
    return None
