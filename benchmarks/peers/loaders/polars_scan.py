"""Polars: batches of a scan; with shuffle, each file is read and permuted."""

from pathlib import Path
from typing import Any

import polars as pl
import torch

from loaders.arrow_tensors import column_tensor


def tensors(frame: pl.DataFrame) -> dict[str, Any]:
    return {series.name: _tensor(series) for series in frame}


def _tensor(series: pl.Series) -> Any:
    if series.dtype.is_numeric() and not series.dtype.is_decimal():
        return torch.from_numpy(series.to_numpy(writable=True))
    return column_tensor(series.to_arrow())


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    files = sorted(folder.glob("*.parquet"))
    if not shuffle:
        yield from map(tensors, pl.scan_parquet(files).collect_batches(chunk_size=rows, maintain_order=True))
        return
    for file in files:
        frame = pl.read_parquet(file).sample(fraction=1.0, shuffle=True)
        yield from map(tensors, frame.iter_slices(rows))
