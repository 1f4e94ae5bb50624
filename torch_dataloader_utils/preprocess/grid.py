"""Counts of a column's values by cells, which are a function of the multiset of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.grid import F64, CellCounter, Cells, SortedCells, cell_counter, ordered, values_of
from torch_dataloader_utils.preprocess.cells import CountedCells


class Grid(CountedCells):
    """Counts finite values by cells, whose number never exceeds `limit`; exact while the values are as few.

    The cell of a value is its ordered bits without the lower ones: the least number of them for which all values seen
    lie in at most `limit` cells. Each cell has a count, a least and a greatest value. So any order, cut and merge of
    the same values gives equal grids. Threads may add to one grid, which pickles; 3 MiB hold 65,536 cells.
    """

    limit: ClassVar[int] = 65_536

    def __init__(self) -> None:
        self._lock = Lock()
        self._counter: CellCounter = cell_counter(self.limit)
        self._sorted: Cells | None = None  # those that were read, until more is counted

    def cells(self) -> Cells:
        """The cells of all values so far."""
        with self._lock:
            if self._sorted is None:
                self._sorted = self._counter.cells()
            return self._sorted

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
            self._sorted = None
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
            self._merge(Cells(0, bits, bits, np.array([times], np.uint64)))

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
        self._merge(Cells(0, bits, bits, sums))

    def merge(self, other: Grid) -> None:
        """Count the values that another grid has counted."""
        self._merge(other.cells())

    def _merge(self, cells: Cells) -> None:
        with self._lock:
            self._sorted = None
            self._counter.merge(cells)

    def compact(self) -> None:
        """Hold the cells alone, in half the memory; to count more values is slower then."""
        cells = self.cells()
        with self._lock:
            self._counter, self._sorted = SortedCells(self.limit), None
            self._counter.merge(cells)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state: equal grids have equal arrays.

        Returns:
            `shift`, uint8 [], the bits that a cell spans; `least` and `greatest`, float64 [n], the ends of each cell,
            ascending; `counts`, int64 [n].
        """
        shift, least, greatest, counts = self.cells()
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
        grid._merge(_checked(arrays, cls.limit))
        return grid

    def __reduce__(self) -> tuple[Callable[..., Grid], tuple[Any, ...]]:
        return type(self).from_arrays, (self.to_arrays(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grid):
            return NotImplemented
        one, two = self.cells(), other.cells()
        return one.shift == two.shift and all(map(np.array_equal, one[1:], two[1:]))

    __hash__ = None  # type: ignore[assignment]  # it changes


class FineGrid(Grid):
    """A grid of more cells, for a part of the values: `limit` of them fill 48 MiB."""

    limit: ClassVar[int] = 1 << 20


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
