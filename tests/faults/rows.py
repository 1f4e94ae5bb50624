"""The table that rounds of faults read, and what a reader of it must deliver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import Processes, StructuredDataset

FILES, ROWS_OF_FILE, BATCH = 40, 100, 50
ROWS = FILES * ROWS_OF_FILE
# Every way to run the reading, by name. The default, a fork server, imports what workers need before they start.
MODES: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "pool": {"num_workers": None},
    "threads": {"num_workers": 2},
    "processes by fork": {"num_workers": 2, "worker_mode": Processes(context="fork")},
    "processes by forkserver": {"num_workers": 2, "worker_mode": "processes"},
    "processes by spawn": {"num_workers": 2, "worker_mode": Processes(context="spawn")},
}


def table(number: int = 0, rows: int = ROWS_OF_FILE) -> pa.Table:
    """The rows of file `number`: `id` counts through all files."""
    ids = range(number * rows, (number + 1) * rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {row}" for row in ids]})


def write_files(folder: Path, files: int = FILES) -> Path:
    """Parquet files with the ids 0, 1, ... in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(table(number), folder / f"{number:03}.parquet")
    return folder


def create(path: Any, mode: str = "threads", **options: Any) -> tuple[Any, Any]:
    """A loader of the table, with its dataset."""
    given = {"batch_size": BATCH, "shuffle": "splits", "num_ranks": 1, "rank": 0, **MODES[mode], **options}
    return StructuredDataset.create_dataloader(path, **given)


def ids_of(batches: Any) -> list[int]:
    """The ids of batches, in the order of their delivery."""
    return [row for batch in batches for row in batch["id"].tolist()]
