"""Daft, whose Arrow batches are converted; it shuffles all rows of a dataset."""

from pathlib import Path

import daft

from loaders.arrow_tensors import tensors


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    frame = daft.read_parquet(str(folder / "*.parquet"))
    if shuffle:
        frame = frame.with_column("order", daft.functions.random_int(0, 2**31)).sort("order").exclude("order")
    for batch in frame.into_batches(rows).to_arrow_iter():
        yield tensors(batch)
