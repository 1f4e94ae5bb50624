"""Dictionaries of a column that differ from row group to row group."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.schemas.dictionaries import decoded


def without_large_dictionaries(table: pa.Table, names: frozenset[str]) -> pa.Table:
    """The table with plain values in place of dictionaries that take Arrow longer to join than they save.

    Args:
        table: rows of some row groups.
        names: of columns that are read as dictionaries.
    """
    for place, name in enumerate(table.column_names):
        if name in names and _is_large(column := table.column(place)):
            table = table.set_column(place, name, decoded(column))
    return table


def _is_large(column: pa.ChunkedArray) -> bool:
    """Whether there are several dictionaries, with a word for every eight of the values, or more."""
    if column.num_chunks < 2:
        return False
    values = [chunk if pt.is_dictionary(chunk.type) else chunk.flatten() for chunk in column.chunks]
    words = {_identity(each.dictionary): len(each.dictionary) for each in values}
    return len(words) > 1 and 8 * sum(words.values()) > sum(map(len, values))


def _identity(array: pa.Array) -> tuple[int, ...]:
    """What arrays have alike that are the same memory."""
    return array.offset, len(array), *(0 if buffer is None else buffer.address for buffer in array.buffers())
