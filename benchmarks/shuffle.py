"""Measures throughput and memory of row shuffle, by the number of open splits.

    python benchmarks/shuffle.py [--data FOLDER] [--rounds 5] [--tables wide narrow] [--open-splits 2 4 8 32]

As in throughput.py, a figure is the median over rounds of (rows/s of the loader) / (rows/s of the LIMIT run right
before it), each measured in a process of its own. Memory is the peak above the imports after two epochs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from tables import write
from throughput import CORES, SIZES, as_markdown, limit, ours, peak_memory, rate

from torch_dataloader_utils import Shuffle

BUFFER = 250_000
WORKERS: dict[str, dict[str, Any]] = {"threads": {}, "processes": {"num_workers": CORES, "worker_mode": "processes"}}


def measure(folder: Path, size: int, open_splits: int, workers: str, rounds: int) -> dict[str, float]:
    """Throughput relative to LIMIT, and the peak memory of this process in MB; call it in a fresh process."""
    torch.set_num_threads(1)  # as in throughput.py
    before = peak_memory()
    options = {"shuffle": Shuffle(window_rows=BUFFER, open_splits=open_splits)}
    loader = ours(folder, size, **options, **WORKERS[workers])
    rows = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    for _ in range(2):
        rate(loader, rows)
    peak = (peak_memory() - before) / 1e6
    limit(folder)
    pairs = [(limit(folder), rate(loader, rows)) for _ in range(rounds)]
    name = f"{workers}, k={open_splits}"
    return {name: statistics.median(got / most for most, got in pairs), f"peak MB, {name}": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark")
    parser.add_argument("--tables", nargs="*", default=["wide", "narrow"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--open-splits", nargs="*", type=int, default=[2, 4, 8, 32])
    parser.add_argument("--workers", nargs="*", choices=list(WORKERS), default=["threads"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        folder, size, open_splits, workers = given.one
        print(json.dumps(measure(Path(folder), int(size), int(open_splits), workers, given.rounds)))
        return
    results: dict[tuple[str, int], dict[str, float]] = {}
    for table in given.tables:
        folder = write(table, given.data)
        for size in given.sizes:
            print(f"{table}, batches of {size} rows ...", file=sys.stderr, flush=True)
            found = results[table, size] = {}
            for workers in given.workers:
                for open_splits in given.open_splits:
                    one = ["--one", folder, size, open_splits, workers, "--rounds", given.rounds]
                    command = [sys.executable, os.fspath(__file__), *map(str, one)]
                    found |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(f"{CORES} cores, windows of {BUFFER:,} rows\n")
    print(as_markdown(results))


if __name__ == "__main__":
    main()
