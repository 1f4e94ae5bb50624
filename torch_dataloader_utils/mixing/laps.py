"""Laps: a source is an endless run of all its rows, again and again, each time in another order.

Each epoch takes the rows of the run that follow those of the epoch before, so every row is taken before any is taken
twice, in one epoch and across epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from torch_dataloader_utils.rows import I64

PART = 256  # rows, or sequences: a dataset that has fewer for each rank is dealt by whole laps


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


def cut_laps(sizes: Sequence[int], count: int) -> tuple[list[LapRows], list[LapRows]]:
    """The first `count` rows of these laps, and those after them; laps are counted from the first."""
    first, rest = [], []
    for lap, size in enumerate(sizes):
        taken = min(size, count)
        first += [LapRows(lap, 0, taken)] * (taken > 0)
        rest += [LapRows(lap, taken, size)] * (taken < size)
        count -= taken
    return first, rest


def shared_laps(sizes: Sequence[int], draws: I64) -> I64:
    """How many rows of each lap each rank gets, int64 [laps, ranks].

    A rank gets its draws, which are those of each lap in proportion to its size, rounded: so it goes on to the next lap
    when the others do, within a few rows.

    Args:
        sizes: of each lap.
        draws: of each rank, together the rows of all laps, int64 [ranks].
    """
    left, rows = draws.copy(), int(draws.sum())
    counts = np.zeros((len(sizes), len(draws)), np.int64)
    for lap, size in enumerate(sizes[:-1]):
        ends = np.cumsum(left)
        if rows * size >= 2**63:
            ends = ends.astype(object)
        counts[lap] = np.diff((ends * size // max(rows, 1)).astype(np.int64), prepend=0)
        left -= counts[lap]
        rows -= size
    counts[len(sizes) - 1 :] = left
    return counts


def whole_laps(sizes: Sequence[int], draws: I64) -> I64:
    """The same where a rank gets whole laps, one after another, of which at most its first and last are cut."""
    laps, ranks = (np.append(0, np.cumsum(of, dtype=np.int64)) for of in (sizes, draws))
    ends: I64 = np.minimum(laps[1:, None], ranks[None, 1:])
    counts: I64 = np.maximum(ends - np.maximum(laps[:-1, None], ranks[None, :-1]), 0)
    return counts
