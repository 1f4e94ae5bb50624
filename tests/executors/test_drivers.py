"""In-line, threads and processes: the same batches, and nothing left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executors import helpers
from torch_dataloader_utils import Processes, StaleIteratorError, StructuredDataset
from torch_dataloader_utils.errors import BatchTimeoutError, OptionError, WorkerError
from torch_dataloader_utils.executors.threads import ThreadDriver
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block

MODES = {"thread": "threads", "process": Processes(context="fork")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    helpers.write_table(path)
    return str(path)


def loader_of(folder: str, **options: Any) -> Any:
    options = {"batch_size": 64, "shuffle": True, "split_rows": 500} | options
    return StructuredDataset.create_dataloader(folder, **options)


def ids_of(batches: list[dict[str, Any]]) -> list[int]:
    return torch.cat([batch["id"] for batch in batches]).tolist()


def tdu_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tdu-")]


def shared_files() -> list[str]:
    """Descriptors and mappings of shared slots in this process."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    found = [link for link in links if "tdu-slot" in link]
    return found + [line for line in Path("/proc/self/maps").read_text().splitlines() if "tdu-slot" in line]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize("workers", [1, 2])
def test_processes_threads_and_inline_agree(folder: str, output_format: str, workers: int) -> None:
    options: dict[str, Any] = {"output_format": output_format, "num_ranks": 2, "rank": 1, "transform": helpers.double}
    options["num_workers"] = workers
    threads, _ = loader_of(folder, **options)
    processes, dataset = loader_of(folder, worker_mode=Processes(context="fork"), **options)
    for _ in range(2):
        wanted = [helpers.as_lists(batch) for batch in threads]
        assert [helpers.as_lists(batch) for batch in processes] == wanted
    dataset.close()
    if workers == 1:
        inline, _ = loader_of(folder, **options | {"num_workers": 0})
        first = [helpers.as_lists(batch) for batch in inline]
        threads, _ = loader_of(folder, **options)
        assert [helpers.as_lists(batch) for batch in threads] == first


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_start_methods_and_persistent_workers(folder: str, context: str) -> None:
    loader, dataset = loader_of(folder, num_workers=2, worker_mode=Processes(context=context))
    threads, other = loader_of(folder, num_workers=2)
    pids = set()
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        other.set_epoch(epoch)
        assert ids_of(list(loader)) == ids_of(list(threads))
        pids |= {process.pid for process in multiprocessing.active_children()}
    assert len(pids) == 2
    dataset.close()
    assert not multiprocessing.active_children()


def test_workers_end_with_the_pass_unless_persistent(folder: str) -> None:
    loader, _ = loader_of(folder, num_workers=2, worker_mode=Processes(False, context="fork"))
    for _ in range(2):
        assert len(ids_of(list(loader))) == 6000
        assert not multiprocessing.active_children()


