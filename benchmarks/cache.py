"""Measures a cache that is smaller than the data: bytes, requests and seconds of each epoch, on a throttled S3 server.

    python benchmarks/cache.py [--capacities 0 0.1 0.5 0.9] [--epochs 4] [--rate 100e6] [--latency 0.03]

Two ranks, each a process, read 160 MiB through one folder, in file order and shuffled; 0 is without a cache, and
`saved` is the share of its bytes that the store did not send. Seconds are those of the slower rank. In the last epoch,
both ranks have been started again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.storage import servers
from tests.storage.proxy import Faults, Proxy, faulty

FILES, GROUPS, ROWS, COLUMNS = 8, 8, 41_000, 16  # rows of a row group: 2.5 MiB
RANKS = 2


def write(folder: Path) -> int:
    """Write the data; returns its bytes."""
    for number in range(FILES):
        rng = np.random.default_rng(number)
        table = pa.table({f"x{i}": rng.standard_normal(GROUPS * ROWS, dtype=np.float32) for i in range(COLUMNS)})
        pq.write_table(table, folder / f"part-{number}.parquet", ROWS, compression="none", use_dictionary=False)
    return sum(path.stat().st_size for path in folder.iterdir())


def rank_main(rank: int, given: dict[str, Any], turns: list[int], barrier: Any, results: Any) -> None:
    """Read the epochs `turns`, each when the barrier lets all ranks begin."""
    from torch_dataloader_utils import stream

    url = given.pop("path")
    loader = stream(url, num_ranks=RANKS, rank=rank, num_workers=4, batch_size=4096, output_format="numpy", **given)
    for epoch in turns:
        barrier.wait()
        loader.set_epoch(epoch)
        began, rows = time.perf_counter(), 0
        for batch in loader:
            rows += len(batch["x0"])
        results.put((epoch, time.perf_counter() - began, rows))
        barrier.wait()
    loader.close()


def epochs(proxy: Proxy, faults: Faults, given: dict[str, Any], turns: list[int]) -> list[dict[str, Any]]:
    """What each of these epochs took, of two ranks that are started for them."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(RANKS + 1, timeout=120), context.Queue()
    ranks = [
        context.Process(target=rank_main, args=(rank, given, turns, barrier, results), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    measured = []
    for epoch in turns:
        barrier.wait()
        proxy.inject(faults)
        ended = [results.get(timeout=120) for _ in ranks]
        counts = proxy.counts().of("part-")
        assert sum(rows for _, _, rows in ended) == FILES * GROUPS * ROWS
        seconds = max(seconds for _, seconds, _ in ended)
        measured.append({"epoch": epoch, **{name: counts[name] for name in ("gets", "heads", "bytes")}, "s": seconds})
        barrier.wait()
    for process in ranks:
        process.join()
    return measured


def main() -> None:
    """Measure all settings, and print a line for each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacities", type=float, nargs="+", default=[0.0, 0.1, 0.5, 0.9])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second, of all connections")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds added to each request")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("data", "moto", "proxy"):
            (folder / name).mkdir()
        size = write(folder / "data")
        faults = Faults(latency=args.latency, rate=args.rate)
        with servers.moto(folder / "moto") as store, faulty(store, folder / "proxy") as proxy:
            store.put(folder / "data", "train")
            for shuffle in (False, True):
                plain: dict[int, float] = {}  # bytes of each epoch without a cache
                for capacity in sorted({0.0, *args.capacities}):
                    given = {
                        "path": proxy.store.url("train"),
                        "storage_options": proxy.store.storage_options,
                        "shuffle": shuffle,
                    }
                    if capacity:
                        cache = tempfile.mkdtemp(dir=folder)
                        given["cache"] = {"folder": cache, "max_bytes": int(capacity * size)}
                    proxy.inject(Faults())
                    first = epochs(proxy, faults, given, list(range(args.epochs - 1)))
                    for found in first + epochs(proxy, faults, given, [args.epochs - 1]):
                        saved = 1 - found["bytes"] / plain.setdefault(found["epoch"], found["bytes"])
                        line = {"shuffle": shuffle, "c": capacity, **found, "saved": round(saved, 3)}
                        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
