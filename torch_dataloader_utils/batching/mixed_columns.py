"""Puts the rows of several columns in the order of mixed batches: each batch has some rows of every column.

Consecutive batches with the same numbers of rows are copied at once, as arrays of [batches, rows].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Column, Dense, concat
from torch_dataloader_utils.kernels import spread

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows of one column in consecutive batches of the same composition.

    Attributes:
        column: the index of the column.
        source: its first row.
        batches: the number of batches.
        rows: its rows in each of them.
        target: the first row of the first of these batches.
        offset: the place of its rows in each batch.
        size: rows per batch.
    """

    column: int
    source: int
    batches: int
    rows: int
    target: int
    offset: int
    size: int


def mixing_copies(quotas: npt.NDArray[np.int64]) -> list[Copy]:
    """What is copied for batches with these numbers of rows of each column, int64 [batches, columns]."""
    changes = np.flatnonzero((quotas[1:] != quotas[:-1]).any(axis=1)) + 1
    taken, copies, target = [0] * quotas.shape[1], [], 0
    for first, last in zip([0, *changes.tolist()], [*changes.tolist(), len(quotas)], strict=True):
        rows_of_each, offset, batches = quotas[first].tolist(), 0, last - first
        size = sum(rows_of_each)
        for column, rows in enumerate(rows_of_each):
            if rows:
                copies.append(Copy(column, taken[column], batches, rows, target, offset, size))
            taken[column] += batches * rows
            offset += rows
        target += batches * size
    return copies


def mixed_column(columns: Sequence[Column], copies: Sequence[Copy], memory: Array) -> Column:
    """The rows of all columns in the order of their batches; `Dense` ones in `memory` (uint8, of the same size)."""
    arrays = [column.array for column in columns if isinstance(column, Dense)]
    if len(arrays) < len(columns):
        return concat([columns[column].slice(first, last) for column, first, last in _slices(copies)])
    shape = arrays[0].shape[1:]
    out = memory.view(arrays[0].dtype).reshape(-1, *shape)
    for copy in copies:
        n = copy.batches * copy.rows
        rows = arrays[copy.column][copy.source : copy.source + n].reshape(copy.batches, copy.rows, *shape)
        batches = out[copy.target : copy.target + copy.batches * copy.size].reshape(copy.batches, copy.size, *shape)
        spread(rows, batches[:, copy.offset : copy.offset + copy.rows])
    return Dense(out)


def _slices(copies: Sequence[Copy]) -> list[tuple[int, int, int]]:
    """The rows of columns as (column, first, last), batch by batch."""
    placed = [
        (copy.target + batch * copy.size + copy.offset, copy.column, copy.source + batch * copy.rows, copy.rows)
        for copy in copies
        for batch in range(copy.batches)
    ]
    return [(column, first, first + rows) for _, column, first, rows in sorted(placed)]
