"""Which of the rows that are read are delivered, and how many copies of each: what features decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.reading.files import FileOpener

# Columns that no file can name: of counts, and of a mask of live rows.
COPIES, KEEP = "\0copies", "\0keep"


class RowMask(Protocol):
    """Chooses rows by their values; picklable.

    Attributes:
        columns: the columns that it uses.
    """

    columns: tuple[str, ...]

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows are chosen: Arrow bools [rows]."""


class RowCopies(Protocol):
    """How many copies rows get: counted when a segment is decoded, made once rows are filtered; picklable."""

    @property
    def column(self) -> str:
        """The column whose values decide."""

    @property
    def unlearned(self) -> bool:
        """Whether it depends on how many rows have each value; `learned` then returns it once that is known."""

    def learned(self, counts: Mapping[Any, int], name: str) -> RowCopies:
        """It, once it is known how many rows have each value, null left out; `name` is that of the data."""

    def counted(self, values: pa.ChunkedArray, file: int, segment: int, epoch: int) -> npt.NDArray[np.int64]:
        """The number of copies of each row of a segment, int64 [rows].

        Args:
            values: of the column, of all rows of the segment.
            file: the hash of the file's name.
            segment: the segment's number in the file.
            epoch: the epoch.
        """

    def report(self, files: Sequence[DataFile], opener: FileOpener, name: str) -> None:
        """Log what footers show to be odd about it, of these files; `name` is that of the data."""


def with_shares(table: pa.Table, shares: npt.NDArray[np.float32]) -> pa.Table:
    """The rows with how often each is drawn on average, float32 [rows]."""
    place = table.column_names.index(SHARES)
    return table.set_column(place, table.schema.field(place), as_arrow(shares))


def kept(table: pa.Table, counts: Sequence[int]) -> tuple[pa.Table, list[int]]:
    """The live rows, without the mask, and how many of each of `counts` consecutive rows are live."""
    keep = table.column(KEEP).combine_chunks()
    ends = np.cumsum([0, *counts])
    live = [keep.slice(first, count).true_count for first, count in zip(ends.tolist(), counts, strict=False)]
    return table.drop_columns([KEEP]).filter(keep), live


def copied(table: pa.Table, counts: Sequence[int]) -> tuple[pa.Table, list[int]]:
    """The copies of all rows, without the column of counts, and how many each of `counts` consecutive rows have."""
    copies = table.column(COPIES).to_numpy()
    ends = np.concatenate([[0], np.cumsum(copies)])
    made = np.diff(ends[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])]).tolist()
    rows = table.drop_columns([COPIES])
    if (copies == 1).all():
        return rows, made
    return rows.take(as_arrow(np.repeat(np.arange(len(copies)), copies))), made
