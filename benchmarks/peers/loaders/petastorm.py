"""petastorm: its reader of batches and its BatchedDataLoader."""

from pathlib import Path

import petastorm
from petastorm.pytorch import BatchedDataLoader


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    pool = {"reader_pool_type": "process", "workers_count": workers} if workers else {"workers_count": 2}
    reader = petastorm.make_batch_reader(f"file://{folder}", num_epochs=1, shuffle_row_groups=shuffle, **pool)
    capacity = {"shuffling_queue_capacity": 200_000} if shuffle else {}
    return BatchedDataLoader(reader, batch_size=rows, **capacity)
