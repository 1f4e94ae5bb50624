"""Writes the four tables of the benchmark by a fixed recipe: `python benchmarks/tables.py FOLDER`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def wide(rows: int, rng: np.random.Generator) -> pa.Table:
    """40 float32 + int64 + int8: a feature table."""
    columns = {f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(40)}
    columns["id"] = rng.integers(0, 1 << 40, rows)
    columns["label"] = rng.integers(0, 2, rows, dtype=np.int8)
    return pa.table(columns)


def narrow(rows: int, rng: np.random.Generator) -> pa.Table:
    """4 columns: two identifiers, a value and a label."""
    return pa.table(
        {
            "user": rng.integers(0, 1 << 20, rows),
            "item": rng.integers(0, 1 << 16, rows, dtype=np.int32),
            "value": rng.standard_normal(rows, dtype=np.float32),
            "label": rng.integers(0, 2, rows, dtype=np.int8),
        }
    )


def text(rows: int, rng: np.random.Generator) -> pa.Table:
    """int64, strings of 50-300 characters, list<int32> of 5-50 elements."""
    lengths = rng.integers(50, 301, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = rng.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    strings = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    ends = np.concatenate([[0], np.cumsum(rng.integers(5, 51, rows))]).astype(np.int32)
    tokens = rng.integers(0, 50_000, int(ends[-1]), dtype=np.int32)
    return pa.table({"id": np.arange(rows), "text": strings, "tokens": pa.ListArray.from_arrays(ends, tokens)})


def embed(rows: int, rng: np.random.Generator) -> pa.Table:
    """fixed_size_list<float32>[256] + int64."""
    values = pa.array(rng.standard_normal(rows * 256, dtype=np.float32))
    return pa.table({"id": np.arange(rows), "vector": pa.FixedSizeListArray.from_arrays(values, 256)})


# name -> (function that makes a table, files, row groups per file, rows per row group)
TABLES: dict[str, tuple[Callable[[int, np.random.Generator], pa.Table], int, int, int]] = {
    "wide": (wide, 8, 4, 125_000),
    "narrow": (narrow, 4, 5, 1_000_000),
    "text": (text, 4, 4, 62_500),
    "embed": (embed, 4, 5, 25_000),
}


def write(name: str, folder: Path) -> Path:
    """The folder of the table's Parquet files (snappy, pyarrow's defaults); written unless it exists."""
    make, files, groups, rows = TABLES[name]
    target = folder / name
    for number in range(files):
        path = target / f"part-{number:02d}.parquet"
        if path.exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([sum(name.encode()), number])
        partial = path.with_suffix(".partial")
        with pq.ParquetWriter(partial, make(1, rng).schema) as writer:
            for _ in range(groups):
                writer.write_table(make(rows, rng), row_group_size=rows)
        partial.rename(path)
    return target


def main() -> None:
    """Write the tables named on the command line (all of them by default)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(TABLES))
    given = parser.parse_args()
    for name in given.names:
        print(write(name, given.folder))


if __name__ == "__main__":
    main()
