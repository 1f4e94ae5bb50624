"""Compares this working tree with an earlier revision, run by run: `python benchmarks/guard.py --against v0.3`.

Absolute rates differ between machines and hours, so both revisions run in the same rounds, one after the other, and
what is compared is the ratio of each round. Exits with 1 if the median of a case is below `--least`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE / "peers"))

from contenders import PEERS  # noqa: E402
from measuring import Case, run, warm  # noqa: E402
from report import title  # noqa: E402
from tables import write  # noqa: E402

ROOT = HERE.parent


def checked_out(revision: str, folder: Path) -> Path:
    """The package as it was at this revision."""
    archive = subprocess.run(
        ["git", "archive", revision, "torch_dataloader_utils"], cwd=ROOT, check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def ratios(case: Case, source: Path, old: Path, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """The rate and the processor time per row of this tree, over those of the old one, for each round."""
    rates, costs = [], []
    for number in range(rounds):
        found = {}
        for package in (old, ROOT) if number % 2 else (ROOT, old):  # who runs first may find another machine
            found[package] = run(PEERS["ours"], sys.executable, source, case, seconds, {"PYTHONPATH": str(package)})
        rates.append(found[ROOT]["rate"] / found[old]["rate"])
        costs.append(found[ROOT]["cpu"] / found[old]["cpu"])
    return rates, costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True, help="a revision of git, such as the tag of the last release")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tdu-benchmark")
    parser.add_argument("--tables", nargs="*", default=["wide", "narrow", "text"])
    parser.add_argument("--sizes", nargs="*", type=int, default=[1024, 16384], help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="the longest a run goes on")
    parser.add_argument("--least", type=float, default=0.9, help="the smallest ratio of rates that is no regression")
    given = parser.parse_args()
    slower = []
    print("| case | rate, new / old | from | to | CPU, new / old |\n|---|--:|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        old = checked_out(given.against, Path(folder))
        for table in given.tables:
            source = write(table, given.data)
            warm(source)
            for shuffle in (False, True):
                for rows in given.sizes:
                    case = Case(table, rows, 0, shuffle)
                    rates, costs = ratios(case, source, old, given.rounds, given.seconds)
                    name, middle = title(table, rows, 0, shuffle), statistics.median(rates)
                    row = f"{middle:.2f} | {min(rates):.2f} | {max(rates):.2f} | {statistics.median(costs):.2f}"
                    print(f"| {name} | {row} |", flush=True)
                    if middle < given.least:
                        slower.append(f"{name}: {middle:.2f}")
    if slower:
        sys.exit(f"slower than {given.against} by more than {1 - given.least:.0%}: {'; '.join(slower)}")
    print(f"\nno case is below {given.least} of {given.against}; {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
