"""About how many different values a column has, of the least of their hashes: in 32 KiB, and mergeable."""

from __future__ import annotations

from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import U64
from torch_dataloader_utils.kernels.hashes import lesser_int_hashes


class LeastHashes:
    """The least of the hashes seen, each once: a function of the set of values, never of their order, blocks or merges.

    Below `limit` different hashes, it holds all of them. Else the values number about (limit - 1) / (the greatest hash
    held, as a share of all): off by 1.6 % (one standard deviation). Threads may add to one object, which pickles.
    """

    limit: ClassVar[int] = 4096

    def __init__(self) -> None:
        self._lock = Lock()
        self._hashes: U64 = np.empty(0, np.uint64)  # ascending; replaced, never written to

    def add(self, hashes: U64) -> None:
        """See hashes of 64 bits, shape [n], as `schemas.value_hashes` makes them."""
        with self._lock:
            held = self._hashes
            if len(held) == self.limit:
                hashes = hashes[hashes < held[-1]]
            if len(held):
                places = np.minimum(np.searchsorted(held, hashes), len(held) - 1)
                hashes = hashes[held[places] != hashes]
            if len(hashes):
                found = np.sort(np.concatenate([held, hashes]))  # np.unique takes ten times as long
                self._hashes = found[np.append(True, found[1:] != found[:-1])][: self.limit]

    def add_numbers(self, numbers: npt.NDArray[np.int64]) -> None:
        """See the hashes of whole numbers, or of the bits of others, shape [n], contiguous."""
        # If they differ, the least hashes of so many lie far below this.
        most = min(self._most(), (2**64 - 1) // max(len(numbers), 1) * 2 * self.limit)
        self.add(lesser_int_hashes(numbers, most))
        if self._most() > most:
            self.add(lesser_int_hashes(numbers, self._most()))

    def _most(self) -> int:
        """Greater hashes are not among the least; it never grows."""
        held = self._hashes
        return int(held[-1]) if len(held) == self.limit else 2**64 - 1

    def merge(self, other: LeastHashes) -> None:
        """See what another object has seen; it is not changed."""
        self.add(other._hashes)

    @property
    def exact(self) -> bool:
        """Whether it holds the hashes of all values."""
        return len(self._hashes) < self.limit

    @property
    def count(self) -> int:
        """The number of different values: exact if `exact`, else an estimate."""
        if self.exact:
            return len(self._hashes)
        return round((self.limit - 1) * 2.0**64 / (float(self._hashes[-1]) + 1))

    def to_array(self) -> U64:
        """The whole state: the hashes held, ascending, uint64 [n]."""
        return self._hashes.copy()

    @classmethod
    def from_array(cls, hashes: U64) -> Self:
        """The object with this state.

        Raises:
            ValueError: `to_array` never returns this.
        """
        fits = hashes.dtype == np.uint64 and hashes.ndim == 1 and len(hashes) <= cls.limit
        if not fits or (hashes[1:] <= hashes[:-1]).any():
            raise ValueError(f"expected at most {cls.limit} ascending hashes, uint64, each once")
        made = cls()
        made._hashes = hashes.copy()
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_array, (self._hashes,)

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self._hashes, other._hashes) if isinstance(other, LeastHashes) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes
