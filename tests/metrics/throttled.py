"""Data whose reading, transform or consumer is slow by a known time, so that sums are large compared with noise."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from torch_dataloader_utils import Processes, StructuredDataset

FILES, ROWS = 12, 100  # each file is one row group, and a block
TOTAL, BLOCKS = FILES * ROWS, FILES
NAP = 0.03  # seconds
PROCESS = {"worker_mode": Processes(context="fork")}


def write(path: Path) -> Path:
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"id": ids, "x": ids * 0.5}), path / f"{number:02}.parquet")
    return path


def make(path: Any, **options: Any) -> tuple[Any, Any]:
    """A loader of these files."""
    given = {"batch_size": 50, "split_rows": ROWS, "num_ranks": 1, "rank": 0}
    return StructuredDataset.create_dataloader(str(path), **given | options)


def slow_transform(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(NAP if batch.num_rows else 0)
    return batch


def slow_collate(batch: Any) -> Any:
    time.sleep(NAP)
    return batch


class SlowStore(DirFileSystem):  # type: ignore[misc]
    """Each request takes a while."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        time.sleep(NAP)
        return super().cat_file(path, start=start, end=end, **options)


def remote(folder: Path, store: type[DirFileSystem] = DirFileSystem, **options: Any) -> tuple[Any, Any]:
    """The same loader, for which the folder is in a remote store."""
    return make(folder.name, filesystem=store(str(folder.parent), LocalFileSystem()), **options)
