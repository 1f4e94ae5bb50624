"""Rows of similar length in batches with a budget of tokens, as arrays: one step per batch, none per row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.rows import I64, stable_order
from torch_dataloader_utils.seeding import permutation


@dataclass(frozen=True)
class Budget:
    """What a batch may hold.

    Attributes:
        tokens: the most of rows * longest row.
        rows: the most rows.
        multiple: lengths are rounded up to a multiple of it.
        long: rows that are over the budget: "single" makes a batch of each, "drop" leaves them out.
    """

    tokens: int
    rows: int
    multiple: int = 1
    long: str = "single"

    def padded(self, lengths: I64) -> I64:
        """The lengths, rounded up."""
        return -(-lengths // self.multiple) * self.multiple


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows in batches.

    Attributes:
        rows: the numbers of the rows, batch by batch, in the order of the stream within each, shape [kept rows].
        offsets: where batches begin and end in `rows`, shape [batches + 1].
    """

    rows: I64
    offsets: I64


def buckets_of(lengths: I64, budget: Budget, key: int, order: I64 | None = None) -> RowGroups:
    """The rows, sorted by length and cut into batches; the batches are permuted.

    Args:
        lengths: of each row, at least 0, shape [n].
        budget: of a batch.
        key: of the permutation of the batches.
        order: the rows in the order of the stream, shape [n]; None for 0, 1, 2, ...
    """
    stream = np.arange(len(lengths)) if order is None else order
    sizes = budget.padded(lengths)[stream]
    if budget.long == "drop":
        stream, sizes = stream[sizes <= budget.tokens], sizes[sizes <= budget.tokens]
    longest_first = stable_order(sizes.max(initial=0) - sizes)
    ends = _ends(sizes[longest_first], budget)
    counts = np.diff(ends)
    numbers = np.empty(len(sizes), np.int64)
    places = permutation(len(counts), key).astype(np.int64)  # of each batch in the order of delivery
    numbers[longest_first] = np.repeat(places, counts)
    delivered = np.empty(len(counts), np.int64)
    delivered[places] = counts
    return RowGroups(stream[stable_order(numbers)], np.concatenate([[0], np.cumsum(delivered)]).astype(np.int64))


def _ends(falling: I64, budget: Budget) -> I64:
    """Where batches begin and end in rows of falling length: each takes as many as its first, its longest, allows."""
    allowed = np.clip(budget.tokens // np.maximum(falling, 1), 1, budget.rows)
    ends, at = [0], 0
    while at < len(falling):
        at = min(len(falling), at + int(allowed[at]))
        ends.append(at)
    return np.array(ends, np.int64)
