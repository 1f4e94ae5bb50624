"""Rows, segments and files chosen by their place: the file's name and the row's number in it. No position is stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.model import Segment
from torch_dataloader_utils.subsets.choice import Choice
from torch_dataloader_utils.subsets.hashing import number_hash


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows of one file that a choice holds.

    Attributes:
        choice: the choice.
        key: the hash of the file's name.
        counted: whether the file records how many rows its segments have.
    """

    choice: Choice
    key: int
    counted: bool

    def mask(self, segment: Segment, rows: int) -> npt.NDArray[np.bool_]:
        """Which rows of a segment are chosen, bool [rows].

        A row has its number in the file as written; where that is known only after reading all rows before it, its
        number in the segment.

        Args:
            segment: of the file's own layout.
            rows: its number of rows.
        """
        key, first = (self.key, segment.first_row) if self.counted else (number_hash(self.key, segment.number), 0)
        return np.concatenate([np.zeros(0, np.bool_), *self.choice.rows(key, first, rows)])
