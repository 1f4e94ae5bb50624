"""A job killed with SIGKILL at random steps, restarted with other numbers of ranks: every row of every epoch once."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forkrun
from tests.killing import kill, lines, start, write_rows

FILES = [170, 20, 333, 64, 5, 128, 251, 90, 310, 1, 77, 205, 140, 66, 31, 190]  # rows of each
EPOCHS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("flights"), FILES)


def start_run(data: Path, out: Path, run: int, ranks: int, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    job = Path(__file__).with_name("elastic_job.py")
    return start([*forkrun.command(ranks), job, data, out, run, EPOCHS, json.dumps(settings)], out, f"run-{run}.log")


def kill_run(job: subprocess.Popen[bytes], out: Path, run: int) -> None:
    """Kill the launcher, and the ranks, which have sessions of their own, as the loss of a machine does."""
    kill(job)
    for path in out.glob(f"run-{run}-*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def kill_after(job: subprocess.Popen[bytes], out: Path, run: int, steps: int) -> bool:
    """Kill the job once rank 0 has done so many steps: whether it was still running then."""
    log, deadline = out / f"run-{run}-0.jsonl", time.monotonic() + 120
    while job.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.read_bytes().count(b"\n") >= steps:
            kill_run(job, out, run)
            return True
        time.sleep(0.005)
    if job.poll() is None:
        kill_run(job, out, run)
    assert job.wait() == 0, (out / f"run-{run}.log").read_text()[-5000:]
    return False


def run_with_kills(
    data: Path, out: Path, kills: int, next_ranks: Callable[[int], int], settings: dict[str, Any], seed: int
) -> dict[int, Counter[int]]:
    """The rows of each epoch over the steps that a saved state covers, and those of the last run."""
    draw = random.Random(seed)
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(EPOCHS)}
    killed = run = 0
    while True:
        job = start_run(data, out, run, next_ranks(run), settings)
        if killed == kills:
            assert job.wait(timeout=180) == 0, (out / f"run-{run}.log").read_text()[-3000:]
        elif kill_after(job, out, run, draw.randint(1, 12)):
            killed += 1
        state = json.loads((out / "state.json").read_text()) if (out / "state.json").exists() else {"run": -1}
        covered = state["steps"] if state["run"] == run else 0
        for line in lines(out, run):
            if line["step"] < covered:
                seen[line["epoch"]].update(line["ids"])
        if job.returncode == 0:
            assert killed == kills, "the job came to its end before the kills: make it longer"
            return seen
        run += 1


SPLITS = {"batch_size": 16, "split_rows": 100, "num_workers": 2}
ROW_SHUFFLE = {"batch_size": 16, "split_rows": 100, "sharding": "contiguous", "shuffle_buffer_size": 120}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "seed"), [(SPLITS, 1), (SPLITS, 2), (ROW_SHUFFLE, 3), (ROW_SHUFFLE, 4)], ids=str)
def test_every_row_once_over_five_kills(data: Path, tmp_path: Path, settings: dict[str, Any], seed: int) -> None:
    """4 ranks, then 4, 2, 3, 4, ...: some steps are lost with each kill, and delivered again after it; none else."""
    seen = run_with_kills(data, tmp_path, 5, lambda run: (4, 2, 3)[(run + seed) % 3], settings, seed)
    for epoch, rows in seen.items():
        assert rows == Counter(range(sum(FILES))), f"epoch {epoch}"
