"""INT96 timestamps: pyarrow silently wraps around those that do not fit into 64-bit nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.depth import types_in

# INT96 columns are read again in this unit, which can represent every INT96 value with a calendar date.
COARSE = "ms"
# The unit for columns that schema= declares in a coarser unit than nanoseconds.
MICRO = "us"
# An option with which the reader of a table's files rounds times down to microseconds: they are the table's unit.
FLOORED = "floored"


def int96_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> frozenset[str]:
    """The file's top-level columns that contain INT96 values."""
    leaves = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    paths = [leaf.path.split(".") for leaf in leaves if leaf.physical_type == "INT96"]
    # A name may contain dots itself.
    beginnings = {".".join(path[:length]) for path in paths for length in range(1, len(path) + 1)}
    return frozenset(beginnings.intersection(schema.names))


def declared_coarser(wanted: pa.Schema, name: str) -> bool:
    """Whether a column is wanted with timestamps in a coarser unit than nanoseconds, and none in these."""
    place = wanted.get_field_index(name)
    units = {kind.unit for kind in types_in(wanted.field(place).type) if pt.is_timestamp(kind)} if place >= 0 else set()
    return bool(units) and "ns" not in units


def check_coarse(name: str, column: pa.ChunkedArray, *, micro: bool = False) -> None:
    """Check that the times of a column in milliseconds fit into 64-bit nanoseconds, or microseconds (`micro`).

    Raises:
        NotImplementedError: one does not; the message names the column and a remedy.
    """
    for leaf in (leaf for chunk in column.chunks for leaf in _timestamps(chunk)):
        bounds = pc.min_max(leaf.cast(pa.int64())).as_py()
        most = (2**63 - 1) // (10**3 if micro else 10**6)
        if bounds["min"] is not None and (bounds["min"] <= -most or bounds["max"] >= most):
            raise NotImplementedError(
                f"column {name} has INT96 timestamps that 64-bit microseconds do not hold: leave it out with columns=."
                if micro
                else f"column {name} has INT96 timestamps outside the years 1677 to 2262, which nanoseconds do not "
                "hold. Declare it in microseconds with schema=, such as pa.timestamp('us'), or leave it out with "
                "columns=."
            )


def check_whole(name: str, micros: pa.ChunkedArray, nanos: pa.ChunkedArray) -> None:
    """Check that the times of a column in microseconds are those in nanoseconds, which may have wrapped around.

    Raises:
        NotImplementedError: one has a fraction of a microsecond.
    """
    pairs = zip(micros.chunks, nanos.chunks, strict=True)
    for coarse, fine in ((a, b) for one, other in pairs for a, b in zip(_times(one), _times(other), strict=True)):
        with np.errstate(over="ignore"):
            if (coarse * 1000 != fine).any():
                raise NotImplementedError(
                    f"column {name} has INT96 timestamps with fractions of a microsecond: schema= has to declare it in "
                    "nanoseconds."
                )


def _times(array: pa.Array) -> Iterator[np.ndarray[Any, Any]]:
    """The numbers of the timestamps in a column or its children, 0 for nulls."""
    for leaf in _timestamps(array):
        yield pc.fill_null(leaf.cast(pa.int64()), 0).to_numpy()


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
