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
METHODS = ("default", "fork", "forkserver", "spawn")
SOME_NIGHTLY = [*METHODS[:2], *(pytest.param(way, marks=pytest.mark.nightly) for way in METHODS[2:])]


def mostly(case: str, *nightly: str) -> list[Any]:
    """Each way to start workers with a case, in CI; with further cases, in CI only the default way."""
    more = [pytest.param(way, each, marks=pytest.mark.nightly) for each in nightly for way in METHODS[1:]]
    return [*((way, case) for way in METHODS), *((METHODS[0], each) for each in nightly), *more]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for first in range(0, ROWS, 100):
        pq.write_table(pa.table({"id": range(first, first + 100)}), folder / f"{first}.parquet", row_group_size=10)
    return folder


class Job:
    """The job, in a process group of its own."""

    def __init__(self, context: str, folder: Path, out: Path, how: str = "handlers") -> None:
        command = [sys.executable, JOB, context, folder, out, how]
        self.process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
        self._out = out

    def wait_until_ready(self) -> None:
        """Wait until it has read some steps."""
        deadline = time.monotonic() + 100
        while not Path(f"{self._out}.ready").exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def group(self) -> set[int]:
        """The processes that run."""
        found = subprocess.run(["pgrep", "-g", str(self.process.pid)], capture_output=True, text=True, check=False)
        return set(map(int, found.stdout.split()))

    def found(self) -> dict[str, Any]:
        """What it wrote, once all its processes have ended."""
        try:
            error = self.process.communicate(timeout=100)[1]
            assert self.process.returncode == 0, error
            self.wait_for_none()
        finally:
            for pid in self.group():
                os.kill(pid, signal.SIGKILL)
        return json.loads(self._out.read_text())

    def wait_for_none(self) -> None:
        deadline = time.monotonic() + 20
        while left := self.group():
            assert time.monotonic() < deadline, f"processes stay behind: {left}"
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "name"),
    [
        ("thread", "SIGTERM"),
        pytest.param("thread", "SIGUSR1", marks=pytest.mark.nightly),
        *mostly("SIGTERM", "SIGUSR1"),
    ],
)
def test_a_signal_to_the_group_is_the_readers_to_answer(folder: Path, tmp_path: Path, context: str, name: str) -> None:
    number = signal.Signals[name]
    job = Job(context, folder, tmp_path / "out")
    job.wait_until_ready()
    os.killpg(job.process.pid, number)
    found = job.found()
    assert sorted(found["rows"]) == list(range(ROWS))
    assert found["noted"] == [number]
    assert found["other"] == -signal.SIGTERM, "a process of the user's outlives terminate()"


@pytest.mark.slow
def test_an_earlier_fork_server_outlives_them_too_if_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    job = Job("default", folder, tmp_path / "out", "early")
    job.wait_until_ready()
    os.killpg(job.process.pid, signal.SIGTERM)
    found = job.found()
    assert (sorted(found["rows"]), found["noted"]) == (list(range(ROWS)), [signal.SIGTERM])


@pytest.mark.slow
@pytest.mark.parametrize(("context", "how"), mostly("handlers", "loop"))
def test_signals_to_workers_and_fork_server_alone_change_nothing(
    folder: Path, tmp_path: Path, context: str, how: str
) -> None:
    job = Job(context, folder, tmp_path / "out", how)
    job.wait_until_ready()
    for pid in job.group() - {job.process.pid}:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(pid, number)
    found = job.found()
    assert found["noted"] == []
    assert sorted(found["rows"]) == list(range(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(("context", "end"), mostly("killed", "killed, stuck workers", "SIGTERM to all, stuck workers"))
def test_all_end_with_the_reader(folder: Path, tmp_path: Path, context: str, end: str) -> None:
    job = Job(context, folder, tmp_path / "out", "stuck" if "stuck" in end else "handlers")
    job.wait_until_ready()
    assert len(job.group()) > 2
    if end.startswith("killed"):
        job.process.kill()
    else:
        os.killpg(job.process.pid, signal.SIGTERM)
    job.process.communicate()
    try:
        job.wait_for_none()
    finally:
        for pid in job.group():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("context", SOME_NIGHTLY)
def test_programs_of_a_transform_end_by_sigterm_and_its_reads_do_not(
    folder: Path, tmp_path: Path, context: str
) -> None:
    found = Job(context, folder / "0.parquet", tmp_path / "out", "programs").found()
    assert sorted(found["rows"]) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("context", SOME_NIGHTLY)
def test_a_child_that_leaves_a_pass_open_ends(folder: Path, tmp_path: Path, context: str) -> None:
    assert Job(context, folder, tmp_path / "out", "left").found() == {"exitcode": 0}


@pytest.mark.slow
@pytest.mark.parametrize("context", SOME_NIGHTLY)
def test_workers_end_if_they_are_terminated_as_children(folder: Path, tmp_path: Path, context: str) -> None:
    assert Job(context, folder, tmp_path / "out", "active").found() == {"exitcodes": [-signal.SIGKILL] * 2}
