"""Which source each unit of a mix is of: a tree of two-way splits, in exact integers and in closed form.

Two sources share n units as floor(n * share + 1/2) and the rest, so neither is further than 1/2 from its exact share.
If there are more, they are the leaves of Huffman's tree: the two lightest are joined until one is left, and each node
shares what it gets among the two below it. A node that is no leaf weighs at most 2/3 of the node above it, because its
sibling is no lighter than either of the two below it. So its error is below 1/2 + 2/3 * (1/2 + ...) = 3/2, and that of
a leaf below 2. A source of weight 90 beside ninety of weight 1 thus comes every second time, without a burst.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

import numpy as np

from torch_dataloader_utils.rows import I64

_MOST = 1 << 50  # of the weights together: 64 bits then hold what `_left` needs, for fewer than 2**60 units


def whole_weights(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """The weights as whole numbers in the same proportion; those with more than 15 digits are rounded."""
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    common = gcd(*whole) or 1
    whole = [weight // common for weight in whole]
    if (total := sum(whole)) > _MOST:
        whole = [max(weight * _MOST // total, 1) if weight else 0 for weight in whole]
    return tuple(whole)


class Tree:
    """How sources share the units of a mix.

    Args:
        weights: of each source, whole numbers; at least one is above 0.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self._sources = len(weights)
        self._weights = list(weights)  # of the nodes: the sources, then what joins two nodes
        self._joins: list[tuple[int, int, int]] = []  # a node and the two below it; those above come later
        heap = [(weight, source, source) for source, weight in enumerate(weights) if weight]
        heapq.heapify(heap)
        while len(heap) > 1:
            (light, one, a), (heavy, other, b) = heapq.heappop(heap), heapq.heappop(heap)
            first, second = (a, b) if one < other else (b, a)
            self._joins.append((len(self._weights), first, second))
            heapq.heappush(heap, (light + heavy, min(one, other), len(self._weights)))
            self._weights.append(light + heavy)
        self._root = heap[0][2]

    def counts(self, units: I64) -> I64:
        """The units of each source among the first ones, int64 [prefixes, sources].

        Args:
            units: numbers of first units, below 2**60, int64 [prefixes].
        """
        found = np.zeros((len(self._weights), len(units)), np.int64)
        found[self._root] = units
        for node, left, right in reversed(self._joins):
            found[left] = _left(found[node], self._weights[left], self._weights[node])
            np.subtract(found[node], found[left], out=found[right])
        return found[: self._sources].T

    def of_first(self, units: int) -> list[int]:
        """The units of each source among this many first ones."""
        found = [0] * len(self._weights)
        found[self._root] = units
        for node, left, right in reversed(self._joins):
            found[left] = (2 * found[node] * self._weights[left] + self._weights[node]) // (2 * self._weights[node])
            found[right] = found[node] - found[left]
        return found[: self._sources]

    def until(self, source: int, count: int) -> int:
        """The fewest first units of which so many, at least one, are of a source with a weight."""
        units, node = count, source
        for above, left, right in self._joins:
            if node in (left, right):
                # The n-th unit of a child is the first at which its share, rounded, is n.
                units = (2 * units - 1) * self._weights[above]
                twice = 2 * self._weights[node]
                units = -(-units // twice) if node == left else units // twice + 1
                node = above
        return units

    def most(self, first: int, left: Sequence[int]) -> int:
        """The most units after the first ones of which no source with a weight has more than it has left."""
        taken = self.of_first(first)
        pairs = enumerate(zip(taken, left, strict=True))
        ends = (self.until(i, done + more + 1) for i, (done, more) in pairs if self._weights[i])
        return min(ends) - 1 - first

    def least(self, counts: Sequence[int]) -> int:
        """The fewest first units of which every source with a weight has at least so many."""
        pairs = enumerate(counts)
        return max((self.until(i, count) for i, count in pairs if count and self._weights[i]), default=0)


@lru_cache(maxsize=256)
def tree_of(weights: tuple[int, ...]) -> Tree:
    """The tree of these weights."""
    return Tree(weights)


def _left(units: I64, left: int, weight: int) -> I64:
    """floor(units * left / weight + 1/2), exactly.

    Floats find it to within 2**9. What is missing then follows from integers modulo 2**64, because it is small.
    """
    found = (units * (left / weight)).astype(np.int64)
    missing: I64 = (units * (2 * left) + weight - found * (2 * weight)) // (2 * weight)
    found += missing
    return found
