"""Jobs that are killed and started again, and which rows their steps delivered.

Each process of a job appends a line per batch to OUT/run-RUN-*.jsonl: {"epoch", "step", "ids"}, where `step` counts
over all runs: a run begins at the step of the checkpoint that it was started from.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TIMEOUT = 150  # seconds
FILES = (170, 333, 64, 5, 128, 290, 110)  # rows of each
ROWS = sum(FILES)


def write_rows(folder: Path, files: Sequence[int] = FILES) -> Path:
    """Files of so many rows: `id` counts through them."""
    at = 0
    for number, rows in enumerate(files):
        ids = pa.array(range(at, at + rows))
        table = pa.table({"id": ids, "odd": [row % 2 for row in range(at, at + rows)]})
        pq.write_table(table, folder / f"{number:02d}.parquet", row_group_size=50)
        at += rows
    return folder


def start(command: list[Any], out: Path, log: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own, its output in a file."""
    with (out / log).open("wb") as file:
        return subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=file, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip


def wait_for(condition: Callable[[], bool], jobs: list[subprocess.Popen[bytes]], out: Path) -> None:
    """Return once the condition holds; fail with what the jobs said if one ends or it takes too long."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > deadline or any(job.poll() is not None for job in jobs):
            raise AssertionError("\n".join(path.read_text()[-3000:] for path in sorted(out.glob("*.log"))))
        time.sleep(0.01)


def kill(job: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a job at once, as the loss of its machine does."""
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def finish(jobs: list[subprocess.Popen[bytes]], out: Path) -> None:
    """Wait until the jobs have ended well."""
    said = [job.wait(timeout=TIMEOUT) for job in jobs]
    assert not any(said), "\n".join(path.read_text()[-3000:] for path in sorted(out.glob("*.log")))


def lines(out: Path, run: int) -> list[dict[str, Any]]:
    """What the processes of a run noted, in order of steps; a line that a kill cut in two is none."""
    found = []
    for path in out.glob(f"run-{run}-*.jsonl"):
        found += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return sorted(found, key=lambda line: line["step"])


def counted(out: Path, runs: int) -> dict[int, Counter[int]]:
    """How often each row of each epoch was delivered, over steps that checkpoints cover and those of the last run."""
    seen: dict[int, Counter[int]] = {}
    covered = None
    for run in reversed(range(runs)):
        noted = lines(out, run)
        for line in noted:
            if covered is None or line["step"] < covered:
                seen.setdefault(line["epoch"], Counter()).update(line["ids"])
        covered = noted[0]["step"] if noted else covered
    return seen
