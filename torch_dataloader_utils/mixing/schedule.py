"""How many rows of each source the batches of a rank hold: a function of the step alone.

Row j of source i is at position `(j + 1/2) / rate_i`, ties by source, and a rank's batches take the rows in the order
of their positions. Counts of neighbouring prefixes only grow, and stay within
`1/2 + sources / 2 * share` rows of exact, where share is the source's rate over that of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.lazy import cached_property

I64 = npt.NDArray[np.int64]


def prefix_counts(rows: Sequence[int], rates: Sequence[float], prefixes: I64) -> I64:
    """How many of the first rows, in the order of their positions, are of each source, int64 [prefixes, sources].

    Args:
        rows: of each source.
        rates: of each source, above 0.
        prefixes: numbers of first rows, int64 [prefixes], each at most the sum of `rows`.
    """
    total, rate = np.asarray(rows, np.float64), np.asarray(rates, np.float64)
    # Where positions up to x hold `reached` rows in exact shares: a source has at least as many rows at x, less a half.
    ends = np.unique(np.append(total / rate, 0.0))
    reached = np.minimum(total, ends[:, None] * rate).sum(axis=1)
    least = np.maximum(prefixes - len(total) - 2, 0)
    x = np.interp(least, reached, ends)[:, None]
    counts: I64 = np.maximum(np.minimum(total, x * rate) - 1, 0).astype(np.int64)
    left = prefixes - counts.sum(axis=1)
    lines = np.arange(len(prefixes))
    while (left > 0).any():
        positions = np.where(counts < total, (counts + 0.5) / rate, np.inf)
        counts[lines, positions.argmin(axis=1)] += left > 0
        left = left - 1
    return counts


@dataclass(frozen=True)
class Schedule:
    """The rows of each source in a rank's batches.

    Attributes:
        rows: the rank's rows of each source.
        rates: of each source.
        batch_rows: rows per batch.
        single: whether each batch is of one source; the last one of a source may then be short.
        padding: repeats after all rows, as a source of their own; 0 for none.
    """

    rows: tuple[int, ...]
    rates: tuple[float, ...]
    batch_rows: int
    single: bool = False
    padding: int = 0

    @cached_property
    def steps(self) -> int:
        """The number of batches."""
        if self.single:
            return sum(self._units)
        return -(-(sum(self.rows) + self.padding) // self.batch_rows)

    def after(self, steps: int) -> list[int]:
        """The rows of each source in the first `steps` batches."""
        counts: list[int] = self.table(steps, steps)[0].tolist()
        return counts

    def table(self, first: int, last: int) -> I64:
        """The rows of each source in the first `first`, ..., `last` batches, int64 [last - first + 1, sources]."""
        steps = np.clip(np.arange(first, last + 1), 0, self.steps)
        if self.single:
            return np.minimum(prefix_counts(self._units, self.rates, steps) * self.batch_rows, self.rows)
        real = sum(self.rows)
        taken = np.minimum(steps * self.batch_rows, real + self.padding)
        counts = prefix_counts(self.rows, self.rates, np.minimum(taken, real))
        return np.column_stack([counts, np.maximum(taken - real, 0)]) if self.padding else counts

    @property
    def speeds(self) -> tuple[float, ...]:
        """How fast each source advances, relative to the others, with the padding as slow as it can be."""
        return (*self.rates, *([min(self.rates)] if self.padding else []))

    @property
    def _units(self) -> list[int]:
        return [-(-count // self.batch_rows) for count in self.rows]
