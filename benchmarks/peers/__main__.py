"""Races every loader against this one on the same files: `python benchmarks/peers [--quick] [--tables wide ...]`.

Each loader has an environment of its own, and each run a fresh process. A run is a whole pass, from
the call that makes the loader to the last batch, or some seconds of one from its first batch on, marked by "*"; imports
are excluded. In each round every loader runs once, one after another, LIMIT first: a ratio is to LIMIT of the same
round, so that drift in the machine's speed cancels out. Figures are medians over rounds. A loader that fails is listed
with its error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from contenders import PEERS, Peer
from environments import interpreter, version
from lineitem import write_lineitem
from measuring import Case, Failed, reason, run, warm
from report import table_of, title

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from tables import TABLES, write  # noqa: E402

SIZES = (256, 1024, 16384)
RACED = [name for name, peer in PEERS.items() if not peer.decodes]


def cases(tables: list[str], sizes: list[int], workers: list[int], shuffles: list[bool]) -> list[Case]:
    return [Case(table, rows, w, s) for table in tables for s in shuffles for w in workers for rows in sizes]


def runs(peer: Peer, case: Case) -> bool:
    """Whether the loader takes part in this case."""
    if peer.name == "limit":
        return True
    able = (peer.processes or not case.workers) and (peer.shuffles or not case.shuffle)
    return able and (peer.tables is None or case.table in peer.tables)


def folder_of(peer: Peer, python: str, source: Path, data: Path) -> Path:
    """The folder that the loader reads: the table's, or one that its `prepare` makes of it, once."""
    table = source.name
    if "def prepare(" not in (HERE / "loaders" / f"{peer.name}.py").read_text():
        return source
    target = data / "own" / peer.name / table
    if not target.exists():
        partial = target.with_name(f"{table}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        done = subprocess.run(
            [python, str(HERE / "measure.py"), peer.name, str(source)],
            env={**os.environ, "TARGET": str(partial)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Failed(reason(done.stderr))
        partial.rename(target)
    return target


def race(case: Case, source: Path, found: dict[str, str], data: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of every loader in this case, by name; an error as {"error": ...}."""
    results: dict[str, list[dict[str, Any]]] = {}
    errors: dict[str, str] = {}
    for number in range(rounds):
        for name, python in found.items():
            if name in errors or not runs(PEERS[name], case):
                continue
            try:
                folder = folder_of(PEERS[name], python, source, data)
                if number == 0:
                    warm(folder)
                results.setdefault(name, []).append(run(PEERS[name], python, folder, case, seconds))
            except Failed as error:
                errors[name] = str(error)
            print(f"  {name}: {errors.get(name) or summary(results[name][-1])}", file=sys.stderr, flush=True)
    limits = results.get("limit", [])
    return {name: medians(runs, limits) for name, runs in results.items() if name not in errors} | {
        name: {"error": text} for name, text in errors.items()
    }


def medians(runs: list[dict[str, Any]], limits: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        name: statistics.median(run[name] for run in runs) for name in ("rate", "cpu", "peak", "first", "rows")
    }
    figures |= {name: all(run[name] for run in runs) for name in ("exact", "whole")}
    if limits:
        pairs = zip(runs, limits, strict=True)
        figures["share"] = statistics.median(run["rate"] / most["rate"] for run, most in pairs)
    return figures


def summary(result: dict[str, Any]) -> str:
    exact = "" if result["exact"] else ", other batch sizes"
    part = "" if result["whole"] else ", a part of the pass"
    return (
        f"{result['rate'] / 1e6:.4g} M rows/s, {result['cpu']:.3g} CPU s per M rows, {result['peak']:.0f} MiB, "
        f"first batch {result['first']:.2f} s{exact}{part}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/peers", description=__doc__.splitlines()[0])
    scratch = Path(tempfile.gettempdir())
    parser.add_argument("--data", type=Path, default=scratch / "tdu-benchmark", help="where tables are written")
    parser.add_argument("--environments", type=Path, default=scratch / "tdu-peers", help="one per loader")
    parser.add_argument("--tables", nargs="*", default=[*TABLES, "lineitem"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), help="rows of a batch")
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2])
    parser.add_argument("--shuffle", nargs="*", choices=["no", "yes"], default=["no", "yes"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=RACED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="the longest a run goes on")
    parser.add_argument("--results", type=Path, help="a JSON file of all figures; cases that it has are not run again")
    parser.add_argument("--quick", action="store_true", help="wide and text, against what needs no environment")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.workers, given.sizes, given.shuffle = ["wide", "text"], [0], [1024, 16384], ["no", "yes"]
        given.peers, given.rounds, given.seconds = [name for name in RACED if not PEERS[name].requirements], 3, 3.0
    found: dict[str, str] = {}
    kept: dict[str, Any] = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    versions, figures = kept.setdefault("versions", {}), kept.setdefault("cases", {})
    for name in dict.fromkeys(["limit", *given.peers]):
        try:
            found[name] = interpreter(PEERS[name], given.environments)
            versions[name] = version(PEERS[name], found[name])
        except subprocess.CalledProcessError as error:
            print(f"{name} cannot be installed: {reason(error.stderr)}", file=sys.stderr)
    kept["machine"] = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    print(kept["machine"], end="\n\n")
    for case in cases(given.tables, given.sizes, given.workers, [word == "yes" for word in given.shuffle]):
        key = json.dumps([case.table, case.rows, case.workers, case.shuffle])
        if key not in figures:
            print(f"{case} ...", file=sys.stderr, flush=True)
            source = (
                write_lineitem(given.data, given.environments)
                if case.table == "lineitem"
                else write(case.table, given.data)
            )
            figures[key] = race(case, source, found, given.data, given.rounds, given.seconds)
            if given.results:
                given.results.write_text(json.dumps(kept, indent=1))
        print(
            f"### {title(case.table, case.rows, case.workers, case.shuffle)}\n\n{table_of(figures[key], versions)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
