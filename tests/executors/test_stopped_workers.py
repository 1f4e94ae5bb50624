"""Worker processes, and the fork server that starts them, stopped or killed: an error that says so, then new ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.executors import helpers
from tests.executors.test_drivers import runs
from torch_dataloader_utils import Processes, StructuredDataset
from torch_dataloader_utils.errors import BatchTimeoutError, WorkerError

ROWS = 6000
TIMEOUT = 2.0  # seconds
SLACK = 20.0  # seconds: the machine may be busy

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    helpers.write_table(path)
    return str(path)


def loader_of(folder: str, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 64, "split_rows": 500, "columns": ["id"], "timeout": TIMEOUT}
    processes = {"num_workers": 2, "worker_mode": Processes(context="fork")}
    return StructuredDataset.create_dataloader(folder, **given | processes | options)[0]


def workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid]


def ids_of(batches: Any) -> list[int]:
    return sorted(row for batch in batches for row in batch["id"].tolist())


def send(number: signal.Signals) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


@pytest.mark.parametrize(
    ("hit", "kind", "message"),
    [
        (stop, BatchTimeoutError, r"\(pid {}\) is stopped, by a signal such as SIGSTOP or by a debugger. It is ended"),
        (send(signal.SIGKILL), WorkerError, r"\(pid {}\) died with exit code -9 \(SIGKILL\).*starts new workers"),
        (send(signal.SIGSEGV), WorkerError, r"\(pid {}\) died with exit code -11 \(SIGSEGV\)"),
    ],
    ids=["SIGSTOP", "SIGKILL", "SIGSEGV"],
)
def test_a_worker_hit_during_a_pass_is_an_error_in_time_and_the_next_pass_has_every_row(
    folder: str, hit: Callable[[int], None], kind: type[Exception], message: str
) -> None:
    loader = loader_of(folder, prefetch_bytes=1)
    batches = iter(loader)
    next(batches)
    pids = workers()
    hit(pids[0])
    began = time.monotonic()
    with pytest.raises(kind, match=message.format(pids[0])):
        list(batches)
    assert time.monotonic() - began < TIMEOUT + SLACK
    assert not any(runs(str(pid)) for pid in pids)
    assert ids_of(loader) == list(range(ROWS))
    loader.dataset.close()


@pytest.mark.parametrize("hit", [stop, send(signal.SIGKILL)], ids=["SIGSTOP", "SIGKILL"])
def test_a_worker_hit_between_passes_is_replaced(folder: str, hit: Callable[[int], None]) -> None:
    loader = loader_of(folder)
    assert ids_of(loader) == list(range(ROWS))
    pids = workers()
    hit(pids[1])
    while pids[1] in workers() and hit is not stop:  # until it is reaped: its last thread may end after its first
        time.sleep(0.01)
    assert ids_of(loader) == list(range(ROWS))
    assert not set(pids) & set(workers())
    loader.dataset.close()


def test_a_stopped_worker_that_has_no_room_for_its_tasks_is_an_error_in_time(folder: str) -> None:
    """Its pipe holds 200 KiB; the tasks of large datasets are megabytes."""
    loader = loader_of(folder)
    next(iter(loader))
    pool = loader.dataset._latest._workers._pool
    pid = workers()[0]
    stop(pid)
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"no tasks could be sent within timeout=2.0 s: .*is stopped"):
        pool.members[[member.process.pid for member in pool.members].index(pid)].send(b"x" * (4 << 20))
    assert time.monotonic() - began < TIMEOUT + SLACK
    assert ids_of(loader) == list(range(ROWS))
    assert not runs(str(pid))
    loader.dataset.close()


def test_closing_ends_stopped_workers_soon(folder: str) -> None:
    loader = loader_of(folder)
    next(iter(loader))
    pids = workers()
    for pid in pids:
        stop(pid)
    began = time.monotonic()
    loader.dataset.close()
    assert time.monotonic() - began < SLACK / 2
    assert not any(runs(str(pid)) for pid in pids)


@pytest.mark.slow
def test_a_stopped_or_killed_fork_server_and_an_exit_with_a_stopped_worker(folder: str, tmp_path: Path) -> None:
    """In a process of its own, because all tests share a fork server."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, os, signal, sys, time
            from multiprocessing import forkserver
            from torch_dataloader_utils import StructuredDataset

            def passes(timeout):
                options = {{"num_workers": 1, "worker_mode": "processes", "columns": ["id"], "timeout": timeout}}
                loader = StructuredDataset.create_dataloader({folder!r}, **options)[0]
                try:
                    print(sum(len(batch["id"]) for batch in loader), flush=True)
                except Exception as error:
                    print(type(error).__name__, error, flush=True)
                return loader

            def hit(number):
                pid = forkserver._forkserver._forkserver_pid
                os.kill(pid, number)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)  # until it is hit; Python collects it

            if __name__ == "__main__":
                passes(60).dataset.close()
                hit(signal.SIGSTOP)
                began = time.monotonic()
                passes(3)
                assert time.monotonic() - began < 3 + {SLACK}
                passes(60).dataset.close()
                hit(signal.SIGKILL)
                loader = passes(60)
                hit(signal.SIGSTOP)
                for process in multiprocessing.active_children():
                    os.kill(process.pid, signal.SIGSTOP)
                print("ends", flush=True)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert [lines[0], *lines[2:]] == ["6000", "6000", "6000", "ends"], done.stdout + done.stderr
    assert lines[1].startswith(
        "BatchTimeoutError Python's fork server started no worker process within timeout=3 s: it is stopped"
    )
    assert done.stderr == ""
