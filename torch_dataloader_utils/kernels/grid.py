"""Float64 values counted by cells of a grid: in a hash table of the compiled library, or by numpy, with equal results.

The ordered bits of a value, shifted right, are its cell. The shift is the least with at most so many cells over all
values seen. So the cells are a function of the multiset of values: not of their order, nor of how they were cut.
"""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.kernels.library import loaded
from torch_dataloader_utils.kernels.rows import addresses

F64: TypeAlias = npt.NDArray[np.float64]

_SIGN = np.uint64(1 << 63)
_AT_ONCE = 1 << 18  # values sorted at a time: their copies fill some 8 MB
_NONE: U64 = np.empty(0, np.uint64)


class Cells(NamedTuple):
    """Cells of a grid, ascending.

    Attributes:
        shift: how many of the lower bits a cell spans, 0 to 63.
        least: the ordered bits of the least value of each cell, uint64 [n].
        greatest: those of the greatest.
        counts: how many values each cell has, uint64 [n], at least 1.
    """

    shift: int
    least: U64
    greatest: U64
    counts: U64


def ordered(values: F64) -> U64:
    """The bits of finite values, [n], such that they order as the values do; -0.0 has those of 0.0."""
    bits = (values + 0.0).view(np.int64)  # -0.0 becomes 0.0
    return bits.view(np.uint64) ^ ((bits >> 63).view(np.uint64) | _SIGN)


def values_of(bits: U64) -> F64:
    """The values with these ordered bits, [n]."""
    return (bits ^ ((~bits.view(np.int64) >> 63).view(np.uint64) | _SIGN)).view(np.float64)


def counted(values: F64, shift: int = 0) -> Cells:
    """The cells of finite values, [n], at this shift."""
    bits = np.sort(ordered(values))
    firsts = _firsts(bits[1:] ^ bits[:-1], len(bits), shift)
    counts = np.diff(firsts, append=len(bits))
    return Cells(shift, bits[firsts], bits[firsts + counts - 1], counts.astype(np.uint64))


def merged(one: Cells, other: Cells, limit: int) -> Cells:
    """The cells of the values of both, at the least shift at which there are at most `limit` of them (at least 2).

    Args:
        one: some cells.
        other: others, of any shift.
        limit: how many there may be.
    """
    least, greatest, counts = (np.concatenate(pair) for pair in zip(one[1:], other[1:], strict=True))
    order = np.argsort(least, kind="stable")  # merges two sorted runs
    least = least[order]
    steps = least[1:] ^ least[:-1]
    shift = max(one.shift, other.shift, least_shift(steps, limit))
    firsts = _firsts(steps, len(order), shift)
    if not len(firsts):  # `reduceat` takes no empty array
        return one
    return Cells(
        shift,
        least[firsts],
        np.maximum.reduceat(greatest[order], firsts),
        np.add.reduceat(counts[order], firsts),
    )


def least_shift(steps: U64, limit: int) -> int:
    """The least shift at which sorted bits lie in at most `limit` cells, by where neighbours differ, [n - 1]."""
    if len(steps) < limit:
        return 0
    # At a shift s, neighbours are in two cells if their bits differ at s or above.
    return int(np.partition(steps, -limit)[-limit]).bit_length()


def _firsts(steps: U64, n: int, shift: int) -> npt.NDArray[np.intp]:
    """Which of `n` sorted bits are the first of a cell, by where neighbours differ, [n - 1]."""
    first = np.ones(n, np.bool_)
    np.greater_equal(steps, np.uint64(1 << shift), out=first[1:])
    return np.flatnonzero(first)


def no_cells() -> Cells:
    """Those of no value."""
    return counted(np.empty(0))


def picked(values: F64, ranges: U64) -> F64:
    """Those values that lie in one of some ranges; NaN and infinities are in none.

    Args:
        values: float64 [n], contiguous and aligned.
        ranges: the ordered bits of the least and the greatest value of each, [ranges, 2], disjoint and ascending.
    """
    if not len(ranges):
        return values[:0]
    found = library()
    if found is None:
        bits = ordered(values)
        at = np.maximum(np.searchsorted(ranges[:, 0], bits, side="right") - 1, 0)
        within: F64 = values[(ranges[at, 0] <= bits) & (bits <= ranges[at, 1])]
        return within
    out, kept = np.empty(len(values)), np.empty(1, np.uint64)
    found.tdu_grid_pick(*addresses(out, kept, values), len(values), *addresses(ranges), len(ranges))
    return out[: int(kept[0])]


class CellCounter(Protocol):
    """Counts values by cells, of which there are never more than a limit."""

    def add(self, values: F64) -> None:
        """Count finite values, [n], contiguous and aligned."""

    def merge(self, cells: Cells) -> None:
        """Count the values of cells, of any shift."""

    def cells(self) -> Cells:
        """The cells of all values so far. Their arrays are never written to again."""


