"""Reads 10,000 files with 64 ranks of 4 workers in one process, and counts how often each row is delivered.

    python benchmarks/every_row_once.py [--files 10000] [--ranks 64] [--workers 4]

For every sharding policy, every `even=` and each kind of shuffle, all loaders of a job read one epoch. Each row must be
delivered once, not counting repeats of `even="pad"`; with `even="drop"`, the rows of less than one step are left out.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import Strided, StructuredDataset

BATCH = 64
POLICIES: dict[str, dict[str, Any]] = {
    "interleave": {},
    "contiguous": {"sharding": "contiguous"},
    "rotate": {"sharding": "rotate"},
    "strided": {"sharding": "strided"},
    "shard_batches": {"sharding": Strided("batch")},
    "auto": {"sharding": "auto"},
}
SHUFFLES = (False, "splits", True)


def write_files(folder: Path, files: int) -> int:
    """Write files of 1 to 9 rows, whose `id` counts through them. Returns the rows."""
    at = 0
    for number in range(files):
        rows = 1 + number * 7 % 9
        pq.write_table(pa.table({"id": np.arange(at, at + rows)}), folder / f"{number:05d}.parquet", store_schema=False)
        at += rows
    return at


def ranks_of(given: argparse.Namespace, folder: Path, options: dict[str, Any]) -> Iterator[StructuredDataset]:
    """The dataset of each rank, one after another; the files are listed once."""
    ranks = {"num_ranks": given.ranks, "rank": 0, "num_workers": given.workers}
    _, first = StructuredDataset.create_dataloader(
        folder / "data", manifest=folder / "_manifest", batch_size=BATCH, output_format="numpy", **ranks, **options
    )
    for rank in range(given.ranks):
        shard = replace(first._options.shard, rank=rank)
        yield StructuredDataset(first._source, replace(first._options, shard=shard))


def times_delivered(given: argparse.Namespace, folder: Path, options: dict[str, Any], rows: int) -> Any:
    """How often each row is delivered, repeats excluded."""
    times = np.zeros(rows, np.int64)
    for dataset in ranks_of(given, folder, options):
        for batch in dataset:
            np.add.at(times, batch["id"][batch.get("valid", slice(None))], 1)
        dataset.close()
    return times


def main() -> int:
    """Print a line for each combination. Returns 1 if a row was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--sharding", nargs="+", choices=POLICIES, default=list(POLICIES))
    given = parser.parse_args()
    logging.getLogger("torch_dataloader_utils").setLevel(logging.ERROR)  # unequal steps are expected
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        rows = write_files(folder / "data", given.files)
        for policy, even, shuffle in itertools.product(given.sharding, ("none", "drop", "pad"), SHUFFLES):
            began = time.process_time()
            times = times_delivered(given, folder, {**POLICIES[policy], "even": even, "shuffle": shuffle}, rows)
            lost, repeated = int((times == 0).sum()), int((times > 1).sum())
            expected = rows % (given.ranks * BATCH) if even == "drop" else 0
            good = lost == expected and not repeated
            failed |= not good
            seen = f"{rows:,} rows, {lost:,} left out, {repeated:,} repeated, {time.process_time() - began:.0f} s"
            print(f"{policy:13} even={even:4} shuffle={shuffle!s:6} {seen}: {'ok' if good else 'WRONG'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
