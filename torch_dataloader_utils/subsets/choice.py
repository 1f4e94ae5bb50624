"""Which hashes belong to a subset or to a sample: intervals of 64-bit numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.options import SubsetOptions
from torch_dataloader_utils.subsets.hashing import U64, mixed, name_hash, number_hashes

_WHOLE = 1 << 64


@dataclass(frozen=True, slots=True)
class Interval:
    """The hashes that lie in `[low, high)` once they are mixed with a salt; `low < high`."""

    salt: int
    low: int
    high: int

    def holds(self, hashes: U64) -> npt.NDArray[np.bool_]:
        """Whether each hash lies in the interval."""
        # Numbers below `low` become the largest ones; `high` may be 2**64.
        return (mixed(hashes ^ np.uint64(self.salt)) - np.uint64(self.low)) <= np.uint64(self.high - self.low - 1)


@dataclass(frozen=True)
class Choice:
    """The intervals in which the hash of a chosen row, segment or file lies."""

    intervals: tuple[Interval, ...]

    def holds(self, hashes: U64) -> npt.NDArray[np.bool_]:
        """Which of these hashes are chosen, shape [hashes]."""
        chosen = np.ones(len(hashes), np.bool_)
        for interval in self.intervals:
            chosen &= interval.holds(hashes)
        return chosen

    def holds_one(self, value: int) -> bool:
        """Whether this hash is chosen."""
        return bool(self.holds(np.array([value], np.uint64))[0])

    def rows(self, key: int, first: int, count: int) -> Iterator[npt.NDArray[np.bool_]]:
        """Which of the rows `[first, first + count)` are chosen, some thousands at a time; `key` is that of a file."""
        return (self.holds(hashes) for hashes in number_hashes(key, first, count))


def choice_of(options: SubsetOptions) -> Choice | None:
    """What these options choose by hash; None if they choose everything."""
    intervals = []
    if options.subset is not None:
        low, high = bounds(options.subset.of)[options.subset.name]
        intervals.append(Interval(name_hash("subset", options.subset.seed), low, high))
    if options.fraction is not None:
        high = int(_exact(options.fraction.share) * _WHOLE)
        intervals.append(Interval(name_hash("fraction", options.sample_seed), 0, max(high, 1)))
    return Choice(tuple(intervals)) if intervals else None


def bounds(subsets: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """The interval `[low, high)` of each subset, in order: together all 64-bit numbers, each once."""
    total, sums, ends = sum(map(_exact, subsets.values())), Fraction(0), [0]
    for weight in subsets.values():
        sums += _exact(weight)
        ends.append(int(sums / total * _WHOLE))
    return {name: (low, high) for name, low, high in zip(subsets, ends[:-1], ends[1:], strict=True)}


def _exact(weight: float) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    return Fraction(repr(weight))
