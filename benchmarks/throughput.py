"""Measures throughput relative to the raw decode of the same files in the same run.

    python benchmarks/throughput.py [--data FOLDER] [--rounds 3] [--tables wide narrow text embed]

LIMIT decodes the same row groups with `ParquetFile.read_row_group`, on as many threads as there are cores, and discards
the result. Every figure is the median over rounds of (rows/s of the loader) / (rows/s of the LIMIT run right before
it), so that drift in the machine's speed cancels out. Each contender is measured in three processes of its own, because
the placement of its memory makes a difference of some hundredths. "hand-written" is the IterableDataset that a user
would write today; it runs for a few seconds per round, not for the whole pass.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from limit import decode
from tables import TABLES, write
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torch_dataloader_utils import StructuredDataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.memory import peak_memory

CORES = len(os.sched_getaffinity(0))
SIZES = (1024, 16384)
HAND_WRITTEN_SECONDS = 3.0
PROCESSES = 3  # for each contender, one after another
CONTENDERS = (
    "threads",
    "processes",
    "in-line",
    "rows shuffled",
    "rows shuffled, processes",
    "LIMIT by column",
    "hand-written",
    "hand-written, 2 workers",
)


def limit(folder: Path, by_column: bool = False) -> float:
    """Rows/s of decoding every row group on all cores and discarding it at once."""
    begin = time.perf_counter()
    rows = decode(sorted(folder.glob("*.parquet")), by_column=by_column)
    return rows / (time.perf_counter() - begin)


class HandWritten(IterableDataset[Any]):
    """What a user writes without a library: files shared among workers, a tensor per column and batch."""

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
    """The number of rows of a batch of any of the tables (each has a plain column)."""
    return next(len(value) for value in batch.values() if isinstance(value, torch.Tensor))


def rate(batches: Any, rows: int) -> float:
    """Rows/s of a whole pass over `rows` rows, including the start of the iteration."""
    begin = time.perf_counter()
    for _ in batches:
        pass
    return rows / (time.perf_counter() - begin)


def first_rate(batches: Any, seconds: float) -> float:
    """Rows/s of the first `seconds` of a pass."""
    begin, rows = time.perf_counter(), 0
    for batch in batches:
        rows += batch_rows(batch)
        if time.perf_counter() - begin > seconds:
            break
    return rows / (time.perf_counter() - begin)


def ours(folder: Path, size: int, **options: Any) -> Any:
    """Our loader; by default, only the order of splits is shuffled."""
    options = {"shuffle": "splits", "strings": "bytes", **options}
    loader, _ = StructuredDataset.create_dataloader(str(folder), batch_size=size, **options)
    return loader


def contender(name: str, folder: Path, size: int) -> Callable[[], float]:
    """A function that measures this contender, in rows/s."""
    if name == "LIMIT by column":
        return lambda: limit(folder, by_column=True)
    if name.startswith("hand-written"):
        workers = 2 if name.endswith("2 workers") else 0
        plain = DataLoader(HandWritten(folder, size), batch_size=None, num_workers=workers)
        return lambda: first_rate(plain, HAND_WRITTEN_SECONDS)
    processes: dict[str, Any] = {"num_workers": CORES, "worker_mode": "processes"}
    options: dict[str, dict[str, Any]] = {
        "threads": {},
        "processes": processes,
        "in-line": {"num_workers": 0},
        "rows shuffled": {"shuffle": True},
        "rows shuffled, processes": {"shuffle": True, **processes},
    }
    loader = ours(folder, size, **options[name])
    rows = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    rate(loader, rows)  # starts persistent workers, and reads footers
    return lambda: rate(loader, rows)


def measure(name: str, folder: Path, size: int, rounds: int) -> None:
    """Print for each round the ratio to the LIMIT run right before it, and LIMIT's rows/s."""
    # One thread for torch's own kernels, because the loaders' threads use the cores. Do not set this when training.
    torch.set_num_threads(1)
    run = contender(name, folder, size)
    limit(folder)
    pairs = [(limit(folder), run()) for _ in range(rounds)]
    print(json.dumps([(got / most, most) for most, got in pairs]))


def fresh(folder: Path, size: int, shuffle: bool | str) -> None:
    """Print the seconds to the first batch, and the peak memory above the imports after 1 and 3 epochs."""
    StructuredDataset.create_dataloader  # noqa: B018 - the last of the imports
    before = peak_memory()
    begin = time.perf_counter()
    loader = ours(folder, size, shuffle=shuffle)
    first, peaks = 0.0, []
    for epoch in range(3):
        for _ in loader:
            first = first or time.perf_counter() - begin
        if epoch != 1:
            peaks.append((peak_memory() - before) / 1e6)
    kind = ", rows shuffled" if shuffle is True else ""
    names = (f"first batch, s{kind}", f"peak MB, 1 epoch{kind}", f"peak MB, 3 epochs{kind}")
    print(json.dumps(dict(zip(names, (first, *peaks), strict=True))))


def in_fresh_process(*arguments: Any) -> Any:
    """What this script prints with these arguments, in a new process so that contenders do not affect each other."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def row_of(folder: Path, size: int, rounds: int, names: list[str]) -> dict[str, float]:
    """The figures for one table and batch size."""
    found = {
        name: [
            pair
            for _ in range(PROCESSES)
            for pair in in_fresh_process("--one", name, folder, "--sizes", size, "--rounds", rounds)
        ]
        for name in names
    }
    limits = statistics.median(most for pairs in found.values() for _, most in pairs)
    ratios = {name: statistics.median(ratio for ratio, _ in pairs) for name, pairs in found.items()}
    fresh = {}
    for kind in ("splits", "rows"):
        fresh |= in_fresh_process("--fresh", folder, kind, "--sizes", size)
    return {"LIMIT, M rows/s": limits / 1e6, **ratios, **fresh}


def as_markdown(results: dict[tuple[str, int], dict[str, float]]) -> str:
    """The results as a Markdown table, with a row for each table and batch size."""
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
    parser.add_argument("--rounds", type=int, default=3, help="in each of the three processes")
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS))
    parser.add_argument("--fresh", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fresh:
        fresh(Path(given.fresh[0]), given.sizes[0], True if given.fresh[1] == "rows" else given.fresh[1])
        return
    if given.one:
        measure(given.one[0], Path(given.one[1]), given.sizes[0], given.rounds)
        return
    results = {}
    for table in given.tables:
        folder = write(table, given.data)
        for size in given.sizes:
            print(f"{table}, batches of {size} rows ...", file=sys.stderr, flush=True)
            results[table, size] = row_of(folder, size, given.rounds, given.contenders)
    print(f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")
    print(as_markdown(results))


if __name__ == "__main__":
    main()
