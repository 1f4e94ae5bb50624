"""What a user writes without a library: files shared among workers, a tensor per column and batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaders.arrow_tensors import tensors


class HandWritten(IterableDataset[Any]):
    """Rows are shuffled inside of each row group."""

    def __init__(self, folder: Path, rows: int, shuffle: bool) -> None:
        self.files, self.rows, self.shuffle = sorted(folder.glob("*.parquet")), rows, shuffle

    def __iter__(self):
        worker = get_worker_info()
        for file in self.files if worker is None else self.files[worker.id :: worker.num_workers]:
            opened = pq.ParquetFile(file)
            if not self.shuffle:
                yield from map(tensors, opened.iter_batches(batch_size=self.rows))
                continue
            for group in np.random.permutation(opened.num_row_groups):
                table = opened.read_row_group(int(group))
                table = table.take(np.random.permutation(len(table)))
                yield from map(tensors, table.to_batches(max_chunksize=self.rows))


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    return DataLoader(HandWritten(folder, rows, shuffle), batch_size=None, num_workers=workers)
