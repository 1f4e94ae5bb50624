"""Measures the time to the first batch after a resume, and the cost of a state.

    python benchmarks/resume.py [--data FOLDER] [--rounds 15]

A table of 100 files of 100,000 rows (10 columns, 4 row groups each) is read to the first batch: from the beginning, and
from states a few batches after 90 % of the epoch. Figures are medians of rounds, each with a new loader.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "in-line": {"num_workers": 0},
    "2 threads": {"num_workers": 2},
    "2 processes": {"num_workers": 2, "worker_mode": "processes"},
    "row shuffle": {"shuffle": True, "shuffle_buffer_size": 100_000},
    "strided, 2 ranks": {"sharding": "strided", "num_ranks": 2, "rank": 0},
}


def write(folder: Path) -> None:
    """Write the table, unless it exists."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(100):
        path = folder / f"{number:03d}.parquet"
        if not path.exists():
            table = pa.table({f"c{i}": rng.random(100_000, dtype=np.float32) for i in range(10)})
            pq.write_table(table, path, row_group_size=25_000)


def first_batch(folder: Path, state: dict[str, Any] | None, options: dict[str, Any]) -> tuple[float, Any]:
    """The seconds to the first batch, and the loader; worker processes are already running."""
    loader, dataset = StructuredDataset.create_dataloader(
        folder, **{"batch_size": 1024, "shuffle": "splits", **options}
    )
    if options.get("worker_mode") == "processes":
        next(iter(loader))
    if state is None:
        dataset.set_epoch(0)
    else:
        loader.load_state_dict(state)
    begin = time.perf_counter()
    next(iter(loader))
    seconds = time.perf_counter() - begin
    return seconds, loader


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-resume")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    write(given.data)
    print("| | fresh, ms | resumed at 90 %, ms | resumed / fresh | state, microseconds | state, bytes |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, options in SETTINGS.items():
        _, loader = first_batch(given.data, None, options)
        state = loader.state_dict()
        last = state["links"][-1]
        begin = time.perf_counter()
        for _ in range(1000):
            loader.state_dict()
        cost = (time.perf_counter() - begin) * 1e3
        loader.dataset.close()
        found: dict[str, list[float]] = {"fresh": [], "resumed": []}
        for number in range(given.rounds):
            last["batches"] = len(loader) * 9 // 10 + 7 * number
            for kind, place in (("fresh", None), ("resumed", state)):
                seconds, other = first_batch(given.data, place, options)
                found[kind].append(seconds * 1e3)
                other.dataset.close()
        fresh, resumed = statistics.median(found["fresh"]), statistics.median(found["resumed"])
        size = len(json.dumps(state))
        print(f"| {name} | {fresh:.1f} | {resumed:.1f} | {resumed / fresh:.2f} | {cost:.0f} | {size:,} |")


if __name__ == "__main__":
    main()
