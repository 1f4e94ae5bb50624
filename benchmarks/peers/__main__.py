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
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import PEERS, Peer
from environments import interpreter, version
from lineitem import write_lineitem
from processes import Peak, cpu_seconds, memory, tree

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from tables import TABLES, write  # noqa: E402

SIZES = (256, 1024, 16384)
SLACK = 120.0  # seconds that a start may take beyond the seconds of a run


@dataclass(frozen=True)
class Case:
    """What every loader is asked to do."""

    table: str
    rows: int
    workers: int
    shuffle: bool


class Failed(Exception):
    """A loader cannot do this; the message is the last line of its error."""


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
            raise Failed(_reason(done.stderr))
        partial.rename(target)
    return target


def run(peer: Peer, python: str, folder: Path, case: Case, seconds: float) -> dict[str, Any]:
    """What a fresh process of the loader measured, with its CPU time and peak memory above those of imports."""
    numbers = map(str, (case.rows, case.workers, int(case.shuffle), seconds))
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [python, str(HERE / "measure.py"), peer.name, str(folder), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        assert child.stdout is not None
        alarm = _Alarm(child.pid, seconds + SLACK)
        try:
            ready = child.stdout.readline()
            before, at_rest = cpu_seconds(child.pid), memory(child.pid)
            peak = Peak(child.pid)
            line = child.stdout.readline()
            used, most = cpu_seconds(child.pid) - before, max(peak.stop() - at_rest, 0)
        finally:
            alarm.stop()
            _kill(child)
        if not ready or not line:
            errors.seek(0)
            raise Failed("it took too long" if alarm.rang else _reason(errors.read()))
    result: dict[str, Any] = json.loads(line)
    if not result["rows"]:
        raise Failed("it delivered no rows")
    return {
        **result,
        "cpu": used / result["rows"] * 1e6,
        "peak": most / 2**20,
    }


class _Alarm:
    """Kills a process and what it started unless stopped in time."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.rang = False
        self._pid = pid
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        self.rang = True
        for pid in tree(self._pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill(child: subprocess.Popen[str]) -> None:
    pids = tree(child.pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no words")[:200]


def warm(folder: Path) -> None:
    """Let the files be in the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as source:
                while source.read(1 << 24):
                    pass


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


def table_of(case: Case, figures: dict[str, Any], versions: dict[str, str]) -> str:
    """A Markdown table of one case, the fastest loader first."""
    what = f"### {case.table}, B = {case.rows:,}"
    what += f", {case.workers} worker processes" if case.workers else ""
    what += ", shuffled" if case.shuffle else ""
    lines = [
        what,
        "",
        "| loader | M rows/s | of LIMIT | CPU s per M rows | peak MiB | first batch, s | exact batches |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    good = {name: each for name, each in figures.items() if "error" not in each}
    for name, each in sorted(good.items(), key=lambda item: -item[1]["rate"]):
        label = " ".join(filter(None, (PEERS[name].label, versions.get(name))))
        if name == "limit":
            lines.append(f"| {label} | {each['rate'] / 1e6:.3g} | 1 | {each['cpu']:.3g} | | | |")
            continue
        part = "" if each["whole"] else "*"
        lines.append(
            f"| {label} | {each['rate'] / 1e6:.3g}{part} | {each.get('share', 0):.3g} | {each['cpu']:.3g} | "
            f"{each['peak']:.0f} | {each['first']:.2f} | {'yes' if each['exact'] else 'no'} |"
        )
    lines += [f"| {PEERS[name].label} | {each['error']} |" for name, each in figures.items() if "error" in each]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python benchmarks/peers", description=__doc__.splitlines()[0])
    scratch = Path(tempfile.gettempdir())
    parser.add_argument("--data", type=Path, default=scratch / "tdu-benchmark", help="where tables are written")
    parser.add_argument("--environments", type=Path, default=scratch / "tdu-peers", help="one per loader")
    parser.add_argument("--tables", nargs="*", default=[*TABLES, "lineitem"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), help="rows of a batch")
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2])
    parser.add_argument("--shuffle", nargs="*", choices=["no", "yes"], default=["no", "yes"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="the longest a run goes on")
    parser.add_argument("--results", type=Path, help="a JSON file of all figures; cases that it has are not run again")
    parser.add_argument("--quick", action="store_true", help="wide and text, against what needs no environment")
    given = parser.parse_args()
    if given.quick:
        given.tables, given.workers, given.sizes, given.shuffle = ["wide", "text"], [0], [1024, 16384], ["no", "yes"]
        given.peers, given.rounds, given.seconds = [name for name in PEERS if not PEERS[name].requirements], 3, 3.0
    found, versions = {}, {}
    for name in dict.fromkeys(["limit", *given.peers]):
        try:
            found[name] = interpreter(PEERS[name], given.environments)
            versions[name] = version(PEERS[name], found[name])
        except subprocess.CalledProcessError as error:
            print(f"{name} cannot be installed: {_reason(error.stderr)}", file=sys.stderr)
    kept: dict[str, Any] = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    print(f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}\n")
    for case in cases(given.tables, given.sizes, given.workers, [word == "yes" for word in given.shuffle]):
        key = json.dumps([case.table, case.rows, case.workers, case.shuffle])
        if key not in kept:
            print(f"{case} ...", file=sys.stderr, flush=True)
            source = (
                write_lineitem(given.data, given.environments)
                if case.table == "lineitem"
                else write(case.table, given.data)
            )
            kept[key] = race(case, source, found, given.data, given.rounds, given.seconds)
            if given.results:
                given.results.write_text(json.dumps(kept, indent=1))
        print(table_of(case, kept[key], versions), flush=True)


if __name__ == "__main__":
    main()
