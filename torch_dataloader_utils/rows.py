"""A selection of row numbers, as a single value for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The row numbers x in `[start, stop)` with `(x - phase) % step < block`: contiguous, strided, or blocks with gaps.

    One value for any number of rows or blocks; slicing it returns another one. Contiguous rows have step 1.
    """

    start: int
    stop: int
    step: int = 1
    block: int = 1
    phase: int = 0

    def _before(self, row: int) -> int:
        """How many selected places are below `row`, counted from `phase` (negative below it)."""
        turn, inside = divmod(row - self.phase, self.step)
        return turn * self.block + min(inside, self.block)

    def __len__(self) -> int:
        if self.step == 1:
            return max(0, self.stop - self.start)
        return max(0, self._before(self.stop) - self._before(self.start))

    @property
    def contiguous(self) -> bool:
        """Whether no row between the first and the last is left out."""
        return self.step == 1

    def row(self, i: int) -> int:
        """The number of the i-th selected row (0 <= i < len)."""
        if self.step == 1:
            return self.start + i
        turn, inside = divmod(self._before(self.start) + i, self.block)
        return self.phase + turn * self.step + inside

    def slice(self, first: int, last: int) -> Rows:
        """The selected rows with places `[first, last)`; places beyond the ends are ignored."""
        first, last = max(first, 0), min(last, len(self))
        if first >= last:
            return Rows(self.start, self.start)
        return replace(self, start=self.row(first), stop=self.row(last - 1) + 1)

    def clip(self, start: int, stop: int) -> Rows:
        """The selected rows whose numbers lie in `[start, stop)`."""
        start, stop = max(self.start, start), min(self.stop, stop)
        return Rows(start, max(start, stop), self.step, self.block, self.phase)  # plans clip often: `replace` is slow

    def at(self, places: Rows) -> list[Rows]:
        """The rows at these places (all within the length): a single value if a pattern of patterns is again one."""
        if not len(places):
            return []
        places = places.slice(0, len(places))
        if places.contiguous:
            return [self.slice(places.start, places.stop)]
        if self.contiguous:
            shifted = replace(places, start=places.start + self.start, stop=places.stop + self.start)
            return [replace(shifted, phase=places.phase + self.start)]
        if places.block == 1 and self.block == 1:
            first, last = self.row(places.start), self.row(places.stop - 1)
            return [Rows(first, last + 1, self.step * places.step, 1, first)]
        return [self.slice(first, last) for first, last in places.runs()]

    def runs(self) -> Iterator[tuple[int, int]]:
        """The runs of consecutive row numbers as half-open `(start, stop)`."""
        at = 0
        n = len(self)
        while at < n:
            first = self.row(at)
            if self.contiguous:
                yield first, self.stop
                return
            last = min(first + self.block - (first - self.phase) % self.step, self.stop)
            yield first, last
            at += last - first

    def numbers(self) -> npt.NDArray[np.int64]:
        """All selected row numbers, int64, shape [len]: use it for the rows of one task, never of an epoch."""
        if self.contiguous:
            return np.arange(self.start, self.stop, dtype=np.int64)
        places = np.arange(self._before(self.start), self._before(self.stop), dtype=np.int64)
        return self.phase + places // self.block * self.step + places % self.block


def stable_order(keys: I64) -> I64:
    """The order that sorts these numbers (at least 0), equal ones as they are; 16-bit numbers sort ten times faster."""
    small = keys.max(initial=0) < 1 << 16
    return np.argsort(keys.astype(np.uint16) if small else keys, kind="stable")
