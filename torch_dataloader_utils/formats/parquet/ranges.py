"""The value ranges of a row group's columns, from its statistics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def row_group_ranges(metadata: pq.FileMetaData, number: int, names: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """The (minimum, maximum) of each of these top-level columns whose statistics have them."""
    group, ranges = metadata.row_group(number), {}
    for leaf in range(metadata.num_columns):
        chunk = group.column(leaf)
        name = chunk.path_in_schema
        if name in names and metadata.schema.column(leaf).name == name:  # else a field of a struct
            ends = _range(chunk)
            if ends is not None:
                ranges[name] = ends
    return ranges


def _range(chunk: pq.ColumnChunkMetaData) -> tuple[Any, Any] | None:
    try:
        known = chunk.statistics
        ends = (known.min, known.max) if known is not None and known.has_min_max else None
    except (pa.ArrowException, ValueError, OverflowError, ImportError):  # values that Python cannot represent
        return None
    # Bytes may belong to a type with another order (float16).
    return None if ends is None or isinstance(ends[0], bytes) else ends