def test_worker_processes_have_no_torch(folder: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parents[2])!r})
            from tests.executors import helpers

            if __name__ == "__main__":
                from torch_dataloader_utils import StructuredDataset
                loader, _ = StructuredDataset.create_dataloader(
                    {folder!r}, num_workers=2, worker_mode="processes", transform=helpers.modules_without_torch
                )
                print(sum(float(batch["x"].sum()) for batch in loader))
            """
        )
    )
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0.0\n"
    assert done.stderr == ""


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_nothing_is_left_when_an_iterator_is_dropped(folder: str, mode: str) -> None:
    gc.collect()
    others = len(shared_files())  # of tests before, whose batches something still holds
    loader, dataset = loader_of(folder, num_workers=2, worker_mode=MODES[mode])
    iterator = iter(loader)
    next(iterator)
    before = len(shared_files())
    del iterator
    gc.collect()
    assert not tdu_threads()
    if mode == "process":
        assert before > others
        assert len(ids_of(list(loader))) == 6000  # the workers are still there, and forgot the pass left half-way
    dataset.close()
    del loader, dataset
    gc.collect()
    assert not multiprocessing.active_children()
    assert len(shared_files()) <= others


def test_batches_outlive_the_loader(folder: str) -> None:
    loader, dataset = loader_of(folder, num_workers=2, worker_mode=Processes(context="fork"), batch_size=500)
    kept = list(loader)
    copies = [batch["id"].clone() for batch in kept]
    list(loader)  # with more slots, since all of the first pass are held
    dataset.close()
    assert all(torch.equal(batch["id"], copy) for batch, copy in zip(kept, copies, strict=True))
    assert sorted(ids_of(kept)) == list(range(6000))


@pytest.mark.parametrize("mode", ["inline", "thread", "process"])
def test_slots_and_views_are_writable_and_separate(folder: str, mode: str) -> None:
    workers = 0 if mode == "inline" else 2
    mode = "thread" if mode == "inline" else mode
    loader, dataset = loader_of(folder, num_workers=workers, worker_mode=MODES[mode])
    seen = []
    weight = torch.ones((), requires_grad=True)
    for batch in loader:
        seen += batch["id"].tolist()
        batch["x"].mul_(weight)
        batch["id"].fill_(-1)
        batch["items"]["values"].fill_(-1)
        batch["vector"].zero_()
    assert sorted(seen) == list(range(6000))
    dataset.close()


@pytest.mark.parametrize("mode", ["inline", "thread", "process"])
def test_a_worker_s_error_reaches_the_caller(folder: str, mode: str) -> None:
    workers = 0 if mode == "inline" else 1
    mode = "thread" if mode == "inline" else mode
    loader, dataset = loader_of(
        folder,
        num_workers=workers,
        worker_mode=MODES[mode],
        shuffle=False,
        transform=helpers.fail_at_1700,
    )
    iterator = iter(loader)
    assert ids_of([next(iterator) for _ in range(23)]) == list(range(1472))  # all whole batches before it come first
    for _ in range(2):  # and asking again does not end the epoch quietly
        with pytest.raises(helpers.Broken, match="no row 1700") as caught:
            next(iterator)
        assert caught.value.row == 1700
        assert any(note.startswith("while transforming row 200 of ") for note in caught.value.__notes__)
        assert any("part-1.parquet" in note for note in caught.value.__notes__)
    dataset.close()
    assert not tdu_threads()


def test_an_error_that_cannot_travel_has_a_stand_in(folder: str) -> None:
    options: dict[str, Any] = {"num_workers": 1, "worker_mode": Processes(context="fork")}
    loader, dataset = loader_of(folder, transform=helpers.raise_unpicklable, **options)
    with pytest.raises(WorkerError, match="Local: cannot travel") as caught:
        list(loader)
    assert any("transforming row " in note for note in caught.value.__notes__)
    dataset.close()


def test_a_killed_worker_is_an_error_and_the_next_pass_starts_anew(folder: str) -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_mode": Processes(context="fork")}
    loader, dataset = loader_of(folder, transform=helpers.kill_itself, **options)
    for _ in range(2):
        with pytest.raises(WorkerError, match="died with exit code -9"):
            list(loader)
    dataset.close()


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_timeout(folder: str, mode: str) -> None:
    loader, dataset = loader_of(
        folder,
        num_workers=1,
        worker_mode=MODES[mode],
        timeout=0.2,
        shuffle=False,
        transform=helpers.sleep_at_1700,
        columns=["id"],
    )
    iterator = iter(loader)
    next(iterator)
    begin = time.monotonic()  # the worker runs: how long it takes to start is the machine's affair
    with pytest.raises(BatchTimeoutError, match=r"timeout=0\.2 s while reading .*part-1"):
        list(iterator)
    assert time.monotonic() - begin < 1
    dataset.close()
    for thread in tdu_threads():  # not waited for, and gone once its read returns
        thread.join(5)
    assert not tdu_threads()


def runs(pid: str) -> bool:
    """Whether the process lives (one that has ended may wait for init to collect it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_workers_end_when_the_main_process_is_killed(folder: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, os, signal
            from torch_dataloader_utils import Processes, StructuredDataset
            loader, _ = StructuredDataset.create_dataloader(
                {folder!r}, num_workers=2, worker_mode=Processes(context="fork"), batch_size=10
            )
            next(iter(loader))
            print(*[process.pid for process in multiprocessing.active_children()], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    pids = done.stdout.split()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(runs, pids)):
        assert time.monotonic() < deadline, "workers outlived the main process"
        time.sleep(0.1)


def test_a_forked_child_leaves_the_workers_to_its_parent(folder: str, tmp_path: Path) -> None:
    """It has copies of the pipes: what it read or sent there would be missing, or the end of the workers."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import gc, os, signal, warnings
            from torch_dataloader_utils import Processes, StaleIteratorError, StructuredDataset
            warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
            processes = {{"num_workers": 2, "worker_mode": Processes(context="fork")}}
            loader, dataset = StructuredDataset.create_dataloader(
                {folder!r}, columns=["id"], batch_size=64, **processes
            )
            expected = [batch["id"].tolist() for batch in loader]
            iterator = iter(loader)
            begun = [next(iterator)["id"].tolist()]
            child = os.fork()
            if not child:
                signal.alarm(60)
                try:
                    next(iterator)
                except StaleIteratorError:
                    print("stale", flush=True)
                print([batch["id"].tolist() for batch in loader] == expected, flush=True)
                loader.dataset.close()
                os._exit(0)
            print(os.waitpid(child, 0)[1], flush=True)
            child = os.fork()
            if not child:
                signal.alarm(60)
                del loader, dataset, iterator
                gc.collect()
                os._exit(0)
            print(os.waitpid(child, 0)[1], begun + [batch["id"].tolist() for batch in iterator] == expected)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("stale\nTrue\n0\n0 True\n", "")


def test_lifecycle(folder: str) -> None:
    loader, dataset = loader_of(folder)
    order = {}
    for epoch in range(4):
        dataset.set_epoch(epoch)
        order[epoch] = ids_of(list(loader))
    loader, dataset = loader_of(folder)
    assert ids_of(list(loader)) == order[0]
    assert ids_of(list(loader)) == order[1]  # one epoch on per completed pass
    iterator = iter(loader)
    dataset.set_epoch(3)  # frameworks call iter first
    assert ids_of(list(iterator)) == order[3]
    dataset.set_epoch(1)
    iterator = iter(loader)
    first = next(iterator)["id"].tolist()
    dataset.set_epoch(2)  # during a pass: for the next one
    assert first + ids_of(list(iterator)) == order[1]
    assert ids_of(list(loader)) == order[2]
    iterator = iter(loader)
    next(iterator)
    other = iter(loader)
    next(iterator)  # making an iterator starts nothing
    assert next(other)["id"].tolist() == order[3][:64]  # left half-way: the epoch starts afresh
    with pytest.raises(StaleIteratorError):
        next(iterator)
    for _ in range(len(loader) - 1):
        next(other)
    dataset_again = ids_of(list(loader))  # all batches were delivered, though the end was not reached
    assert dataset_again != order[3]
    loader.sampler.set_epoch(2)
    assert ids_of(list(loader)) == order[2]


def test_a_pass_of_unknown_length_counts_as_completed_too(folder: str) -> None:
    loader, dataset = loader_of(folder, filters=[("id", "<", 640)])
    with pytest.raises(TypeError, match="known only after reading"):
        len(loader)
    iterator = iter(loader)
    first = [next(iterator)["id"].tolist() for _ in range(10)]
    assert dataset.plan().epoch == 0
    second = [batch["id"].tolist() for batch in loader]
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(640))
    dataset.set_epoch(1)
    assert second == [batch["id"].tolist() for batch in loader]


def test_dataset_pickles_and_shards_in_foreign_workers(folder: str) -> None:
    _, dataset = loader_of(folder, num_workers=0)
    copy = pickle.loads(pickle.dumps(dataset))
    assert ids_of(list(copy)) == ids_of(list(dataset))
    foreign = torch.utils.data.DataLoader(copy, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(ids_of(list(foreign))) == list(range(6000))


def test_process_mode_needs_a_number_of_workers(folder: str) -> None:
    with pytest.raises(OptionError, match="needs num_workers"):
        loader_of(folder, worker_mode="processes")
    loader, _ = loader_of(folder, worker_mode="processes", num_workers=0)  # in-line
    assert len(ids_of(list(loader))) == 6000
    assert not multiprocessing.active_children()


class Counting:
    """A reader of blocks of 100 bytes that counts how many were read."""

    def __init__(self) -> None:
        self.read = 0

    def block(self, task: Task) -> Block:
        self.read += 1
        return Block(1, {}, None, 100)

    def share(self, task: Task) -> None:
        """Not shared."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("budget", "ahead"), [(1, 1), (250, 2), (10**9, 4)])
def test_threads_decode_ahead_within_the_budget(budget: int, ahead: int) -> None:
    readers = [Counting()]
    task = Task((), 1, 70)  # estimated at fewer bytes than it has
    driver = ThreadDriver(lambda: readers[0], [[task] * 10], budget, 3, timeout=5)
    for taken in range(1, 4):
        assert driver.next_block(0) is not None
        time.sleep(0.05)
        # One block is being delivered; the others wait.
        assert readers[0].read <= taken - 1 + ahead + (ahead == 4)
    assert readers[0].read >= 3
    driver.close()
    assert not tdu_threads()


def test_threads_decode_the_next_block_of_each_shard_besides_those_they_work_on() -> None:
    reader = Counting()
    driver = ThreadDriver(lambda: reader, [[Task((), 1, 70)] * 10] * 3, 10**9, 2, timeout=5)
    for shard in range(3):
        assert driver.next_block(shard) is not None
    deadline = time.monotonic() + 5
    while reader.read < 3 + 3 + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert reader.read == 3 + 3 + 2
    driver.close()


class Noting(Counting):
    """A reader that notes when reads begin and end; the first lasts until another begins, or half a second."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []
        self.second = threading.Event()

    def block(self, task: Task) -> Block:
        first = not self.events
        self.events.append("begins")
        if not first:
            self.second.set()
        elif not self.second.wait(0.5):
            self.events.append("ends alone")
        return super().block(task)


@pytest.mark.parametrize(
    ("remote", "size", "alone"), [(True, 8 << 20, True), (True, 100, False), (False, 8 << 20, False)]
)
def test_the_first_large_read_from_a_remote_store_is_alone(remote: bool, size: int, alone: bool) -> None:
    """Beside all others, which share the bandwidth, the first batch would come with the last."""
    reader = Noting()
    driver = ThreadDriver(lambda: reader, [[Task((), 1, size)] * 9] * 2, 10**9, 3, timeout=5, remote=remote)
    for _ in range(9):
        assert driver.next_block(0) is not None
        assert driver.next_block(1) is not None
    assert ("ends alone" in reader.events) == alone
    assert reader.read == 18
    driver.close()


def test_a_budget_of_nothing_still_drains_many_shards() -> None:
    driver = ThreadDriver(Counting, [[Task((), 1, 70)] * 5] * 4, 1, 2, timeout=5)
    for _ in range(5):
        for shard in range(4):
            assert driver.next_block(shard) is not None
    assert [driver.next_block(shard) for shard in range(4)] == [None] * 4
    driver.close()


@pytest.mark.slow
def test_a_script_without_a_main_guard_ends_with_one_error_that_says_so(folder: str, tmp_path: Path) -> None:
    """Worker processes import the script, whose loop would start workers there; a large transform fits no pipe."""
    jobs = []
    for context, size in (("spawn", 1), ("spawn", 1 << 20), ("forkserver", 1 << 20)):
        script = tmp_path / f"train_{context}_{size}.py"
        script.write_text(
            "from functools import partial\n"
            "from torch_dataloader_utils import Processes, StructuredDataset\n"
            "def same(payload, batch):\n    return batch\n"
            f"options = dict(worker_mode=Processes(context={context!r}), transform=partial(same, bytes({size})))\n"
            f"path = {folder!r}\n"
            "loader, _ = StructuredDataset.create_dataloader(path, num_workers=2, **options)\n"
            "for batch in loader:\n    pass\n"
        )
        jobs.append(subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True))
    for job in jobs:
        _, output = job.communicate(timeout=300)
        assert job.returncode == 1
        assert output.count("Traceback") == 1
        assert "if __name__ == '__main__':" in output.rsplit("WorkerError", 1)[1]
