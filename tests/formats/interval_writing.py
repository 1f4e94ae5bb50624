"""Writes the interval types of which pyarrow has no arrays, through Arrow's C interface."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pyarrow as pa


class _Schema(ctypes.Structure):
    """A schema of the C interface."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


def write_intervals(path: Path) -> None:
    """An IPC file of the columns id, months, days, inner (a struct with months) and word; four rows."""
    months = pa.array([3, None, 5, 7], pa.int32())
    batch = pa.record_batch(
        {
            "id": [0, 1, 2, 3],
            "months": months,
            "days": pa.array([1, 2, None, 4], pa.int64()),
            "inner": pa.StructArray.from_arrays([months], ["months"]),
            "word": ["a", "b", "c", "d"],
        }
    )
    schema, array = _Schema(), (ctypes.c_char * 256)()
    batch._export_to_c(ctypes.addressof(array), ctypes.addressof(schema))
    in_months, in_days = b"tiM", b"tiD"
    schema.children[1].contents.format = in_months
    schema.children[2].contents.format = in_days
    schema.children[3].contents.children[0].contents.format = in_months
    with_intervals = pa.RecordBatch._import_from_c(ctypes.addressof(array), ctypes.addressof(schema))
    with pa.ipc.new_file(str(path), with_intervals.schema) as writer:
        writer.write_batch(with_intervals)
        writer.write_batch(with_intervals)
