"""Measures how fast Iceberg tables are read, as ratios within one run.

    python benchmarks/iceberg.py [--small] [--only deletes pyiceberg] [--data FOLDER] [--rounds 5]

deletes     our loader of a table with deletes of each kind, relative to our loader of the table's one Parquet file
pyiceberg   our loader relative to pyiceberg's `to_arrow_batch_reader`, with positional deletes: rows/s, and peak memory

2 million rows of 11 columns in 16 row groups (110 MB, zstd), in batches of 16,384 rows. Ratios of speed are medians
over rounds of two consecutive runs, in rows left after deletes. Each contender runs in a process of its own; its memory
is what that process uses in addition to its imports.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg
import torch
from iceberg_data import data_file, write_tables
from pyiceberg.table import StaticTable

from torch_dataloader_utils import IcebergDataset, StructuredDataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.memory import peak_memory, restart_peak

CORES = len(os.sched_getaffinity(0))
LOADER = {"batch_size": 16384, "strings": "bytes"}
POSITIONAL = "1 % positional deletes"
PARTS = ("deletes", "pyiceberg")


def rate(batches: Iterable[Any], rows_of: Callable[[Any], int]) -> float:
    """Rows per second of one pass."""
    begin = time.perf_counter()
    rows = sum(rows_of(batch) for batch in batches)
    return rows / (time.perf_counter() - begin)


def rows_of_ours(batch: dict[str, Any]) -> int:
    return len(batch["id"])


# ----------------------------------------------------------------------------------------------------------- deletes


def delete_ratio(data: str, table: str, rounds: int) -> dict[str, float]:
    plain, _ = StructuredDataset.create_dataloader(data, **LOADER)
    loader, _ = IcebergDataset.create_dataloader(table, **LOADER)
    all_rows, rows_left = (sum(map(rows_of_ours, batches)) for batches in (plain, loader))  # also warms all caches
    pairs = [(rate(plain, rows_of_ours), rate(loader, rows_of_ours)) for _ in range(rounds)]
    return {
        "file, M rows/s": statistics.median(of_file for of_file, _ in pairs) / 1e6,
        "table, M rows/s": statistics.median(of_table for _, of_table in pairs) / 1e6,
        "table / file": statistics.median(of_table / of_file for of_file, of_table in pairs),
        "rows deleted, %": 100 * (1 - rows_left / all_rows),
    }


def deletes(given: argparse.Namespace, data: Path, tables: dict[str, Path]) -> None:
    found = {
        kind: in_fresh_process("delete_ratio", data=str(data), table=str(table), rounds=given.rounds)
        for kind, table in tables.items()
    }
    show("table with", found)


# --------------------------------------------------------------------------------------------------------- pyiceberg


def measured(open_pass: Callable[[], Iterable[Any]], rows_of: Callable[[Any], int]) -> dict[str, float]:
    """Rows per second of the second pass, and the peak memory in bytes above that before the first pass."""
    before = restart_peak()
    rates = [rate(open_pass(), rows_of) for _ in range(2)]
    return {"rate": rates[1], "memory": peak_memory() - before}


def by_pyiceberg(table: str) -> dict[str, float]:
    opened = StaticTable.from_metadata(table)
    return measured(lambda: opened.scan().to_arrow_batch_reader(), lambda batch: batch.num_rows)


def by_ours(table: str) -> dict[str, float]:
    def open_pass() -> Iterable[Any]:
        return IcebergDataset.create_dataloader(table, **LOADER)[0]

    open_pass()  # imports what tables need
    return measured(open_pass, rows_of_ours)


def against_pyiceberg(given: argparse.Namespace, tables: dict[str, Path]) -> None:
    table = str(tables[POSITIONAL])
    rounds = [
        (in_fresh_process("by_pyiceberg", table=table), in_fresh_process("by_ours", table=table))
        for _ in range(given.rounds)
    ]
    found = {
        name: {
            "M rows/s": statistics.median(one[number]["rate"] for one in rounds) / 1e6,
            "peak memory, MB": statistics.median(one[number]["memory"] for one in rounds) / 1e6,
        }
        for number, name in enumerate(("pyiceberg", "ours"))
    }
    found["ours / pyiceberg"] = {
        title: statistics.median(ours[key] / theirs[key] for theirs, ours in rounds)
        for title, key in (("M rows/s", "rate"), ("peak memory, MB", "memory"))
    }
    show(POSITIONAL, found)


# ------------------------------------------------------------------------------------------------------- the machinery


def in_fresh_process(name: str, **arguments: Any) -> Any:
    """The result of the function of this name, run in a new process so that contenders do not affect each other."""
    command = [sys.executable, __file__, "--one", name, json.dumps(arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def show(title: str, found: dict[str, dict[str, float]]) -> None:
    """Print the results as a table, a row for each contender."""
    names = list(next(iter(found.values())))
    print(f"\n| {title} | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for key, row in found.items():
        print(f"| {key} | " + " | ".join(f"{row[name]:.3g}" for name in names) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark-iceberg")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a quick run, whose figures mean little")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        torch.set_num_threads(1)  # the loaders' threads use the cores
        print(json.dumps(globals()[given.one[0]](**json.loads(given.one[1]))))
        return
    data = data_file(given.data, 200_000 if given.small else 2_000_000)
    tables = write_tables(data.parent / "tables", data)
    versions = f"pyarrow {pa.__version__}, pyiceberg {pyiceberg.__version__}"
    print(f"{CORES} cores, {platform.machine()}, Python {platform.python_version()}, {versions}")
    print(f"{data.stat().st_size / 1e6:.0f} MB")
    if "deletes" in given.only:
        deletes(given, data, tables)
    if "pyiceberg" in given.only:
        against_pyiceberg(given, tables)


if __name__ == "__main__":
    main()
