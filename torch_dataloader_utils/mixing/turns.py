"""The units of a mix in their order: stretches, each of which has one set of weights."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate

import numpy as np

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.mixing.tree import Tree, tree_of, whole_weights
from torch_dataloader_utils.rows import I64


@dataclass(frozen=True)
class Stretch:
    """Consecutive units whose sources follow from one set of weights.

    Attributes:
        weights: of each source, whole numbers; at least one is above 0.
        first: how many units of these weights come before it.
        units: their number, at least 1.
    """

    weights: tuple[int, ...]
    first: int
    units: int

    @property
    def tree(self) -> Tree:
        """The tree of its weights."""
        return tree_of(self.weights)

    def counts(self, prefixes: I64) -> I64:
        """The units of each source among its first ones, int64 [prefixes, sources]."""
        counts: I64 = self.tree.counts(prefixes + self.first) - np.array(self.tree.of_first(self.first), np.int64)
        return counts

    @property
    def of_each(self) -> list[int]:
        """Its units of each source."""
        ends = (self.tree.of_first(units) for units in (self.first, self.first + self.units))
        return [last - first for first, last in zip(*ends, strict=True)]


@dataclass(frozen=True)
class Turns:
    """Units of a mix, in the order in which they are delivered over all ranks.

    Attributes:
        stretches: one after another.
        sources: the number of sources.
    """

    stretches: tuple[Stretch, ...]
    sources: int

    @classmethod
    def of(cls, stretches: Iterable[Stretch], sources: int) -> Turns:
        """The turns of these stretches, of which some may have no unit."""
        return cls(tuple(stretch for stretch in stretches if stretch.units), sources)

    @cached_property
    def total(self) -> int:
        """The number of units."""
        return self._ends[-1]

    @cached_property
    def of_each(self) -> list[int]:
        """The units of each source."""
        counts: list[int] = self._before[-1].tolist()
        return counts

    def counts(self, prefixes: I64) -> I64:
        """The units of each source among the first ones, int64 [prefixes, sources].

        Args:
            prefixes: numbers of first units, ascending and at most `total`, int64 [prefixes].
        """
        ends = np.array(self._ends)
        of = np.searchsorted(ends[1:], prefixes)  # a prefix that ends with a stretch is of that one
        found = [np.empty((0, self.sources), np.int64)]
        for number in range(int(of[0]), int(of[-1]) + 1) if self.stretches and len(prefixes) else ():
            within = prefixes[of == number]
            if len(within):
                found.append(self._before[number] + self.stretches[number].counts(within - self._ends[number]))
        return np.concatenate(found) if self.stretches else np.zeros((len(prefixes), self.sources), np.int64)

    def place(self, source: int, count: int) -> int:
        """The unit, from 0, that is the `count`-th of a source, from 1."""
        number = int(np.searchsorted(self._before[:, source], count)) - 1
        stretch = self.stretches[number]
        before = stretch.tree.of_first(stretch.first)[source]
        within = stretch.tree.until(source, before + count - int(self._before[number, source]))
        return self._ends[number] + within - stretch.first - 1

    def until(self, units: int) -> Turns:
        """The first units of them."""
        number = bisect_left(self._ends, units)
        if number == 0 or units >= self.total:
            return Turns(self.stretches[: len(self.stretches) if units else 0], self.sources)
        last = self.stretches[number - 1]
        short = replace(last, units=units - self._ends[number - 1])
        return Turns((*self.stretches[: number - 1], short), self.sources)

    @cached_property
    def _ends(self) -> list[int]:
        """Where each stretch ends, after a 0."""
        return list(accumulate((stretch.units for stretch in self.stretches), initial=0))

    @cached_property
    def _before(self) -> I64:
        """The units of each source before each stretch, and in all of them, int64 [stretches + 1, sources]."""
        counts = [[0] * self.sources, *(stretch.of_each for stretch in self.stretches)]
        return np.cumsum(np.array(counts, np.int64), axis=0)


def as_far_as_they_go(weights: Sequence[int], first: int, left: Sequence[int], units: int) -> Iterator[Stretch]:
    """Units of sources that end: an ended one gives its turns to the others, by weight, in a tree of their own.

    Sources without a weight come after all others, in proportion to what is left of them.

    Args:
        weights: of each source.
        first: how many units of these weights came before; counts anew where a source has ended.
        left: the units that each source has.
        units: how many are wanted, at most the sum of `left`.
    """
    if any(weights) and tree_of(tuple(weights)).most(first, left) >= units:  # none ends, though one may have no more
        yield Stretch(tuple(weights), first, units)
        return
    rest = list(left)
    while units:
        own = tuple(weight if more else 0 for weight, more in zip(weights, rest, strict=True))
        own = own if any(own) else whole_weights(list(map(Fraction, rest)))
        stretch = Stretch(own, first if own == tuple(weights) else 0, 0)
        stretch = replace(stretch, units=min(units, stretch.tree.most(stretch.first, rest)))
        yield stretch
        rest = [more - taken for more, taken in zip(rest, stretch.of_each, strict=True)]
        units -= stretch.units
        first = stretch.first + stretch.units
