"""Faults of functions, threads, worker processes and forks during a pass."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults import rows
from tests.faults.forking import in_fork, program
from tests.faults.main_kills import job
from tests.faults.residue import wait_for_end
from tests.faults.table import fault
from torch_dataloader_utils.errors import BatchTimeoutError, DataLoaderUtilsError, WorkerError

SECTION = "Functions and processes"
PROCESSES = "processes by fork"
TIMEOUT = 1.0  # seconds: the loader's own


class TransformError(Exception):
    """A user's own."""


def _fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        raise TransformError("no")
    return batch


def _hangs(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        time.sleep(1000)
    return batch


def _begun(folder: Path, mode: str = PROCESSES, **options: Any) -> tuple[Any, Any]:
    """A loader, and an iterator in the middle of its pass."""
    loader, _ = rows.create(rows.write_files(folder / "rows"), mode, **options)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    return loader, iterator


def _hit(folder: Path, number: signal.Signals) -> Callable[[], object]:
    _, iterator = _begun(folder, timeout=TIMEOUT)
    os.kill(multiprocessing.active_children()[0].pid or 0, number)
    return lambda: list(iterator)


@fault(
    SECTION,
    "A transform raises",
    TransformError,
    "tests/executors/test_drivers.py::test_a_worker_s_error_reaches_the_caller",
)
def failing_transform(folder: Path) -> Callable[[], object]:
    loader, _ = rows.create(rows.write_files(folder / "rows"), PROCESSES, transform=_fails)
    return lambda: list(loader)


@fault(
    SECTION,
    f"A transform hangs (`timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/executors/test_drivers.py::test_timeout",
)
def hanging_transform(folder: Path) -> Callable[[], object]:
    loader, _ = rows.create(rows.write_files(folder / "rows"), transform=_hangs, timeout=TIMEOUT)
    return lambda: list(loader)


@fault(
    SECTION,
    "A worker process is killed (SIGKILL, as for memory)",
    WorkerError,
    "tests/executors/test_drivers.py::test_a_killed_worker_is_an_error_and_the_next_pass_starts_anew",
)
def killed_worker(folder: Path) -> Callable[[], object]:
    return _hit(folder, signal.SIGKILL)


@fault(
    SECTION,
    "A worker process crashes (SIGSEGV)",
    WorkerError,
    "tests/faults/test_rounds.py::test_a_signal_to_a_worker_costs_one_error_and_no_row",
)
def crashed_worker(folder: Path) -> Callable[[], object]:
    return _hit(folder, signal.SIGSEGV)


@fault(
    SECTION,
    f"A worker process is stopped (SIGSTOP, `timeout={TIMEOUT:g}`)",
    BatchTimeoutError,
    "tests/faults/test_rounds.py::test_a_signal_to_a_worker_costs_one_error_and_no_row",
)
def stopped_worker(folder: Path) -> Callable[[], object]:
    return _hit(folder, signal.SIGSTOP)


@fault(
    SECTION,
    "The pass after one that lost a worker",
    "every row once, by new workers",
    "tests/faults/test_rounds.py::test_a_signal_to_a_worker_costs_one_error_and_no_row",
)
def after_a_stop(folder: Path) -> Callable[[], object]:
    loader, iterator = _begun(folder, timeout=TIMEOUT)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGSTOP)
    try:
        list(iterator)
    except BatchTimeoutError:
        return lambda: sorted(rows.ids_of(loader)) == list(range(rows.ROWS))
    raise AssertionError("no timeout")


@fault(
    SECTION,
    "The main process is killed (SIGKILL)",
    "its worker processes end, too; a new run delivers every row",
    "tests/faults/test_rounds.py::test_a_signal_to_the_main_process_leaves_nothing_behind",
    "the steps since the last checkpoint",
)
def killed_main(folder: Path) -> Callable[[], object]:
    place = rows.write_files(folder / "rows")
    pid = program(lambda: job(place, folder / "ids", rows.MODES[PROCESSES]))
    while not (folder / "ids").exists() or not (folder / "ids").stat().st_size:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return lambda: not wait_for_end(pid)


@fault(
    SECTION,
    "A forked child takes batches from its parent's iterator",
    DataLoaderUtilsError,
    "tests/executors/test_drivers.py::test_a_forked_child_leaves_the_workers_to_its_parent",
)
def forked_iterator(folder: Path) -> Callable[[], object]:
    _, iterator = _begun(folder)
    return lambda: in_fork(lambda: list(iterator), 20)


@fault(
    SECTION,
    "A forked child reads its parent's loader, whose workers run",
    "every row once in the child, or one error; the parent loses none",
    "tests/faults/test_rounds.py::test_children_of_a_process_that_used_everything_read_every_row_or_say_why_not",
)
def forked_loader(folder: Path) -> Callable[[], object]:
    loader, iterator = _begun(folder)

    def read() -> bool:
        try:
            complete = in_fork(lambda: sorted(rows.ids_of(loader)), 20) == list(range(rows.ROWS))
        except DataLoaderUtilsError:
            complete = True
        return complete and len(rows.ids_of(iterator)) == rows.ROWS - 5 * rows.BATCH

    return read
