"""Reads mutated files, tables, manifests and states, and counts what comes of them.

    python benchmarks/fuzz.py [--family parquet ...] [--mutations 10000] [--seed 1] [--first 0]

Each mutation of a small whole input is read by the public calls in a process of its own kind: a crash or a hang costs
only that mutation. Good outcomes are rows equal to those that another reader (pyarrow, fastavro, pyiceberg) delivers
from the same bytes, and an error of the package that names the input. Everything else is listed at the end, and the
exit status is 1. `--first N --mutations 1` repeats mutation N of a family.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.fuzz

from tests.fuzz.crew import Result, results
from tests.fuzz.families import EQUAL, FAMILIES, REFUSED
from tests.fuzz.tables import TABLE_FAMILIES

ALL = [*FAMILIES, *TABLE_FAMILIES]


def main() -> int:
    """Whether there are faults, as an exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--mutations", type=int, default=10_000, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    asked = parser.parse_args()
    shown, faults = Table("family", "mutations", "refused", "equal", "faults", "seconds"), []
    for family in asked.family:
        start = time.perf_counter()
        counts = Counter[str]()
        for result in _run(family, asked):
            counts["fault" if not result.good else result.outcome] += 1
            if not result.good:
                faults.append(result)
        row = (counts.total(), counts[REFUSED], counts[EQUAL], counts["fault"])
        shown.add_row(family, *(f"{number:,}" for number in row), f"{time.perf_counter() - start:.0f}")
    for fault in faults:
        print(f"{fault.family} {fault.number} {fault.seed}: {fault.outcome}")
    Console().print(shown)
    return int(bool(faults))


def _run(family: str, asked: argparse.Namespace) -> tqdm[Result]:
    with tempfile.TemporaryDirectory() as folder:
        found = results({family: asked.mutations}, asked.seed, Path(folder), first=asked.first)
        yield from tqdm(found, family, asked.mutations, unit="mutations")


if __name__ == "__main__":
    sys.exit(main())
