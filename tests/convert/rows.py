"""Converted columns as plain values."""

import itertools
from typing import Any

from torch_dataloader_utils.convert.columns import Column, Dense, Ragged


def rows_of(column: Column) -> list[Any]:
    """A column's rows as plain values."""
    if isinstance(column, Dense):
        return column.array.tolist()
    if isinstance(column, Ragged):
        bounds = (column.offsets - column.offsets[0]).tolist()
        return [column.values[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    return column.to_list()
