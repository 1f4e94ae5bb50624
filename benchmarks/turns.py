"""Runs one case of the guard, a turn at a time: `python turns.py CASE`, a line of JSON for each line that it is given.

A case is `table:rows:shuffle`, whole passes over the table of that folder, or `kernel:name`, the package's kernels
alone. The package is the one that PYTHONPATH names.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.kernels import rows as kernels

_ROWS = 2_000_000
_LEAST = 0.1  # seconds of a turn: ticks of the clock and of the scheduler do not show in it


def passes(folder: str, rows: str, shuffle: str) -> Callable[[], int]:
    """A pass over a table; returns its rows."""
    options: dict[str, Any] = {"batch_size": int(rows), "shuffle": bool(int(shuffle)), "strings": "bytes"}
    loader, dataset = StructuredDataset.create_dataloader(folder, num_ranks=1, rank=0, **options)

    def turn() -> int:
        dataset.set_epoch(0)  # the same order in each turn
        return sum(len(next(iter(batch.values()))) for batch in loader)

    return turn


def window(width: int) -> Callable[[], int]:
    """A shuffled window of one column, as its runs arrive and are put in order."""
    from torch_dataloader_utils.kernels import BucketOrder

    runs = [_ROWS // 16] * 16
    order = BucketOrder.drawn(sum(runs), 7, runs)
    if order is None:
        raise LookupError("the kernels are not compiled")
    column, out = (np.zeros(sum(runs), f"V{width}") for _ in range(2))

    def turn() -> int:
        for first in range(0, _ROWS, runs[0]):
            order.put(first, column[first : first + runs[0]], out)
        order.permute(out)
        return _ROWS

    return turn


def taken(width: int) -> Callable[[], int]:
    """Rows taken by number, from as many as stay in the caches."""
    source, out = np.zeros(30_000, f"V{width}"), np.zeros(30_000, f"V{width}")
    places = np.random.default_rng(0).permutation(len(source)).astype(np.uint32)

    def turn() -> int:
        kernels.take(source, places, out)
        return len(places)

    return turn


def interleaved() -> Callable[[], int]:
    """Batches that mix three datasets."""
    from torch_dataloader_utils.kernels import interleave

    quotas = np.tile(np.array([500, 300, 224], np.int64), (256, 1))
    columns = [[np.zeros(int(rows), np.float32) for rows in quotas.sum(0)] for _ in range(8)]
    outs = [np.zeros(int(quotas.sum()), np.float32) for _ in columns]

    def turn() -> int:
        interleave(columns, quotas, outs)
        return len(outs[0])

    return turn


KERNELS: dict[str, Callable[[], Callable[[], int]]] = {
    "window of 4-byte rows": lambda: window(4),
    "window of 8-byte rows": lambda: window(8),
    "4-byte rows by number": lambda: taken(4),
    "8-byte rows by number": lambda: taken(8),
    "batches of three datasets": interleaved,
}


def timed(turn: Callable[[], int]) -> dict[str, float]:
    """Seconds and processor seconds for a row, of turns until they are long enough to be measured."""
    gc.collect()
    rows, begin, used = 0, time.perf_counter(), time.process_time()
    while not rows or time.perf_counter() - begin < _LEAST:
        rows += turn()
    return {"seconds": (time.perf_counter() - begin) / rows, "cpu": (time.process_time() - used) / rows}


def main() -> None:
    kind, *arguments = sys.argv[1].split(":")
    out = os.dup(1)
    os.dup2(2, 1)  # what else is printed is not a result
    with os.fdopen(out, "w") as results:
        turn = KERNELS[arguments[0]]() if kind == "kernel" else passes(kind, *arguments)
        turn()  # the first fills caches and pools
        print(json.dumps({"compiled": kernels.compiled()}), file=results, flush=True)
        for _ in sys.stdin:
            print(json.dumps(timed(turn)), file=results, flush=True)


if __name__ == "__main__":
    main()
