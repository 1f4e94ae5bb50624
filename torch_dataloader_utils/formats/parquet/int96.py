"""INT96 timestamps: pyarrow silently wraps around those that do not fit into 64-bit nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import pc

# INT96 columns are read again in this unit, which can represent every INT96 value with a calendar date.
COARSE = "ms"
_MOST = (2**63 - 1) // 10**6


def int96_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> frozenset[str]:
    """The file's top-level columns that contain INT96 values."""
    leaves = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    paths = [leaf.path.split(".") for leaf in leaves if leaf.physical_type == "INT96"]
    # A name may contain dots itself.
    beginnings = {".".join(path[:length]) for path in paths for length in range(1, len(path) + 1)}
    return frozenset(beginnings.intersection(schema.names))


def check_coarse(name: str, column: pa.ChunkedArray) -> None:
    """Check that the times of a column in milliseconds fit into 64-bit nanoseconds.

    Raises:
        NotImplementedError: one does not; the message names the column and a remedy.
    """
    for leaf in (leaf for chunk in column.chunks for leaf in _timestamps(chunk)):
        bounds = pc.min_max(leaf.cast(pa.int64())).as_py()
        if bounds["min"] is not None and (bounds["min"] <= -_MOST or bounds["max"] >= _MOST):
            raise NotImplementedError(
                f"column {name} has INT96 timestamps outside the years 1677 to 2262, which pyarrow cannot represent in "
                "nanoseconds. Leave it out with columns=, or rewrite the file with microseconds."
            )


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """The timestamps in a column or its children."""
    kind = array.type
    if pt.is_timestamp(kind):
        yield array
    elif pt.is_struct(kind):
        for field in array.flatten():
            yield from _timestamps(field)
    elif pt.is_map(kind):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif pt.is_nested(kind):
        yield from _timestamps(array.flatten())
