"""Ray Data on this machine."""

import logging
from pathlib import Path

import ray

BUFFER = 200_000  # rows of the local shuffle buffer


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    ray.init(logging_level=logging.ERROR, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_parquet(sorted(map(str, folder.glob("*.parquet"))))
    options = {"local_shuffle_buffer_size": BUFFER} if shuffle else {}
    if folder.name == "text":
        return data.iter_batches(batch_size=rows, **options)  # strings are no tensors
    return data.iter_torch_batches(batch_size=rows, **options)
