"""Lance: its own format, and its own torch dataset; it shuffles the order of batches."""

from pathlib import Path

import lance
import pyarrow.dataset as ds
from lance.sampler import ShardedBatchSampler
from lance.torch.data import LanceDataset, get_safe_loader


def prepare(folder: Path, target: Path) -> None:
    lance.write_dataset(ds.dataset(folder).scanner().to_reader(), target / "table.lance")


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    sampler = ShardedBatchSampler(0, 1, randomize=True) if shuffle else None
    data = LanceDataset(str(folder / "table.lance"), batch_size=rows, sampler=sampler)
    return get_safe_loader(data, num_workers=workers, batch_size=None) if workers else data
