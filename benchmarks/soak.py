"""What a process holds over many epochs, with and without faults: `python benchmarks/soak.py [--epochs 200]`.

Each of four runs (threads, processes; without and with faults) is a process of its own that reads a local table and one
of a server on loopback. In a run with faults, every epoch but each eighth fails in one way, and the same loader reads
on. After each epoch the run notes its memory, threads, descriptors, memfds and entries of /dev/shm in
benchmarks/soak.json; `scripts/draw_soak.py` draws them. The exit status is 1 if a value rises with the epochs.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.faults.serving import serve

RESULTS = Path(__file__).parent / "soak.json"
FILES, ROWS_OF_FILE = 4, 20_000
ROWS = FILES * ROWS_OF_FILE
TIMEOUT = 5.0  # seconds
RUNS = [(mode, faulty) for mode in ("threads", "processes") for faulty in (False, True)]
# The least rise from the second quarter of the epochs to the last that is a leak, not noise.
ALLOWED = {"memory": 16.0, "threads": 1.5, "descriptors": 2.5, "memfds": 2.5, "shared memory": 0.5, "processes": 0.5}


def write_table(folder: Path, files: int = FILES) -> None:
    """Files of 16 float columns and an id, some 1.4 MB each."""
    folder.mkdir()
    for number in range(files):
        ids = np.arange(number * ROWS_OF_FILE, (number + 1) * ROWS_OF_FILE)
        columns = {f"x{column}": np.sqrt(ids * (column + 1)).astype(np.float32) for column in range(16)}
        pq.write_table(pa.table({"id": ids, **columns}), folder / f"{number}.parquet", row_group_size=10_000)


class Transform:
    """A user's transform that does nothing, or what a file next to the table asks for: fail, or take too long."""

    def __init__(self, switch: Path) -> None:
        self.switch = switch

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and self.switch.exists():
            if self.switch.read_text() == "fail":
                raise ValueError("a transform failed")
            time.sleep(TIMEOUT + 2)
        return batch


# ---------------------------------------------------------------------------------------------------- the server


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL at which a process of its own serves the folder."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def serve_folder(folder: Path) -> None:
    """Serve until this process is killed. While FAULTS is there, every third request fails, with 500 or a reset."""

    def behave(number: int, headers: Any) -> Any:
        if number % 3 or not (folder / "FAULTS").exists():
            return None
        return "reset" if number % 2 else (500, {})

    url, _ = serve(folder, behave)
    print(url, flush=True)
    signal.pause()


# ------------------------------------------------------------------------------------------------------- one run


class Job:
    """The loaders of a run, and the faults that hit their passes."""

    def __init__(self, mode: str, folder: Path, url: str) -> None:
        options: dict[str, Any] = {"batch_size": 512, "shuffle": "splits", "timeout": 60, "num_workers": 2}
        options |= {"num_ranks": 1, "rank": 0, "worker_mode": "processes" if mode == "processes" else "threads"}
        self.folder, self.switch = folder, folder / "switch"
        transform = Transform(self.switch)
        create = StructuredDataset.create_dataloader
        self.local, self.dataset = create(str(folder / "table"), transform=transform, **options)
        self.slow, self.slow_dataset = create(
            str(folder / "table"), transform=transform, **options | {"timeout": TIMEOUT}
        )
        urls = [f"{url}/small/{number}.parquet" for number in range(2)]
        self.remote, self.remote_dataset = create(urls, **options)
        self.faults: list[Callable[[], None]] = [
            self.nothing, self.damaged_file, self.failing_transform, self.killed_worker,
            self.abandoned_iterator, self.slow_transform, self.failing_server, self.failing_loop,
        ]  # fmt: skip

    def epoch(self, number: int, faulty: bool) -> None:
        """An epoch that is hit by one of the faults, or by none."""
        self.dataset.set_epoch(number)
        self.remote_dataset.set_epoch(number)
        (self.faults[number % len(self.faults)] if faulty else self.nothing)()

    def nothing(self) -> None:
        complete(self.local, ROWS)
        complete(self.remote, 2 * ROWS_OF_FILE)

    def damaged_file(self) -> None:
        """A file is swapped for one of the same size that is damaged, and back."""
        path, other = self.folder / "table" / "3.parquet", self.folder / "kept"
        os.rename(path, other)
        path.write_bytes(bytes(other.stat().st_size))
        try:
            fails(self.local)
        finally:
            os.rename(other, path)

    def failing_transform(self) -> None:
        self._switched("fail")

    def slow_transform(self) -> None:
        self._switched("wait")

    def _switched(self, word: str) -> None:
        self.switch.write_text(word)
        try:
            fails(self.slow if word == "wait" else self.local)
        finally:
            self.switch.unlink()

    def killed_worker(self) -> None:
        """A worker process is killed; with threads, there is none to kill."""
        iterator = iter(self.local)
        next(iterator)
        for process in multiprocessing.active_children()[:1]:
            os.kill(process.pid, signal.SIGKILL)
        with suppress(RuntimeError):
            for _ in iterator:
                pass

    def abandoned_iterator(self) -> None:
        for loader in (self.local, self.remote):
            iterator = iter(loader)
            for _ in range(3):
                next(iterator)

    def failing_server(self) -> None:
        """Requests that fail are tried again: the pass is complete."""
        faults = self.folder / "FAULTS"
        faults.touch()
        try:
            complete(self.remote, 2 * ROWS_OF_FILE)
        finally:
            faults.unlink()

    def failing_loop(self) -> None:
        """The user's own code fails."""
        try:
            for _ in self.local:
                raise KeyError("a training step failed")
        except KeyError:
            pass

    def close(self) -> None:
        for dataset in (self.dataset, self.slow_dataset, self.remote_dataset):
            dataset.close()


