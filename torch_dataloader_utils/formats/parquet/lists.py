"""How many values the lists of a column hold, from a footer."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq


def list_values(metadata: pq.FileMetaData, groups: Sequence[int], name: str) -> list[int] | None:
    """The number of values in a column of lists, for each of these row groups; None if statistics do not say.

    A column chunk has an entry for each value, and one for each null or empty list. Entries that are no value count as
    nulls.

    Args:
        metadata: the footer.
        groups: numbers of row groups.
        name: of the column.
    """
    leaves = [leaf for leaf in range(metadata.num_columns) if metadata.schema.column(leaf).path.startswith(f"{name}.")]
    if len(leaves) != 1 or metadata.schema.column(leaves[0]).max_repetition_level != 1:
        return None
    chunks = [metadata.row_group(group).column(leaves[0]) for group in groups]
    known = [chunk.statistics for chunk in chunks]
    if any(statistics is None or not statistics.has_null_count for statistics in known):
        return None
    return [chunk.num_values - statistics.null_count for chunk, statistics in zip(chunks, known, strict=True)]
