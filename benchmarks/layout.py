"""What the layout of Parquet files costs to read: processor time by row group size and compression.

    python benchmarks/layout.py

One table, 2 million rows of 20 float32 columns, an int64 and a string, written in several ways. Each figure is the
median of 9 epochs, relative to row groups of 100,000 rows compressed with snappy.
"""

import resource
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset

ROWS, EPOCHS = 2_000_000, 9
LAYOUTS = [(100_000, "snappy"), (1_000, "snappy"), (10_000, "snappy"), (1_000_000, "snappy")]
LAYOUTS += [(100_000, compression) for compression in ("none", "lz4", "zstd", "gzip")]


def table():
    random = np.random.default_rng(0)
    columns = {f"f{number}": random.integers(0, 1000, ROWS).astype(np.float32) / 10 for number in range(20)}
    return pa.table({"id": np.arange(ROWS), "word": pa.array(random.integers(0, 10**9, ROWS).astype(str)), **columns})


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(path):
    loader, _ = StructuredDataset.create_dataloader(path, batch_size=1024, strings="bytes", num_ranks=1, rank=0)
    before = processor_seconds()
    for _ in loader:
        pass
    return processor_seconds() - before


def main():
    rows, seconds = table(), [[] for _ in LAYOUTS]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.parquet") for number in range(len(LAYOUTS))]
        for path, (size, compression) in zip(paths, LAYOUTS, strict=True):
            pq.write_table(rows, path, row_group_size=size, compression=compression)
        for _ in range(EPOCHS):  # in turn, because a shared machine is not equally fast all the time
            for path, times in zip(paths, seconds, strict=True):
                times.append(measured(path))
        print("| rows of a row group | compression | MB | processor time |\n|--:|---|--:|--:|")
        for path, (size, compression), times in zip(paths, LAYOUTS, seconds, strict=True):
            ratio = statistics.median(mine / first for mine, first in zip(times, seconds[0], strict=True))
            print(f"| {size:,} | {compression} | {path.stat().st_size / 1e6:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
