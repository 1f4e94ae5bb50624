"""Parts of documents in the order in which their tokens are delivered one after another, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.rows import I64


@dataclass(frozen=True, eq=False)
class Fragments:
    """Runs of consecutive tokens of one document each; none is empty.

    Attributes:
        starts: the place of each fragment's first token among all tokens that were read, int64 [fragments].
        lengths: its tokens, int64 [fragments].
    """

    starts: I64
    lengths: I64

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of_documents(cls, offsets: I64) -> Fragments:
        """All of these documents that are not empty; `offsets` are the places of their tokens, [documents + 1]."""
        lengths = np.diff(offsets)
        some = np.flatnonzero(lengths)
        if len(some) == len(lengths):
            return cls(offsets[:-1], lengths)
        return cls(offsets[some], lengths[some])

    @staticmethod
    def joined(parts: Sequence[Fragments]) -> Fragments:
        """The fragments of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, np.int64)
        return Fragments(
            np.concatenate([empty, *(part.starts for part in parts)]),
            np.concatenate([empty, *(part.lengths for part in parts)]),
        )

    @property
    def tokens(self) -> int:
        """The number of tokens of all fragments."""
        return int(self.lengths.sum())

    @property
    def ends(self) -> I64:
        """How many tokens have been delivered at the end of each fragment, int64 [fragments]."""
        return np.cumsum(self.lengths)

    def permuted(self, order: Callable[[int], I64]) -> Fragments:
        """The fragments in another order; `order` maps their number to a permutation."""
        places = order(len(self))
        return Fragments(self.starts[places], self.lengths[places])

    def cut(self, first: int, last: int) -> Fragments:
        """The tokens with places `[first, last)` in the order of delivery; a cut document leaves a shorter fragment."""
        if first >= last or not len(self):
            return Fragments(self.starts[:0], self.lengths[:0])
        ends = self.ends
        low, high = int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last, "left")) + 1
        starts, lengths = self.starts[low:high].copy(), self.lengths[low:high].copy()
        skipped = first - int(ends[low] - self.lengths[low])
        lengths[-1] -= int(ends[low:high][-1]) - last
        starts[0] += skipped
        lengths[0] -= skipped
        return Fragments(starts, lengths)

    def run(self) -> tuple[int, int] | None:
        """The places `[first, last)` of all tokens if each fragment follows the one before; None otherwise."""
        if not len(self):
            return 0, 0
        if (self.starts[1:] != self.starts[:-1] + self.lengths[:-1]).any():
            return None
        return int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])

    def sources(self) -> tuple[I64, I64]:
        """Offsets that cut the tokens at the borders of fragments, and the number of each fragment's piece.

        No two fragments may share tokens. A piece between two fragments, possibly empty, belongs to none.
        """
        stored = np.argsort(self.starts)
        offsets = np.stack([self.starts[stored], (self.starts + self.lengths)[stored]], axis=1).ravel()
        places = np.empty(len(self), np.int64)
        places[stored] = np.arange(len(self)) * 2
        return offsets, places
