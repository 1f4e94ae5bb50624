"""Rounds in which a signal ends the main process at a random moment; what it started must end with it."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults import rows
from tests.faults.forking import INTERRUPTED, program
from tests.faults.residue import SHARED, shared_names, wait_for_end
from tests.faults.rounds import SLACK, Outcome, fail_unless

TIMEOUT = 5.0  # seconds: the loader's own
SIGNALS = ("SIGKILL", "SIGINT")
EPOCHS = 3


def main_rounds(folder: Path, temporary: Path, rounds: int, seed: int, kind: str) -> Iterator[Outcome]:
    """Rounds of one signal. This process must have no thread: the jobs are its forks."""
    expected = {}
    for count in (1, 2):
        path = temporary / f"expected-{count}"
        pid = program(lambda path=path, count=count: job(folder, path, {"num_workers": count}))
        fail_unless(os.waitpid(pid, 0)[1] == 0, "a job without a fault failed")
        expected[count] = _noted(path)
        path.unlink()
    for number in range(rounds):
        chance = random.Random(f"{seed} {kind} {number}")
        before = shared_names()
        yield main_round(folder, temporary, chance, getattr(signal, kind), expected)
        names = shared_names() - before
        fail_unless(not names, f"left in {SHARED}: {names}")


def main_round(
    folder: Path, temporary: Path, chance: random.Random, number: signal.Signals, expected: dict[int, list[int]]
) -> Outcome:
    """One round: a job of three epochs that is ended somewhere."""
    mode = chance.choice([name for name in rows.MODES if name != "processes by spawn" or chance.random() < 0.3])
    options = dict(rows.MODES[mode]) | {"timeout": TIMEOUT}
    order = expected[options["num_workers"] or 1]
    # A number of rows at which the signal is sent: none for a moment of the start, else in any epoch or between two.
    at = chance.choice([0, rows.BATCH, chance.randrange(len(order)), rows.ROWS, rows.ROWS * 2 - rows.BATCH])
    what = f"{number.name} of the main process at {at} rows, {mode}"
    with tempfile.TemporaryDirectory(dir=temporary) as own:
        path, log = Path(own) / "ids", Path(own) / "log"
        pid = program(lambda: job(folder, path, options), Path(own), log)
        _wait_for_rows(path, at)
        time.sleep(chance.uniform(0, 0.2 if at == 0 else 0.02))
        began = time.monotonic()
        # Ctrl-C reaches all processes of a terminal, `kill` one.
        (os.killpg if number == signal.SIGINT and chance.random() < 0.5 else os.kill)(pid, number)
        status = os.waitstatus_to_exitcode(_collect(pid, TIMEOUT + SLACK, what))
        ended = time.monotonic() - began
        alive = wait_for_end(pid)
        fail_unless(not alive, f"{what}: {len(alive)} processes outlived it")
        closing = time.monotonic() - began
        ids, said = _noted(path), log.read_text() if log.exists() else ""
        fail_unless(ids == order[: len(ids)], f"{what}: {len(ids)} rows, not the first of the order")
        _check_end(what, number, status, len(ids) == len(order), said)
        others = {str(entry.relative_to(own)) for entry in Path(own).rglob("*") if not _of_fork_server(entry)}
        fail_unless(others <= {"ids", "log"}, f"{what}: left {others}")
    return Outcome(what, "every row" if status == 0 else f"ended by {number.name}", ended, closing)


def _check_end(what: str, number: signal.Signals, status: int, complete: bool, said: str) -> None:
    """A job ends well with all rows; by its signal; or, on Ctrl-C, with one KeyboardInterrupt and no other words."""
    if status == 0:
        # Python says so if Ctrl-C comes while it exits, after the job.
        late = number == signal.SIGINT and said.endswith("KeyboardInterrupt: \n")
        fail_unless(complete and (late or not said), f"{what}: ended well without all rows, or with words: {said}")
    elif number == signal.SIGKILL:
        fail_unless(status == -signal.SIGKILL and not said, f"{what}: status {status}, and words: {said}")
    else:
        fail_unless(status == INTERRUPTED, f"{what}: status {status}: {said}")
        fail_unless(said == "KeyboardInterrupt\n", f"{what}: other words than one interrupt: {said}")


def job(folder: Path, path: Path, options: dict[str, Any]) -> None:
    """Read the epochs and append the ids of each batch to a file, as a training script would save what it did."""
    out = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    loader, dataset = rows.create(folder, **options)
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        for batch in loader:
            os.write(out, array("q", batch["id"].tolist()).tobytes())
            time.sleep(0.001)


def _of_fork_server(entry: Path) -> bool:
    """Whether this is the address of Python's fork server, which is left behind if nobody can remove it: SIGKILL."""
    return entry.is_socket() or (entry.name.startswith("pymp-") and all(inner.is_socket() for inner in entry.iterdir()))


def _wait_for_rows(path: Path, at: int) -> None:
    """Wait until so many rows are noted, or for a while if the job is slower than that."""
    deadline = time.monotonic() + SLACK
    while (not path.exists() or path.stat().st_size < at * 8) and time.monotonic() < deadline:
        time.sleep(0.001)


def _collect(pid: int, patience: float, what: str) -> int:
    """The wait status of a child that ends in time; the child and its session are killed if it does not."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"{what}: the process did not end")


def _noted(path: Path) -> list[int]:
    """The ids in the file; those of a batch whose write a kill cut in two are left out."""
    if not path.exists():
        return []
    data = path.read_bytes()
    return array("q", data[: len(data) // 8 * 8]).tolist()
