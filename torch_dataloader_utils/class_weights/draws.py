"""How many copies of a row an epoch delivers: the whole part of its weight, and one more by a keyed draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.hashing import name_hash, number_hash, number_hashes

Weights: TypeAlias = npt.NDArray[np.float64]
Copies: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassDraw:
    """The draws of an epoch.

    Attributes:
        seed: another seed makes other draws.
        epoch: the epoch.
    """

    seed: int
    epoch: int

    def copies(self, weights: Weights, file: int, segment: int) -> Copies:
        """The number of copies of each row of a segment, int64 [rows].

        Args:
            weights: of all rows of the segment, float64 [rows].
            file: the hash of the file's name.
            segment: the segment's number in the file.
        """
        if not len(weights):
            return np.zeros(0, np.int64)
        key = number_hash(name_hash("class_weights", self.seed, self.epoch, file), segment)
        hashes = np.concatenate(list(number_hashes(key, 0, len(weights))))
        whole = np.floor(weights)
        # Of 53 bits, so that the number is exact: below 1, and 0 as likely as any other.
        drawn = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53 < weights - whole
        copies: Copies = whole.astype(np.int64) + drawn
        return copies
