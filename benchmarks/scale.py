"""Measures how start-up, throughput and memory grow with the shape of the data: `python benchmarks/scale.py [--small]`.

    python benchmarks/scale.py [--only columns groups files] [--results benchmarks/scale.json] [--data FOLDER]

columns  files of 10 to 10,000 float32 columns, with as many values each
groups   one file of one row group, of 16 MiB to 1 GiB
files    100 to 100,000 files of 10 rows, and the same from a manifest

Each shape is read by a process of its own, with batches of 1,024 rows; memory is the peak above imports (PSS of the
process and its children). Nothing is compared with another run: what counts is the growth.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
sys.path.append(str(HERE / "peers"))

from processes import Peak, cpu_seconds, memory  # noqa: E402

VALUES = 80_000_000  # of the files of many columns
SHAPES = {
    "columns": (10, 100, 1_000, 10_000),
    "groups": (1 << 20, 1 << 22, 1 << 24, 1 << 26),  # rows of 16 bytes
    "files": (100, 1_000, 10_000, 100_000),
}


def write_columns(folder: Path, columns: int) -> None:
    rows, rng = VALUES // columns, np.random.default_rng(0)
    table = pa.table({f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(columns)})
    pq.write_table(table, folder / "0.parquet", row_group_size=max(1_000, rows // 16))


def write_groups(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(4)})
    pq.write_table(table, folder / "0.parquet", row_group_size=rows)


def write_files(folder: Path, files: int) -> None:
    table = pa.table({"id": np.arange(10), "value": np.arange(10, dtype=np.float32)})
    pq.write_table(table, folder / "0.parquet")
    content = (folder / "0.parquet").read_bytes()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: (folder / f"{number:06}.parquet").write_bytes(content), range(1, files)))
    (folder / "0.parquet").rename(folder / "000000.parquet")


def read(folder: str, kind: str) -> Iterator[dict[str, Any]]:
    """One line before anything is read, and one with what was measured."""
    from torch_dataloader_utils import StructuredDataset

    create = StructuredDataset.create_dataloader  # the last of the imports
    options: dict[str, Any] = {"manifest": f"{folder}.manifest"} if kind == "manifest" else {}
    yield {}
    begin = time.perf_counter()
    loader, _ = create(folder, batch_size=1024, num_ranks=1, rank=0, **options)
    started = time.perf_counter() - begin
    batches, rows, first = iter(loader), 0, 0.0
    for batch in batches:
        rows += len(next(iter(batch.values())))
        first = first or time.perf_counter() - begin
    passed = time.perf_counter() - begin
    state = len(json.dumps(loader.state_dict()))
    yield {"start": started, "first": first, "pass": passed, "rows": rows, "state": state}


def measured(folder: Path, kind: str) -> dict[str, Any]:
    child = subprocess.Popen(
        [sys.executable, __file__, "--read", str(folder), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    before, at_rest, peak = cpu_seconds(child.pid), memory(child.pid), Peak(child.pid)
    found: dict[str, Any] = json.loads(child.stdout.readline())
    used, most = cpu_seconds(child.pid) - before, peak.stop() - at_rest
    child.communicate("\n")
    times = {key: round(value, 4) for key, value in found.items()}
    return {**times, "cpu": round(used, 3), "MiB": max(0, round(most / 2**20))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--small", action="store_true", help="without the largest of each")
    parser.add_argument("--results", type=Path, help="a JSON file of all figures")
    parser.add_argument("--data", type=Path, help="where data are written and removed again")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        for line in read(*given.read):
            print(json.dumps(line), flush=True)
        sys.stdin.readline()
        return
    kept: dict[str, Any] = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    for kind in given.only:
        found = kept[kind] = {}
        for number in SHAPES[kind][: -1 if given.small else None]:
            with tempfile.TemporaryDirectory(dir=given.data) as home:
                folder = Path(home) / "data"
                folder.mkdir()
                globals()[f"write_{kind}"](folder, number)
                measured(folder, kind)  # so that the files are in the page cache
                found[number] = measured(folder, kind)
                if kind == "files":
                    tdu = [sys.executable, "-m", "torch_dataloader_utils"]
                    subprocess.run(
                        [*tdu, "index", str(folder), "--manifest", f"{folder}.manifest"],
                        check=True,
                        capture_output=True,
                    )
                    found[number]["from manifest"] = measured(folder, "manifest")
                print(kind, f"{number:,}", found[number], flush=True)
                shutil.rmtree(folder)
    if given.results:
        given.results.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
