"""Laps: a source is an endless run of all its rows, again and again, each time in another order.

Epoch e takes the rows `[e * n, (e + 1) * n)` of the run, so every row is taken before any is taken twice, in one epoch
and across epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class LapRows(NamedTuple):
    """The rows `[first, last)` of one lap, counted in its order."""

    lap: int
    first: int
    last: int


def laps_of(size: int, rows: int, epoch: int) -> Iterator[LapRows]:
    """The rows that an epoch takes, lap by lap.

    Args:
        size: the number of rows of the source.
        rows: the number of rows that each epoch takes.
        epoch: the epoch.
    """
    at, end = epoch * rows, (epoch + 1) * rows
    while at < end:
        lap, first = divmod(at, size)
        last = min(size, first + end - at)
        yield LapRows(lap, first, last)
        at += last - first


def even_counts(sizes: list[int], num_ranks: int) -> npt.NDArray[np.int64]:
    """How many rows of each list a rank gets, int64 [lists, ranks]: row g of all lists together goes to `g % R`.

    So ranks differ by at most one row of each list, of neighbouring lists together, and of all lists.
    """
    ends = np.cumsum([0, *sizes], dtype=np.int64)[:, None] - np.arange(num_ranks)
    return np.diff(-(-ends // num_ranks), axis=0)
