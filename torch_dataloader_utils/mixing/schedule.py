"""How many rows of each source the batches of a rank hold: a function of the step alone.

Row j of source i is at position `(j + 1/2) / rate_i`, ties by source, and a rank's batches take the rows in the order
of their positions. Counts of neighbouring prefixes only grow, and stay within
`1/2 + sources / 2 * share` rows of exact, where share is the source's rate over that of all. If the rates change, the
positions begin anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.rows import I64


def prefix_counts(rows: Sequence[int], rates: Sequence[float], prefixes: I64) -> I64:
    """How many of the first rows, in the order of their positions, are of each source, int64 [prefixes, sources].

    Args:
        rows: of each source.
        rates: of each source, above 0.
        prefixes: numbers of first rows, int64 [prefixes], each at most the sum of `rows`.
    """
    total, rate = np.asarray(rows, np.float64), np.asarray(rates, np.float64)
    # Where positions up to x hold `reached` rows in exact shares: a source has as many rows up to x, within a half.
    # So the counts at x are two rows short at least, and rows whose position is x, but for rounding, do not matter.
    ends = np.unique(np.append(total / rate, 0.0))
    reached = np.minimum(total, ends[:, None] * rate).sum(axis=1)
    x = np.interp(np.maximum(prefixes - len(total) / 2 - 2, 0), reached, ends)[:, None]
    counts: I64 = np.minimum(total, x * rate + 0.5).astype(np.int64)
    left = prefixes - counts.sum(axis=1)
    lines = np.arange(len(prefixes))
    while (left > 0).any():
        positions = np.where(counts < total, (counts + 0.5) / rate, np.inf)
        counts[lines, positions.argmin(axis=1)] += left > 0
        left = left - 1
    return counts


class Stretch(NamedTuple):
    """Rows that are delivered at one set of rates, before those of the next stretch.

    Attributes:
        rows: of each source.
        rates: of each source, above 0.
    """

    rows: tuple[int, ...]
    rates: tuple[float, ...]


def counts_by_stretch(stretches: Sequence[Stretch], prefixes: I64, unit: int = 1) -> Iterator[I64]:
    """For each stretch, how many of its rows the prefixes of all stretches hold, int64 [prefixes, sources].

    Args:
        stretches: one after another.
        prefixes: numbers of first rows of all of them, int64 [prefixes].
        unit: rows of a source that are delivered together, and are then what prefixes count.
    """
    begin = 0
    for stretch in stretches:
        units = [-(-rows // unit) for rows in stretch.rows]
        size = sum(units)
        within = np.clip(prefixes - begin, 0, size)
        begin += size
        if not within.any() or (within == size).all():
            yield np.outer(np.minimum(within, 1), np.asarray(stretch.rows, np.int64))
        else:
            yield np.minimum(prefix_counts(units, stretch.rates, within) * unit, stretch.rows)


def whole_steps(stretches: Sequence[Stretch], step_rows: int, *, single: bool) -> tuple[Stretch, ...]:
    """The stretches without the rows after their last full step.

    Args:
        stretches: one after another.
        step_rows: rows per step.
        single: whether each step is of one source.
    """
    if single:
        kept = [[rows // step_rows * step_rows for rows in stretch.rows] for stretch in stretches]
    else:
        total = sum(sum(stretch.rows) for stretch in stretches)
        prefix = np.array([total // step_rows * step_rows])
        kept = [counts[0].tolist() for counts in counts_by_stretch(stretches, prefix)]
    return tuple(Stretch(tuple(rows), stretch.rates) for rows, stretch in zip(kept, stretches, strict=True))


def rows_of_sources(stretches: Sequence[Stretch]) -> list[int]:
    """The rows of each source in all stretches."""
    return [sum(rows) for rows in zip(*(stretch.rows for stretch in stretches), strict=True)]


@dataclass(frozen=True)
class Schedule:
    """The rows of each source in a rank's batches.

    Attributes:
        stretches: the rank's rows of each source; several if their rates change in the epoch.
        batch_rows: rows per batch.
        single: whether each batch is of one source; the last one of a source may then be short.
        padding: repeats after all rows, as a source of their own; 0 for none.
    """

    stretches: tuple[Stretch, ...]
    batch_rows: int
    single: bool = False
    padding: int = 0

    @cached_property
    def rows(self) -> int:
        """The number of rows, without padding."""
        return sum(sum(stretch.rows) for stretch in self.stretches)

    @cached_property
    def steps(self) -> int:
        """The number of batches."""
        if self.single:
            return sum(-(-rows // self.batch_rows) for stretch in self.stretches for rows in stretch.rows)
        return -(-(self.rows + self.padding) // self.batch_rows)

    def after(self, steps: int) -> list[int]:
        """The rows of each source in the first `steps` batches."""
        counts: list[int] = self.table(steps, steps)[0].tolist()
        return counts

    def table(self, first: int, last: int) -> I64:
        """The rows of each source in the first `first`, ..., `last` batches, int64 [last - first + 1, sources]."""
        steps = np.clip(np.arange(first, last + 1), 0, self.steps)
        if self.single:
            return sum_of(counts_by_stretch(self.stretches, steps, self.batch_rows))
        taken = np.minimum(steps * self.batch_rows, self.rows + self.padding)
        counts = sum_of(counts_by_stretch(self.stretches, np.minimum(taken, self.rows)))
        return np.column_stack([counts, np.maximum(taken - self.rows, 0)]) if self.padding else counts

    def needed(self, shard: int, rows: Sequence[int]) -> list[tuple[int, float]]:
        """When these rows of a source are delivered, relative to rows of all sources: their stretch, and position.

        Args:
            shard: the number of the source; the padding is the last one.
            rows: row numbers, counted over all stretches.
        """
        if shard == len(self.stretches[0].rows):
            return [(len(self.stretches), row) for row in rows]
        ends = list(accumulate(stretch.rows[shard] for stretch in self.stretches))
        places = []
        for row in rows:
            number = min(bisect_right(ends, row), len(ends) - 1)
            stretch = self.stretches[number]
            places.append((number, (row - ends[number] + stretch.rows[shard]) / stretch.rates[shard]))
        return places


def sum_of(counts: Iterator[I64]) -> I64:
    """The sum of the counts of all stretches; there is at least one."""
    total = next(counts)
    for more in counts:
        total = total + more
    return total
