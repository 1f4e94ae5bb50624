"""What it costs to draw random numbers for rows: by `RowGenerator`, and by a generator for each row.

    python benchmarks/draws.py

Processor time, the least of five runs. Then that of a loader with a transform that returns its rows, without and with
`random=True`, and with `on_error="skip"`, whose rows carry their places, with and without rows that fail.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import RowErrors, RowGenerator, Transform, stream

ROWS = 1 << 20
FEW = 1000  # rows for which a generator is made


def best(call: Callable[[], Any], times: int = 5) -> float:
    """The seconds of the fastest call."""
    found = []
    for _ in range(times):
        begin = process_time()
        call()
        found.append(process_time() - begin)
    return min(found)


def draws() -> None:
    """Nanoseconds a row of each kind of draw."""
    rng = RowGenerator.seeded(0, ROWS)
    some = rng.take(slice(0, ROWS // 16))
    for name, call, rows in (
        ("random()", rng.random, ROWS),
        ("integers(1000)", lambda: rng.integers(1000), ROWS),
        ("normal()", rng.normal, ROWS),
        ("choice(10)", lambda: rng.choice(10), ROWS),
        ("random(16)", lambda: some.random(16), ROWS // 16),
        ("normal(shape=16)", lambda: some.normal(shape=16), ROWS // 16),
        ("permutation(16)", lambda: some.permutation(16), ROWS // 16),
        ("generator(row).random()", lambda: [rng.generator(row).random() for row in range(FEW)], FEW),
        ("numpy default_rng(seed).random()", lambda: [np.random.default_rng(row).random() for row in range(FEW)], FEW),
        ("random.Random(seed).random()", lambda: [random.Random(row).random() for row in range(FEW)], FEW),
    ):
        print(f"{name:36} {best(call) / rows * 1e9:10,.0f} ns a row")


def same(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Its rows."""
    return rows


def drawing(rows: pa.RecordBatch, rng: RowGenerator) -> pa.RecordBatch:
    """Its rows, one number of which is drawn."""
    return rows.set_column(1, "x", pa.array(rng.random()))


def failing(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Its rows, of which one in a thousand fails."""
    if (np.asarray(rows.column("id")) % 1000 == 0).any():
        raise ValueError("a bad row")
    return rows


def knowing(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same, by a function that knows which."""
    bad = np.flatnonzero(np.asarray(rows.column("id")) % 1000 == 0).tolist()
    if bad:
        raise RowErrors({row: ValueError("a bad row") for row in bad})
    return rows


def loaders(folder: str) -> None:
    """Nanoseconds a row of a whole pass."""
    table = pa.table({"id": np.arange(ROWS), "x": np.random.default_rng(0).random(ROWS)})
    pq.write_table(table, Path(folder, "a.parquet"), row_group_size=1 << 16)
    for name, transform in (
        ("transform", same),
        ("random=True", Transform(drawing, random=True)),
        ("on_error='skip', none fails", Transform(same, on_error="skip")),
        ("one in 1,000 fails", Transform(failing, on_error="skip")),
        ("the same, by RowErrors", Transform(knowing, on_error="skip")),
    ):
        loader = stream(folder, transform=transform, batch_size=4096, num_workers=0)
        print(f"loader: {name:28} {best(lambda: list(loader)) / ROWS * 1e9:10,.1f} ns a row")  # noqa: B023


if __name__ == "__main__":
    draws()
    with tempfile.TemporaryDirectory() as folder:
        loaders(folder)
