"""This package with its optional engine for flat columns."""

from pathlib import Path

from loaders import ours


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    return ours.batches(folder, rows, workers, shuffle, format_options={"engine": "polars"})
