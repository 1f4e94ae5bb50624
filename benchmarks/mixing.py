"""Measures the speed of a mix of two datasets, next to one dataset with the same files.

    python benchmarks/mixing.py [--data /tmp/tables] [--tables wide narrow text] [--batch-sizes 1024 16384] [--rounds 7]

FOLDER/TABLE holds Parquet files of one schema, such as those of benchmarks/tables.py. A table's files are read as one
dataset, and as a mix of two that hold every second file. Passes of both take turns. The output is rows per second of
the mix divided by those of the one dataset, for time on the clock and for processor time: the medians of all rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import torch

from torch_dataloader_utils import StructuredDataset, combine


def seconds(loader: Iterable[Any]) -> tuple[float, float]:
    """The time of a pass: on the clock, and of all processors."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    return time.perf_counter() - wall, time.process_time() - processor


def loaders(files: list[str], options: dict[str, Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """One dataset with all files, and a mix of two with every second one."""
    one, even, odd = (
        StructuredDataset.create_dataloader(part, strings="bytes", **options)[0]
        for part in (files, files[::2], files[1::2])
    )
    return one, combine([even, odd], **options)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/tmp/tables"))
    parser.add_argument("--tables", nargs="+", default=["wide", "narrow", "text", "embed"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1024, 16384])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| table | rows in order of | batch_size | time | processor time |", "|---|---|---|---|---|", sep="\n")
    for table, shuffle, size in product(args.tables, (False, True), args.batch_sizes):
        files = sorted(map(str, (args.data / table).glob("*.parquet")))
        one, mixed = loaders(files, {"batch_size": size, "shuffle": shuffle})
        seconds(one), seconds(mixed)
        rounds = [(seconds(one), seconds(mixed)) for _ in range(args.rounds)]
        wall, processor = (statistics.median(one[i] / mixed[i] for one, mixed in rounds) for i in (0, 1))
        order = "a shuffle" if shuffle else "the files"
        print(f"| `{table}` | {order} | {size:,} | {wall:.2f} | {processor:.2f} |", flush=True)


if __name__ == "__main__":
    main()
