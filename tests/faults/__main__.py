"""Many rounds of signals and forks: `python -m tests.faults --rounds 100 [--seed 0] [--only workers main forks]`.

Each kind of round runs in a process of its own. It prints a table, or JSON with `--json`; a broken promise ends the
kind with an error that names the round, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Imported before the forks, so that it is done once. None of these starts a thread.
import torch  # noqa: F401

import torch_dataloader_utils.api.files
import torch_dataloader_utils.executors.processes  # noqa: F401
from tests.faults import forks, main_kills, rows, worker_kills
from tests.faults.forking import program
from tests.faults.rounds import Outcome, RoundError, summary
from tests.storage.servers import moto

KINDS = {
    "workers": worker_kills.SIGNALS,
    "main": main_kills.SIGNALS,
    "forks": ("every method",),
}


def say(words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def rounds_of(kind: str, which: str, folder: Path, temporary: Path, rounds: int, seed: int) -> Iterator[Outcome]:
    """The rounds of a kind, as they end."""
    if kind == "workers":
        return worker_kills.worker_rounds(folder, temporary, rounds, seed, which)
    if kind == "main":
        return main_kills.main_rounds(folder, temporary, rounds, seed, which)
    return _with_store(folder, temporary, rounds, seed)


def _with_store(folder: Path, temporary: Path, rounds: int, seed: int) -> Iterator[Outcome]:
    """Rounds of forks, with a server of S3, whose client starts a thread."""
    with tempfile.TemporaryDirectory() as place, moto(Path(place)) as store:
        yield from forks.fork_rounds(folder, temporary, store, rounds, seed)


def run(kind: str, which: str, folder: Path, rounds: int, seed: int, verbose: bool) -> dict[str, Any]:
    """The summary of a kind of rounds, which run in a fork of this process; with the error that ended it early."""
    with tempfile.TemporaryDirectory() as temporary:
        answer, own = Path(temporary) / "summary.json", Path(temporary) / "own"
        own.mkdir()

        def rounds_here() -> None:
            outcomes: list[Outcome] = []
            done: dict[str, Any] = {}
            try:
                for outcome in rounds_of(kind, which, folder, own, rounds, seed):
                    outcomes.append(outcome)
                    if verbose:
                        times = f"{outcome.waited:6.2f} s {outcome.closing:6.2f} s"
                        say(f"  {times}  {outcome.result}: {outcome.what}")
            except RoundError as error:
                done["error"] = f"round {len(outcomes)}: {error}"
            except Exception:  # noqa: BLE001 - reported
                done["error"] = f"round {len(outcomes)}: {traceback.format_exc()}"
            answer.write_text(json.dumps((summary(outcomes) if outcomes else {"rounds": 0}) | done))

        began = time.monotonic()
        _, status = os.waitpid(program(rounds_here, own), 0)
        result = json.loads(answer.read_text()) if answer.exists() else {"rounds": 0, "error": f"wait status {status}"}
        return {"kind": kind, "which": which, **result, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(KINDS), help="workers, main, forks; or a signal or method")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing while it runs")
    given = parser.parse_args()
    chosen = [(kind, which) for kind, many in KINDS.items() for which in many if {kind, which} & set(given.only)]
    with tempfile.TemporaryDirectory() as place:
        folder = rows.write_files(Path(place) / "rows")
        results = []
        for kind, which in chosen:
            if not given.json:
                say(f"{kind}: {which}")
            results.append(run(kind, which, folder, given.rounds, given.seed, not given.json))
            if not given.json:
                say(json.dumps(results[-1]))
    if given.json:
        say(json.dumps(results))
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
