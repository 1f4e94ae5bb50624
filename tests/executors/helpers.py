"""What runs in processes of its own: importable, so that it pickles."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_dataloader_utils import Processes

# Every way to run the reading. The worker processes are forked, which is quick.
DRIVERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "pool": {"num_workers": None},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "worker_mode": Processes(context="fork")},
}

# The drivers, and batches that are cut ahead of the loop for a device.
AND_AHEAD = DRIVERS | {"ahead": {"num_workers": 2, "device": "cpu"}}


def not_kept(driver: dict[str, Any]) -> dict[str, Any]:
    """The driver, whose worker processes end with each pass if it has any."""
    mode = driver.get("worker_mode")
    return driver | {"worker_mode": mode.replace(persistent=False)} if isinstance(mode, Processes) else driver


def write_table(folder: Path, files: int = 4, groups: int = 3, rows: int = 500) -> None:
    """Files with an int64 `id`, float32 `x`, bool `flag`, string `name`, ragged `items` and a vector column."""
    at = 0
    for number in range(files):
        tables = []
        for _ in range(groups):
            ids = np.arange(at, at + rows)
            at += rows
            tables.append(
                pa.table(
                    {
                        "id": ids,
                        "x": ids.astype(np.float32),
                        "flag": ids % 3 == 0,
                        "name": [None if row % 5 == 0 else f"row {row}" for row in ids],
                        "items": pa.array([list(range(row % 4)) for row in ids], pa.list_(pa.int16())),
                        "vector": pa.FixedSizeListArray.from_arrays(np.repeat(ids, 3).astype(np.float32), 3),
                        "pairs": pa.array([[("a", int(row))] for row in ids], pa.map_(pa.string(), pa.int64())),
                    }
                )
            )
        with pq.ParquetWriter(folder / f"part-{number}.parquet", tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)


class Broken(Exception):
    """An error of the user's own, with two arguments."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.row = row


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "x", pc.multiply(batch.column("x"), pa.scalar(2, pa.float32())))


def fail_at_1700(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 1700 in batch.column("id").to_pylist():
        raise Broken("no row 1700, please", 1700)
    return batch


def raise_unpicklable(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise _unpicklable()("cannot travel")
    return batch


def _unpicklable() -> type[Exception]:
    class Local(Exception):
        pass

    return Local


def kill_itself(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def sleep_at_1700(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 1700 in batch.column("id").to_pylist():
        time.sleep(2)
    return batch


def modules_without_torch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Puts into `x` whether torch is imported in this process."""
    import sys

    has_torch = np.full(batch.num_rows, float("torch" in sys.modules), np.float32)
    return batch.set_column(1, "x", pa.array(has_torch))


def wait_for_idle_threads() -> None:
    """Wait until the decode threads are done with what they are at, and wait for more, or have ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith("tdu-decode")}
        if all(frame.f_code.co_name == "wait" for ident, frame in sys._current_frames().items() if ident in ours):
            return
        time.sleep(0.01)


def as_lists(batch: Any) -> Any:
    """A batch as comparable plain values."""
    if isinstance(batch, dict):
        return {key: as_lists(value) for key, value in batch.items()}
    if isinstance(batch, pa.RecordBatch):
        return batch.to_pydict()
    return batch.tolist() if hasattr(batch, "tolist") else batch
