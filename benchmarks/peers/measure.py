"""Runs one loader once, in its own environment: `python measure.py NAME FOLDER ROWS WORKERS SHUFFLE SECONDS`.

Prints "ready" after imports and a line of JSON after the pass, and waits for its standard input to end, so that who
started it can look at its processes at both moments.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any


def main() -> None:
    name, folder, *numbers = sys.argv[1:]
    loader = importlib.import_module(f"loaders.{name}")
    if not numbers:
        loader.prepare(Path(folder), Path(os.environ["TARGET"]))
        return
    rows, workers, shuffle = map(int, numbers[:3])
    out = os.dup(1)
    os.dup2(2, 1)  # what loaders print is not a result
    with os.fdopen(out, "w") as results:
        print("ready", file=results, flush=True)
        print(json.dumps(measured(loader, Path(folder), rows, workers, bool(shuffle), float(numbers[3]))), file=results)
        results.flush()
        sys.stdin.read()
    os._exit(0)  # some wait for their processes for long


def measured(loader: Any, folder: Path, rows: int, workers: int, shuffle: bool, most: float) -> dict[str, Any]:
    """One pass from the call that makes the loader, or `most` seconds of one after its first batch."""
    sizes: Counter[int] = Counter()
    begin = time.perf_counter()
    first, begun, last, whole = 0.0, 0, 0, True
    for batch in loader.batches(folder, rows, workers, shuffle):
        last = length(batch)
        sizes[last] += 1
        passed = time.perf_counter() - begin
        if not first:
            first, begun = passed, last
        if passed > first + most:
            whole = False
            break
    seconds = time.perf_counter() - begin
    total = sum(size * count for size, count in sizes.items())
    if whole:
        sizes[last] -= 1
    rate = total / seconds
    if not whole:  # the start is a part of the whole pass only
        rate = (total - begun) / (seconds - first)
    return {"rows": total, "rate": rate, "first": first, "whole": whole, "exact": set(+sizes) <= {rows}}


def length(batch: Any) -> int:
    """The rows of a batch."""
    if isinstance(batch, int):
        return batch
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
