"""Workers and their fork server outlive the signals that end a job, as long as the process that reads lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

JOB = Path(__file__).with_name("signals_job.py")
ROWS = 2_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for first in range(0, ROWS, 100):
        pq.write_table(pa.table({"id": range(first, first + 100)}), folder / f"{first}.parquet", row_group_size=10)
    return folder


class Job:
    """The job, which has read some steps, in a process group of its own."""

    def __init__(self, context: str, folder: Path, out: Path) -> None:
        command = [sys.executable, JOB, context, folder, out]
        self.process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
        self._out = out
        deadline = time.monotonic() + 100
        while not Path(f"{out}.ready").exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def group(self) -> set[int]:
        """The processes that run."""
        found = subprocess.run(["pgrep", "-g", str(self.process.pid)], capture_output=True, text=True, check=False)
        return set(map(int, found.stdout.split()))

    def found(self) -> dict[str, Any]:
        """What it wrote, once all its processes have ended."""
        error = self.process.communicate(timeout=100)[1]
        assert self.process.returncode == 0, error
        self.wait_for_none()
        return json.loads(self._out.read_text())

    def wait_for_none(self) -> None:
        deadline = time.monotonic() + 20
        while left := self.group():
            assert time.monotonic() < deadline, f"processes stay behind: {left}"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
@pytest.mark.parametrize("context", ["thread", "default", "fork", "forkserver", "spawn"])
def test_a_signal_to_the_group_is_the_readers_to_answer(
    folder: Path, tmp_path: Path, context: str, number: signal.Signals
) -> None:
    job = Job(context, folder, tmp_path / "out")
    os.killpg(job.process.pid, number)
    found = job.found()
    assert found["error"] is None
    assert sorted(found["rows"]) == list(range(ROWS))
    assert found["noted"] == [number]
    assert found["other"] == -signal.SIGTERM, "a process of the user's outlives terminate()"


@pytest.mark.slow
@pytest.mark.parametrize("context", ["default", "fork", "forkserver", "spawn"])
def test_signals_to_workers_and_fork_server_alone_change_nothing(folder: Path, tmp_path: Path, context: str) -> None:
    job = Job(context, folder, tmp_path / "out")
    for pid in job.group() - {job.process.pid}:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    found = job.found()
    assert (found["error"], found["noted"]) == (None, [])
    assert sorted(found["rows"]) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["default", "fork", "forkserver", "spawn"])
def test_all_end_with_a_killed_reader(folder: Path, tmp_path: Path, context: str) -> None:
    job = Job(context, folder, tmp_path / "out")
    assert len(job.group()) > 2
    job.process.kill()
    job.process.communicate()
    job.wait_for_none()
