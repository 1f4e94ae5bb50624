"""Runs of rows, and which windows they have: arithmetic on the first row and the length of each run.

A *sequence* is the live rows of a key, in the order of time; a *run* is a stretch of it without a gap. A window is its
anchor, the last row of its past. So windows are counted, and found by number, without a list of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.options.sequences import Windows
from torch_dataloader_utils.rows import I64

_AT_A_TIME = 1 << 20  # windows that are looked at, of which a subset chooses some


class FoundWindows(NamedTuple):
    """Windows, by the number of their anchor among all live rows.

    Attributes:
        rows: the anchors, int64 [n].
        before: how many rows of its past each has before its anchor, int64 [n].
        after: how many rows each has after its anchor, int64 [n].
    """

    rows: I64
    before: I64
    after: I64


@dataclass(frozen=True)
class TimeRuns:
    """All runs of a dataset, 16 bytes each, and the windows that they have; picklable.

    Attributes:
        windows: which windows a run has.
        first: the number of each run's first row among all live rows, int64 [runs], ascending.
        rows: the rows of each run, int64 [runs].
        chosen: the numbers of the windows that a subset chooses, int64, ascending; None for all.
    """

    windows: Windows
    first: I64
    rows: I64
    chosen: I64 | None = None

    @cached_property
    def _anchors(self) -> tuple[I64, I64, I64]:
        """Of each run: its first anchor, numbered in the run; how many it has; and how many those before it have."""
        windows, (before, after) = self.windows, self.windows.least
        span = self.rows - before - after
        found = np.where(span < 0, 0, span // windows.stride + 1)
        kept = found if windows.last is None else np.minimum(found, windows.last)
        return before - 1 + (found - kept) * windows.stride, kept, np.concatenate([[0], np.cumsum(kept)])

    def choosing(self, anchors: npt.NDArray[np.bool_]) -> TimeRuns:
        """With only the windows whose anchors are chosen; `anchors`: which live rows are, bool [rows]."""
        count = int(self._anchors[2][-1])
        found = [np.zeros(0, np.int64)]
        for first in range(0, count, _AT_A_TIME):
            numbers = np.arange(first, min(first + _AT_A_TIME, count))
            found.append(numbers[anchors[self.of(numbers).rows]])
        return replace(self, chosen=np.concatenate(found))

    def anchors_before(self, rows: I64) -> I64:
        """How many anchors are before these live rows, int64 [n]."""
        if not len(self.first):
            return np.zeros(len(rows), np.int64)
        start, kept, ends = self._anchors
        run = np.maximum(np.searchsorted(self.first, rows, "right") - 1, 0)
        inside = -(-(rows - self.first[run] - start[run]) // self.windows.stride)
        before: I64 = ends[run] + np.clip(inside, 0, kept[run])
        return before if self.chosen is None else np.searchsorted(self.chosen, before).astype(np.int64)

    def of(self, numbers: I64) -> FoundWindows:
        """The windows with these numbers, in the order of their anchors among all live rows."""
        start, _, ends = self._anchors
        numbers = numbers if self.chosen is None else self.chosen[numbers]
        run = np.searchsorted(ends, numbers, "right") - 1
        place = start[run] + (numbers - ends[run]) * self.windows.stride
        before = np.minimum(place, self.windows.length - 1)
        after = np.minimum(self.rows[run] - 1 - place, self.windows.horizon)
        return FoundWindows(self.first[run] + place, before, after)