def cell_counter(limit: int) -> CellCounter:
    """One that has counted nothing, for at most so many cells (at least 2)."""
    found = library()
    return SortedCells(limit) if found is None else HashedCells(found, limit)


class SortedCells:
    """Counts values by sorting them."""

    def __init__(self, limit: int) -> None:
        self._limit, self._cells = limit, no_cells()

    def add(self, values: F64) -> None:
        """Count finite values."""
        for first in range(0, len(values), _AT_ONCE):
            self.merge(counted(values[first : first + _AT_ONCE], self._cells.shift))

    def merge(self, cells: Cells) -> None:
        """Count the values of cells."""
        self._cells = merged(self._cells, cells, self._limit)

    def cells(self) -> Cells:
        """The cells of all values so far."""
        return self._cells


_BITS, _SHIFT, _USED, _ROOM, _DONE = range(5)  # the numbers of the struct `State` of grid.c
_FEWEST = 10  # a table has 2**10 slots or more


class HashedCells:
    """Counts values in a hash table, at most three quarters full: of 65,536 cells, it fills 3 MiB.

    Within a call there may be half as many cells again as the limit. So a larger shift is found from many values at
    once: one that only just holds those at hand would soon be too small again.
    """

    def __init__(self, found: ctypes.CDLL, limit: int) -> None:
        self._found, self._limit = found, limit
        self._most_bits = max(_FEWEST, (2 * limit - 1).bit_length())
        self._table, self._state = _empty_table(_FEWEST, 0)

    def add(self, values: F64) -> None:
        """Count finite values."""
        while len(values):
            part = values[:_AT_ONCE]
            if not self._state[_USED] and len(part) > self._limit:  # it is likely that it has more values
                self._keep_to_limit(ordered(part))
            self._found.tdu_grid_add(*addresses(self._table, self._state, part), len(part))
            done = int(self._state[_DONE])
            if done < len(part) and not self._grow():
                self._keep_to_limit(ordered(part[done:]))
            values = values[done:]
        self._keep_to_limit()

    def merge(self, cells: Cells) -> None:
        """Count the values of cells."""
        if cells.shift > self._state[_SHIFT]:
            self._move(int(self._state[_BITS]), cells.shift)
        columns = [np.ascontiguousarray(column) for column in cells[1:]]
        while len(columns[0]):
            self._found.tdu_grid_merge(*addresses(self._table, self._state, *columns), len(columns[0]))
            done = int(self._state[_DONE])
            columns = [column[done:] for column in columns]
            if len(columns[0]) and not self._grow():
                self._keep_to_limit(columns[0])
        self._keep_to_limit()

    def _grow(self) -> bool:
        """Whether a larger table has room for more cells."""
        bits = int(self._state[_BITS])
        if bits < self._most_bits:
            self._move(min(bits + 4, self._most_bits), int(self._state[_SHIFT]))
        return bits < self._most_bits

    def _keep_to_limit(self, more: U64 = _NONE) -> None:
        """Take the least shift at which the cells are no more than the limit, with those of more bits, [n], too."""
        used, shift = int(self._state[_USED]), int(self._state[_SHIFT])
        if used <= self._limit and not len(more):
            return
        if shift and not len(more):  # cells twice as large are nearly always few enough
            shift += 1
            self._move(self._most_bits, shift)
            used = int(self._state[_USED])
            if used <= self._limit:
                return
        # No value has the bits of an empty slot, which are 0.
        least = np.sort(np.concatenate([self._table[:, 0], more]))[len(self._table) - used :]
        shift = max(shift, least_shift(least[1:] ^ least[:-1], self._limit))
        self._move(self._most_bits, shift)

    def _move(self, bits: int, shift: int) -> None:
        """Hold the cells in a table of 2**bits slots, at this shift."""
        table, state = _empty_table(bits, shift)
        self._found.tdu_grid_move(*addresses(table, state, self._table), len(self._table))
        self._table, self._state = table, state

    def cells(self) -> Cells:
        """The cells of all values so far."""
        slots = np.flatnonzero(self._table[:, 2])
        slots = slots[np.argsort(self._table[slots, 0])]
        return Cells(int(self._state[_SHIFT]), *(self._table[slots, column] for column in range(3)))


def _empty_table(bits: int, shift: int) -> tuple[U64, U64]:
    """A table of 2**bits slots without a cell, and its state."""
    return np.zeros((1 << bits, 3), np.uint64), np.array([bits, shift, 0, 3 << (bits - 2), 0], np.uint64)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of grid.c, whose functions release the GIL; None if there is none for this source and machine."""
    functions = {
        "tdu_grid_add": (c_void_p, c_void_p, c_void_p, c_size_t),
        "tdu_grid_merge": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t),
        "tdu_grid_move": (c_void_p, c_void_p, c_void_p, c_size_t),
        "tdu_grid_pick": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t),
    }
    source = Path(__file__).with_name("grid.c")
    return loaded(source, functions, "numpy does its work, and fitting quantiles takes longer")
