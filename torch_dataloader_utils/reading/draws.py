"""The column by which a transform draws numbers for rows: the hash of a row's place, epoch, lap and copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import GAMMA, MASK, mixed, name_hash
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import Piece, split_of
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.decoding import Numbers

DRAW = "\0draw"  # which no file can name


@dataclass(frozen=True)
class Draws:
    """By what the draws of a loader differ from those of another, and those of an epoch from those of the next.

    Attributes:
        seed: of the loader.
        splits: the number of all its splits, by which the orders of pieces differ from lap to lap.
    """

    seed: int
    splits: int = 1

    def of_piece(self, table: pa.Table, piece: Piece, epoch: int, copies: Numbers | None = None) -> pa.Table:
        """The rows of a piece of a split, with the column `DRAW`.

        Padding has the numbers of what it repeats; laps and copies have others.

        Args:
            table: the rows, with their places.
            piece: of a split.
            epoch: the epoch.
            copies: which copy of its row each is, as `copy_numbers` returns it; None: each is the only one.
        """
        return self._added(table, split_of(piece).file.part, epoch, piece.order // self.splits, copies)

    def of_scan(self, table: pa.Table, part: int) -> pa.Table:
        """The rows of a dataset that are read before any epoch, with the column `DRAW`."""
        return self._added(table, part, 0, 0, None)

    def _added(self, table: pa.Table, part: int, epoch: int, lap: int, copies: Numbers | None) -> pa.Table:
        places = table.column(PLACE).to_numpy()
        drawn = mixed(places + np.uint64(name_hash("draws", self.seed, part, epoch, lap)))
        if copies is not None:
            drawn[copies > 0] = mixed(
                drawn[copies > 0] + copies[copies > 0].astype(np.uint64) * np.uint64(GAMMA & MASK)
            )
        return table.append_column(DRAW, as_arrow(drawn))


def copy_numbers(rows: npt.NDArray[Any]) -> Numbers:
    """Of rows that follow one another and are equal: 0 for the first, 1 for the next, int64 [rows]."""
    begins = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), np.bool_), rows[1:] != rows[:-1]]))
    copies: Numbers = np.arange(len(rows)) - np.repeat(begins, np.diff(begins, append=len(rows)))
    return copies


def copies_of(table: pa.Table) -> Numbers:
    """Which copy of its row each is, of rows with their places, of which copies follow one another."""
    return copy_numbers(table.column(PLACE).to_numpy())
