"""Not a loader: Polars decodes one file after another, on all cores."""

from pathlib import Path

import polars as pl


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    for file in sorted(folder.glob("*.parquet")):
        yield len(pl.read_parquet(file))
