"""Puts columns of large shuffle windows in order in two steps, neither of which reaches beyond the caches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import library
from torch_dataloader_utils.kernels.rows import Array, Memory, addresses, fresh, width_of
from torch_dataloader_utils.seeding import WindowOrder

Counts: TypeAlias = npt.NDArray[np.uint32]


class BucketOrder:
    """The order of a window, by the compiled library: rows go into buckets as they arrive, then buckets are permuted.

    Args:
        library: the compiled functions.
        n: rows of the window; `WindowOrder.orders(n)`.
        key: the window's.
        runs: how many rows arrive together, which sum up to `n`; runs may arrive in any order.
    """

    def __init__(self, library: Any, n: int, key: int, runs: Sequence[int]) -> None:
        self._library = library
        self._order = order = WindowOrder.drawn(n, key, self._count, self._select)
        starts = np.concatenate([np.zeros(1, np.uint32), order.ends[:-1]])
        self._largest = int((order.ends - starts).max())
        self._runs: dict[tuple[int, int], Counts] = {}  # by first row and end: where the rows go in each bucket
        for first, last in pairwise(accumulate(runs, initial=0)):
            self._runs[first, last] = starts
            starts = starts + self._count(order.buckets[first:last], len(starts))

    @staticmethod
    def drawn(n: int, key: int, runs: Sequence[int]) -> BucketOrder | None:
        """The order of a window; None if it is small, or if there is no compiled library."""
        found = library()
        return BucketOrder(found, n, key, runs) if found is not None and WindowOrder.orders(n) else None

    def put(self, first: int, rows: Array, out: Array) -> None:
        """Put a run's rows into their buckets.

        Args:
            first: number of its first row.
            rows: shape [m, ...].
            out: shape [n, ...], of the same dtype, contiguous: the buckets.

        Raises:
            ValueError: the run has other rows than planned, for which there is no room.
        """
        if (first, first + len(rows)) not in self._runs:
            raise ValueError(f"{len(rows)} rows from row {first} of a window on were read, where others were planned.")
        rows, following = np.ascontiguousarray(rows), self._runs[first, first + len(rows)].copy()
        buckets = self._order.buckets[first : first + len(rows)]
        found = addresses(out, following, rows, buckets)
        self._library.tdu_into_buckets(*found, len(rows), width_of(rows), _wide(buckets))

    def permute(self, out: Array, memory: Memory | None = None) -> None:
        """Bring `out` into the window's order, once all runs were put; `memory` makes the array for one bucket."""
        width = width_of(out)
        spare = (memory or fresh)(self._largest * width)
        found = addresses(out, spare, self._order.local, self._order.ends)
        self._library.tdu_within_buckets(*found, len(self._order.ends), width)

    def places(self) -> npt.NDArray[np.uint32]:
        """The row that is delivered first, second, ...: uint32 [n], as `seeding.window_order` has them."""
        out = np.empty(len(self._order.local), np.uint32)
        for first, last in self._runs:
            self.put(first, np.arange(first, last, dtype=np.uint32), out)
        self.permute(out)
        return out

    def _count(self, buckets: npt.NDArray[Any], number: int) -> Counts:
        sizes = np.empty(number, np.uint32)
        self._library.tdu_count(*addresses(sizes, buckets), len(buckets), number, _wide(buckets))
        return sizes

    def _select(self, base: npt.NDArray[np.uint16], factor: int, shift: int, out: npt.NDArray[np.uint16]) -> None:
        self._library.tdu_select(*addresses(out, base), len(out), len(base), factor, shift)


def _wide(buckets: npt.NDArray[Any]) -> bool:
    """Whether buckets are numbered by uint16, not uint8."""
    return buckets.itemsize > 1
