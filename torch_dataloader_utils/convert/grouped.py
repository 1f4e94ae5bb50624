"""Columns whose rows are groups of rows of another column: the batches of a block, if they differ in size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Header, Memory, concat, rebuild
from torch_dataloader_utils.kernels import join_offsets


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Groups of rows: group i is rows `[offsets[i], offsets[i + 1])` of `column`, which holds no others.

    Attributes:
        column: the rows.
        offsets: int64 [groups + 1], from 0.
    """

    column: Column
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.column.nbytes + self.offsets.nbytes

    def slice(self, first: int, last: int) -> Grouped:
        """Groups `[first, last)`, as views."""
        offsets = self.offsets[first : last + 1]
        return Grouped(self.column.slice(int(offsets[0]), int(offsets[-1])), offsets - offsets[0])

    @staticmethod
    def concat(columns: Sequence[Grouped]) -> Grouped:
        """The groups of all `columns` in fresh memory."""
        return Grouped(
            concat([column.column for column in columns]), join_offsets([column.offsets for column in columns])
        )

    def take(self, places: Array, memory: Memory | None = None) -> Grouped:
        """The groups with these numbers (integers [m]), in fresh memory."""
        counts = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][places] - offsets[:-1], counts)
        return Grouped(self.column.take(rows), offsets)

    def parts(self) -> tuple[Header, list[Array]]:
        """A header with that of the rows, and the arrays of both."""
        header, arrays = self.column.parts()
        return (_grouped, header), [self.offsets, *arrays]


def _grouped(offsets: Array, *parts: Any) -> Grouped:
    """The column whose `parts()` held these arrays and this header, the last of `parts`."""
    return Grouped(rebuild(parts[-1], parts[:-1]), offsets)
