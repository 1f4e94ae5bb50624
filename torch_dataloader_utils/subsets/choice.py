"""Which hashes belong to a subset or to a sample, by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from torch_dataloader_utils.hashing import Choice, Interval, name_hash
from torch_dataloader_utils.options import SubsetOptions

_WHOLE = 1 << 64


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