def complete(loader: Any, rows: int) -> None:
    """A pass that must be complete."""
    count = sum(len(batch["id"]) for batch in loader)
    if count != rows:
        raise AssertionError(f"{count} rows of {rows}")


def fails(loader: Any) -> None:
    """A pass that must fail."""
    try:
        for _ in loader:
            pass
    except (ValueError, OSError):  # FileReadError and BatchTimeoutError are OSErrors
        return
    raise AssertionError("the fault was not noticed")


def measured() -> dict[str, float]:
    """What this process holds; memory in MiB, of its worker processes too, each page shared by n counted as 1/n."""
    gc.collect()
    pids = [os.getpid(), *descendants(os.getpid())]
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(entry))
    return {
        "memory": round(sum(map(proportional, pids)), 1),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(links),
        "memfds": sum("memfd:" in link for link in links),
        "shared memory": sum(not name.startswith("sem.") for name in os.listdir("/dev/shm")),
        "processes": len(pids),
    }


def proportional(pid: int) -> float:
    """A process's proportional set size in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they did."""
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            children += [int(child) for child in task.read_text().split()]
    return children + [pid for child in children for pid in descendants(child)]


def run(mode: str, faulty: bool, epochs: int) -> list[dict[str, float]]:
    """The values after each epoch."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder / "table")
        write_table(folder / "small", 2)
        with server(folder) as url:
            job, noted = Job(mode, folder, url), []
            for number in range(epochs):
                job.epoch(number, faulty)
                noted.append(measured())
            job.close()
            return noted


# ---------------------------------------------------------------------------------------------------- the result


def rises(noted: list[dict[str, float]]) -> dict[str, float]:
    """The values that rise: by how much from the second quarter of the epochs to the last, beyond what is allowed."""
    quarter = len(noted) // 4

    def mean(part: list[dict[str, float]], name: str) -> float:
        return sum(sample[name] for sample in part) / len(part)

    found = {name: mean(noted[-quarter:], name) - mean(noted[quarter : 2 * quarter], name) for name in ALLOWED}
    return {name: round(rise, 1) for name, rise in found.items() if rise > ALLOWED[name]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)  # a run: its mode and whether with faults
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)  # the folder of a run's server
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.serve:
        serve_folder(given.serve)
    if given.run:
        print(json.dumps(run(given.run[0], given.run[1] == "True", given.epochs)))
        return 0
    results, status = {}, 0
    for mode, faulty in RUNS:
        command = [sys.executable, __file__, "--epochs", str(given.epochs), "--run", mode, str(faulty)]
        began = time.monotonic()
        noted = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        name = f"{mode}, with faults" if faulty else mode
        results[name] = {key: [sample[key] for sample in noted] for key in noted[0]}
        print(f"{name}: {time.monotonic() - began:.0f} s; first {noted[0]}; last {noted[-1]}", flush=True)
        if more := rises(noted):
            print(f"  rises: {more}")
            status = 1
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in values.items())
        + "\n}"
        for name, values in results.items()
    ]
    given.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
