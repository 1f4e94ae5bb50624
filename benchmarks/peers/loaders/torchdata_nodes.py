"""torchdata.nodes: row groups are decoded by two threads, and cut into batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, Unbatcher

from loaders.arrow_tensors import tensors

THREADS = 2


class Decoded:
    """The batches of one row group."""

    def __init__(self, rows: int, shuffle: bool) -> None:
        self.rows, self.shuffle = rows, shuffle

    def __call__(self, task: tuple[Path, int]) -> list[dict[str, Any]]:
        table = pq.ParquetFile(task[0]).read_row_group(task[1], use_threads=False)
        if self.shuffle:
            table = table.take(np.random.permutation(len(table)))
        return [tensors(batch) for batch in table.combine_chunks().to_batches(max_chunksize=self.rows)]


def batches(folder: Path, rows: int, workers: int, shuffle: bool):
    files = sorted(folder.glob("*.parquet"))
    tasks = [(file, group) for file in files for group in range(pq.read_metadata(file).num_row_groups)]
    if shuffle:
        np.random.shuffle(tasks)
    node = ParallelMapper(IterableWrapper(tasks), Decoded(rows, shuffle), num_workers=THREADS, method="thread")
    return Loader(Unbatcher(node))
