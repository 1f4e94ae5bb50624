"""Grain: its Parquet source, rows batched by it."""

from pathlib import Path

import grain
from grain.experimental import ParquetIterDataset

WINDOW = 10_000  # rows of the shuffle window


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    files = sorted(map(str, folder.glob("*.parquet")))
    sources = [ParquetIterDataset(file) for file in files]
    data = grain.experimental.InterleaveIterDataset(sources, cycle_length=1) if len(sources) > 1 else sources[0]
    if shuffle:
        data = grain.experimental.WindowShuffleIterDataset(data, window_size=WINDOW, seed=0)
    data = data.batch(rows, **({"batch_fn": list} if folder.name == "text" else {}))
    return data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=workers)) if workers else data
