"""How fast batches come, as a ratio to the raw decode of the same files in the same run.

    python benchmarks/throughput.py [--data FOLDER] [--rounds 5] [--tables wide narrow text embed]

LIMIT is the same row groups decoded by `ParquetFile.read_row_group` on as many threads as there are cores, and
dropped. Every figure is the median over rounds of (rows/s of the loader) / (rows/s of the LIMIT run right before it),
so that a machine whose speed drifts does not matter. "hand-written" is the IterableDataset that a user would write
today; it runs for a few seconds a round, not for the whole pass. Memory and the time to the first batch are measured
in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tables import TABLES, write
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_dataloader_utils import StructuredDataset

CORES = len(os.sched_getaffinity(0))
SIZES = (1024, 16384)
HAND_WRITTEN_SECONDS = 3.0


def limit(folder: Path, by_column: bool = False) -> float:
    """Rows/s of decoding every row group on all cores, dropped at once."""
    files = sorted(folder.glob("*.parquet"))
    footers = {file: pq.read_metadata(file) for file in files}
    groups = iter([(file, group) for file in files for group in range(footers[file].num_row_groups)])
    lock = threading.Lock()

    def work() -> None:
        opened: dict[Path, pq.ParquetFile] = {}
        while True:
            with lock:
                task = next(groups, None)
            if task is None:
                return
            file, group = task
            reader = opened.get(file)
            if reader is None:
                reader = opened[file] = pq.ParquetFile(file, metadata=footers[file], pre_buffer=False)
            for columns in [[name] for name in reader.schema_arrow.names] if by_column else [None]:
                reader.read_row_group(group, columns=columns, use_threads=False)

    threads = [threading.Thread(target=work) for _ in range(CORES)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(footer.num_rows for footer in footers.values()) / (time.perf_counter() - begin)


class HandWritten(IterableDataset[Any]):
    """What one writes without a library: files by worker, a tensor per column and batch."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files, self.size = sorted(folder.glob("*.parquet")), size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=self.size):
                yield {name: self.convert(batch.column(name)) for name in batch.schema.names}

    @staticmethod
    def convert(column: Any) -> Any:
        if pa.types.is_fixed_size_list(column.type):
            return torch.from_numpy(np.stack(column.to_numpy(zero_copy_only=False)))
        if pa.types.is_primitive(column.type):
            return torch.from_numpy(column.to_numpy().copy())
        return column.to_pylist()  # strings and ragged lists: Python objects


def batch_rows(batch: dict[str, Any]) -> int:
    """The rows of a batch of any table here (each has a plain column)."""
    return next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))


def rate(batches: Any, seconds: float = float("inf")) -> float:
    """Rows/s of a whole pass, the start of the iteration included, or of its first `seconds`."""
    begin, rows = time.perf_counter(), 0
    for batch in batches:
        rows += batch_rows(batch)
        if time.perf_counter() - begin > seconds:
            break
    return rows / (time.perf_counter() - begin)


def ours(folder: Path, size: int, **options: Any) -> Any:
    """Our loader with split shuffle."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), batch_size=size, shuffle=True, strings="bytes", **options
    )
    return loader


def contenders(folder: Path, size: int, hand_written: bool) -> Iterator[tuple[str, Callable[[], float]]]:
    """Name and measurement of each way to get batches."""
    threads = ours(folder, size)
    yield "threads", lambda: rate(threads)
    processes = ours(folder, size, num_workers=CORES, worker_mode="process")
    rate(processes, 0.5)  # persistent workers: started before the first round
    yield f"{CORES} processes", lambda: rate(processes)
    inline = ours(folder, size, num_workers=0)
    yield "in-line", lambda: rate(inline)
    yield "LIMIT by column", lambda: limit(folder, by_column=True)
    if hand_written:
        plain = DataLoader(HandWritten(folder, size), batch_size=None)
        yield "hand-written", lambda: rate(plain, HAND_WRITTEN_SECONDS)
        forked = DataLoader(HandWritten(folder, size), batch_size=None, num_workers=2)
        yield "hand-written, 2 workers", lambda: rate(forked, HAND_WRITTEN_SECONDS)


def measure(folder: Path, size: int, rounds: int, hand_written: bool) -> dict[str, float]:
    """Median ratio of each contender to the LIMIT run before it; LIMIT itself in million rows/s."""
    runs = list(contenders(folder, size, hand_written))
    ratios: dict[str, list[float]] = {name: [] for name, _ in runs}
    limits = []
    limit(folder)
    for _ in range(rounds):
        for name, run in runs:
            limits.append(limit(folder))
            ratios[name].append(run() / limits[-1])
    found = {name: statistics.median(values) for name, values in ratios.items()}
    return {"LIMIT, M rows/s": statistics.median(limits) / 1e6, **found}


def peak_bytes() -> int:
    """Peak resident memory of this process (Linux: ru_maxrss would count the parent's, too)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def fresh(folder: Path, size: int) -> None:
    """In a fresh process: seconds to the first batch, and peak memory above the imports after 1 and 3 epochs."""
    StructuredDataset.create_dataloader  # noqa: B018 - the last of the imports
    before = peak_bytes()
    begin = time.perf_counter()
    loader = ours(folder, size)
    first, peaks = 0.0, []
    for epoch in range(3):
        for _ in loader:
            first = first or time.perf_counter() - begin
        if epoch != 1:
            peaks.append((peak_bytes() - before) / 1e6)
    print(json.dumps({"first batch, s": first, "peak MB, 1 epoch": peaks[0], "peak MB, 3 epochs": peaks[1]}))


def in_fresh_process(folder: Path, size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--fresh", str(folder), "--sizes", str(size)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def as_markdown(results: dict[tuple[str, int], dict[str, float]]) -> str:
    """The results as a table, a row for each table and batch size."""
    names = list(dict.fromkeys(name for result in results.values() for name in result))
    lines = ["| table | B | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for (table, size), result in results.items():
        cells = [
            f"{result[name]:.0f}" if name.startswith("peak") else f"{result[name]:.3g}" if name in result else ""
            for name in names
        ]
        lines.append(f"| {table} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark")
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-hand-written", action="store_true", help="leave the slow comparison out")
    parser.add_argument("--fresh", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fresh:
        fresh(given.fresh, given.sizes[0])
        return
    # One thread for torch's own kernels: the loaders' threads use the cores. In a training process leave it alone.
    torch.set_num_threads(1)
    results = {}
    for table in given.tables:
        folder = write(table, given.data)
        for size in given.sizes:
            print(f"{table}, batches of {size} rows ...", file=sys.stderr, flush=True)
            found = measure(folder, size, given.rounds, not given.without_hand_written)
            results[table, size] = found | in_fresh_process(folder, size)
    print(f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print(as_markdown(results))


if __name__ == "__main__":
    main()
