"""Another scan of a column for its quantiles: it counts the numbers of some cells by lesser ones.

A cell of a grid spans at most 2**48 ordered bits, as 2**16 such cells hold all of 64 bits. A scan that parts d cells
into 2**20 makes each at least 2**b times as small, where b is the greatest number with d * 2**b <= 2**20. There are
never more cells in doubt than places of order statistics that are learned. So after ceil(48 / b) scans, with that
number for d, a cell is one value. As most cells hold no value, one scan nearly always does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.kernels.grid import F64, picked
from torch_dataloader_utils.preprocess.grid import FineGrid, Grid
from torch_dataloader_utils.preprocess.transforms import Bucketize, ColumnTransform, QuantileTransform
from torch_dataloader_utils.printing import listed, plural, shown


@dataclass(frozen=True)
class Accuracy:
    """Which quantiles take another scan.

    Attributes:
        error: the greatest share of the numbers by which a rank may be off without one.
        scans: how many of them there may be; None for as many as it takes.
    """

    error: float = 0.001
    scans: int | None = 1

    @classmethod
    def of(cls, quantiles: Any) -> Accuracy:
        """What is meant by `fit(quantiles=...)`.

        Raises:
            OptionError: nothing.
        """
        if quantiles == "exact":
            return cls(0.0, None)
        is_number = isinstance(quantiles, (int, float)) and not isinstance(quantiles, bool)
        if not is_number or not 0 < quantiles <= 1:
            raise OptionError(
                f"quantiles={shown(quantiles)}: expected 'exact', or by which share of the rows the rank of a "
                "quantile may be off without another scan, above 0 and up to 1, such as 0.001."
            )
        return cls(float(quantiles))

    def most_scans(self, links: Sequence[ColumnTransform]) -> int:
        """How many scans for quantiles follow the one that counts a grid, from which links learn, at most."""
        places = sum(map(_places, links))
        if not places or self.error == 1:
            return 0
        if self.scans is not None:
            return self.scans
        widest = 64 - _exponent(Grid.limit)
        return -(-widest // _exponent(FineGrid.limit // places))

    def why(self, links: Sequence[ColumnTransform], scans: int) -> str:
        """Why there are so many."""
        learning = listed([repr(link) for link in links if _places(link)])
        if self.error:
            return f"{learning}: if ranks of quantiles may be off by more than {self.error:g} of the rows, another scan"
        return f"{learning}: until quantiles are exact, at most {plural(scans, 'more scan')}"


CLOSE = Accuracy()


def _exponent(number: int) -> int:
    """That of the greatest power of two that is no greater."""
    return number.bit_length() - 1


def _places(link: ColumnTransform) -> int:
    """How many cells may hold what a link learns: two for each quantile, and the one in which the least numbers end."""
    if not isinstance(link, QuantileTransform) or not link.shares:
        return 0
    return 2 * len(link.shares) + isinstance(link, Bucketize)


class Refinement:
    """Counts the numbers in some ranges. Those of parts of the data merge to those of all of it, in any order.

    Args:
        ranges: as of `kernels.grid.picked`.
    """

    def __init__(self, ranges: U64) -> None:
        self.ranges = ranges
        self.grid = FineGrid()

    def add(self, x: F64) -> None:
        """Count those of some numbers, [n], that are in the ranges."""
        self.grid.add(picked(x, self.ranges))

    def merge(self, other: Refinement) -> None:
        """Count what the other has counted, too."""
        self.grid.merge(other.grid)


def joined(ranges: Sequence[U64]) -> U64:
    """All of these ranges, each [n, 2], as disjoint ascending ones; of two that overlap, one holds the other."""
    every = np.concatenate([*ranges, np.empty((0, 2), np.uint64)])
    every = every[np.lexsort((~every[:, 1], every[:, 0]))]  # of those that begin alike, the widest first
    reached = np.maximum.accumulate(every[:, 1])
    first = np.append(True, every[1:, 0] > reached[:-1])[: len(every)]
    return np.ascontiguousarray(every[first])
