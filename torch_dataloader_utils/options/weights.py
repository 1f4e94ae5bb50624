"""How the weights of a combination, and of those within it, become those of its datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise


def default_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """The sizes to the power of `1 / temperature`; rounded, because the last bit may differ between machines."""
    return [float(f"{size ** (1 / temperature):.12g}") if temperature != 1 else float(size) for size in sizes]


def exact_weight(weight: float | Fraction) -> Fraction:
    """The decimal number that Python shows for the weight: 1/10 for 0.1."""
    return weight if isinstance(weight, Fraction) else Fraction(repr(float(weight)))


@dataclass(frozen=True)
class WeightTree:
    """How a combination shares its weight among its members, and they theirs.

    Attributes:
        members: a combination, or None for a dataset.
        weights: of each member; None: its number of rows to the power of `1 / temperature`.
        temperature: above 1, small members get more than their share.
    """

    members: tuple[WeightTree | None, ...]
    weights: tuple[float, ...] | None = None
    temperature: float = 1.0

    @property
    def leaves(self) -> int:
        """The number of datasets."""
        return sum(1 if member is None else member.leaves for member in self.members)

    @property
    def is_flat(self) -> bool:
        """Whether all members are datasets."""
        return all(member is None for member in self.members)

    @property
    def chosen(self) -> bool:
        """Whether any combination has weights or a temperature; otherwise each dataset weighs its number of rows."""
        return any(tree.weights is not None or tree.temperature != 1 for tree in self._trees())

    @property
    def needs_rows(self) -> bool:
        """Whether weights follow from numbers of rows."""
        return any(tree.weights is None and len(tree.members) > 1 for tree in self._trees())

    def of_datasets(self, sizes: Sequence[int]) -> tuple[Fraction, ...]:
        """The weight of each dataset: its own, relative to its combination's, times the combination's.

        Args:
            sizes: the number of rows of each dataset.
        """
        ends = accumulate((1 if member is None else member.leaves for member in self.members), initial=0)
        inner = [sizes[first:last] for first, last in pairwise(ends)]
        own = default_weights([sum(some) for some in inner], self.temperature) if self.weights is None else self.weights
        weights: list[Fraction] = []
        for member, weight, some in zip(self.members, map(exact_weight, own), inner, strict=True):
            shares = (Fraction(1),) if member is None else member.of_datasets(some)
            if not any(shares):  # of a combination without any row: it keeps its weight, as a dataset does
                shares = (Fraction(1),) * len(shares)
            weights += [weight * share / sum(shares) for share in shares]
        return tuple(weights)

    def _trees(self) -> Iterator[WeightTree]:
        yield self
        for member in self.members:
            if member is not None:
                yield from member._trees()
