"""Copies of rows by the class they belong to: counted when a segment is decoded, made once rows are filtered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.subsets.copies import ClassDraw, Copies, Weights

COPIES = "\0copies"  # the column of counts, which no file can name


@dataclass(frozen=True)
class ClassCopies:
    """How many copies of its rows each class gets; picklable.

    Attributes:
        column: the column of labels.
        labels: those with a weight, of the column's type; one may be null.
        weights: of these labels; all others have 1.
        seed: of the draws.
    """

    column: str
    labels: pa.Array
    weights: tuple[float, ...]
    seed: int

    def weights_of(self, labels: pa.ChunkedArray) -> Weights:
        """The weight of each row, float64 [rows]."""
        kind = labels.type
        plain = labels.cast(kind.value_type) if pa.types.is_dictionary(kind) else labels
        places = pc.fill_null(pc.index_in(plain, value_set=self.labels), len(self.labels))
        return np.array([*self.weights, 1.0])[np.asarray(places, np.int64)]

    def counted(self, labels: pa.ChunkedArray, file: int, segment: int, epoch: int) -> Copies:
        """The number of copies of each row of a segment, int64 [rows]."""
        return ClassDraw(self.seed, epoch).copies(self.weights_of(labels), file, segment)


def copied(table: pa.Table, counts: Sequence[int]) -> tuple[pa.Table, list[int]]:
    """The copies of all rows, without the column of counts, and how many each of `counts` consecutive rows have."""
    copies = table.column(COPIES).to_numpy()
    ends = np.concatenate([[0], np.cumsum(copies)])
    made = np.diff(ends[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])]).tolist()
    rows = table.drop_columns([COPIES])
    if (copies == 1).all():
        return rows, made
    return rows.take(as_arrow(np.repeat(np.arange(len(copies)), copies))), made
