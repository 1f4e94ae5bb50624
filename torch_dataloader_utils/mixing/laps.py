"""Laps: a source is an endless run of all its rows, again and again, each time in another order.

Each epoch takes the rows of the run that follow those of the epoch before, so every row is taken before any is taken
twice, in one epoch and across epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LapRows(NamedTuple):
    """The rows `[first, last)` of one lap, counted in its order."""

    lap: int
    first: int
    last: int


def laps_of(size: int, at: int, end: int) -> Iterator[LapRows]:
    """The rows `[at, end)` of the run, lap by lap; `size` is the number of rows of the source."""
    while at < end:
        lap, first = divmod(at, size)
        last = min(size, first + end - at)
        yield LapRows(lap, first, last)
        at += last - first


def cut_laps(sizes: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, LapRows]]:
    """The rows of these laps, cut after the first `counts[0]` rows, the next `counts[1]`, and so on.

    Yields:
        The number of the cut, and rows of a lap, counted from the first.
    """
    lap, at = 0, 0
    for number, left in enumerate(counts):
        while left > 0:
            taken = min(left, sizes[lap] - at)
            if taken:
                yield number, LapRows(lap, at, at + taken)
            left, at = left - taken, at + taken
            if at == sizes[lap]:
                lap, at = lap + 1, 0


def even_counts(sizes: list[int], num_ranks: int) -> npt.NDArray[np.int64]:
    """How many rows of each list a rank gets, int64 [lists, ranks]: row g of all lists together goes to `g % R`.

    So ranks differ by at most one row of each list, of neighbouring lists together, and of all lists.
    """
    ends = np.cumsum([0, *sizes], dtype=np.int64)[:, None] - np.arange(num_ranks)
    return np.diff(-(-ends // num_ranks), axis=0)
