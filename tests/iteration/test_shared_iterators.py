"""One iterator pulled by several threads, and passes that end, are saved or are left behind by a fork meanwhile."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.executors.helpers import DRIVERS
from tests.resume.helpers import KEPT, batches, make, plain, through_json, write_files
from torch_dataloader_utils import StaleIteratorError

THREADS = 4
LENGTHS: dict[str, dict[str, Any]] = {
    "known": {},
    "unknown": {"filters": KEPT},
    "sync": {"even": "sync"},
    "laps": {"steps_per_epoch": 300},
}
PATIENCE = 30.0  # seconds for what takes none, on a busy machine

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"), ((40, 60), (80,), (30, 30)))


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def pulled(iterator: Any) -> list[Any]:
    """The batches that so many threads take from one iterator, in any order."""
    start = threading.Barrier(THREADS)

    def pull() -> list[Any]:
        start.wait()
        return [plain(batch) for batch in iterator]

    with ThreadPoolExecutor(THREADS) as pool:
        taken = [pool.submit(pull) for _ in range(THREADS)]
        return [batch for each in taken for batch in each.result()]


def in_order(found: list[Any]) -> list[Any]:
    return sorted(found, key=repr)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_batches_that_threads_take_from_one_iterator_are_the_epoch_once(
    folder: str, driver: str, length: str
) -> None:
    options = {"shuffle": True, **DRIVERS[driver], **LENGTHS[length]}
    alone, shared = make(folder, **options), make(folder, **options)
    for epoch in range(3):
        assert in_order(pulled(iter(shared))) == in_order(batches(alone))
        assert shared.state_dict()["epoch"] == epoch + 1
    alone.dataset.close()
    shared.dataset.close()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("length", ["known", "unknown"])
def test_a_state_that_another_thread_takes_is_one_between_batches(folder: str, length: str) -> None:
    options = {"num_workers": 2, **LENGTHS[length]}
    expected = [batches(make(folder, **options)), []]
    loader, states = make(folder, **options), {}
    done = threading.Event()

    def save() -> None:
        while not done.is_set():
            state = through_json(loader.state_dict())
            states[state["epoch"], state["links"][-1]["batches"]] = state

    saver = threading.Thread(target=save)
    saver.start()
    deadline = time.monotonic() + PATIENCE
    for steps, _ in enumerate(loader, start=1):
        while len(states) < steps and time.monotonic() < deadline:  # a busy machine may not let it run for a while
            time.sleep(1e-4)
    done.set()
    saver.join()
    assert len(states) >= steps > 3
    again = make(folder, **options)
    for (epoch, steps), state in states.items():
        if epoch == 0:
            again.load_state_dict(state)
            assert batches(again) == expected[0][steps:]


class Gate:
    """A `transform` that lets no rows through before it is opened; for the functions' own thread or another."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            self.reached.set()
            assert self.open.wait(PATIENCE)
        return batch


def ends_by_closing(loader: Any) -> None:
    loader.dataset.close()


def ends_by_loading(loader: Any) -> None:
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("end", [ends_by_closing, ends_by_loading])
def test_ending_a_pass_ends_the_wait_of_another_thread(folder: str, end: Callable[[Any], None]) -> None:
    """The store may hang: whoever waits for it gets an error, while the read is still under way."""
    gate = Gate()
    loader = make(folder, num_workers=1, transform=gate)
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(next, iter(loader))
        assert gate.reached.wait(PATIENCE)
        ending = pool.submit(end, loader)
        with pytest.raises(StaleIteratorError, match="another thread closed it or loaded a state"):
            waits.result(PATIENCE)
        gate.open.set()
        ending.result(PATIENCE)
    assert batches(loader) == batches(make(folder, num_workers=1))


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows:
        time.sleep(1)
    return batch


def test_closing_ends_the_wait_for_a_worker_process(folder: str) -> None:
    loader = make(folder, transform=slow, **DRIVERS["processes"])
    iterator = iter(loader)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(next, iterator)
        while loader.dataset._latest.live is None:
            time.sleep(0.01)
        loader.dataset.close()
        with pytest.raises(StaleIteratorError):
            waits.result(PATIENCE)
    for _ in range(2):
        with pytest.raises(StaleIteratorError):
            next(iterator)


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_another_pass_begins_after_the_batch_that_another_thread_waits_for(folder: str, driver: str) -> None:
    gate = Gate()
    loader = make(folder, transform=gate, **DRIVERS[driver])
    iterator, other = iter(loader), iter(loader)
    first = batches(make(folder, **DRIVERS[driver]))[0]
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(next, iterator)
        assert gate.reached.wait(PATIENCE)
        begins = pool.submit(next, other)
        gate.open.set()
        assert [plain(waits.result(PATIENCE)), plain(begins.result(PATIENCE))] == [first, first]
    with pytest.raises(StaleIteratorError, match="another pass was started"):
        next(iterator)
    loader.dataset.close()


@pytest.mark.parametrize("length", ["known", "unknown"])
def test_a_pass_that_was_closed_half_way_is_no_completed_one(folder: str, length: str) -> None:
    """Its iterator's end would be taken for the epoch's."""
    options = LENGTHS[length]
    expected = batches(make(folder, **options))
    for close in (lambda loader, _: loader.dataset.close(), lambda _, iterator: iterator.close()):
        loader = make(folder, **options)
        iterator = iter(loader)
        next(iterator)
        close(loader, iterator)
        with pytest.raises(StaleIteratorError, match="closed: this iterator of epoch 0 ended after 1 batches"):
            next(iterator)
        assert batches(loader) == expected


def test_a_pass_that_was_closed_after_its_last_batch_is_complete(folder: str) -> None:
    loader = make(folder)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    loader.dataset.close()
    assert list(iterator) == []
    assert loader.state_dict()["epoch"] == 1


def test_a_function_may_use_its_own_loader(folder: str) -> None:
    """The thread that takes a batch may ask for the state, or end the pass, from within."""
    seen: list[Any] = []

    def look(batch: Any) -> Any:
        seen.append((loader.state_dict()["links"][-1]["batches"], len(loader)))
        if len(seen) == 3:
            loader.dataset.close()
        return batch

    loader = make(folder, collate_fn=look)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert seen == [(0, len(loader)), (1, len(loader)), (2, len(loader))]
    with pytest.raises(StaleIteratorError):
        next(iterator)


def test_loaders_and_iterators_that_have_not_begun_pickle(folder: str) -> None:
    loader = make(folder)
    for twin in (pickle.loads(pickle.dumps(loader)), pickle.loads(pickle.dumps(iter(loader))), copy.deepcopy(loader)):
        assert batches(twin) == batches(make(folder))


def test_a_forked_child_finds_the_locks_open(folder: str, tmp_path: Path) -> None:
    """Other threads of the parent hold them at times; in the child nobody would ever open them."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys, threading, time, warnings
            sys.path.insert(0, {str(Path(__file__).parents[2])!r})
            from tests.executors.helpers import wait_for_idle_threads
            from tests.resume.helpers import KEPT, batches, make
            warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
            held, go_on = threading.Event(), threading.Event()

            def hold(batch):
                if threading.current_thread() is puller:
                    held.set()
                    go_on.wait()
                return batch

            loader = make({folder!r}, num_workers=2, filters=KEPT, collate_fn=hold)
            expected = batches(make({folder!r}, num_workers=2, filters=KEPT))
            iterator = iter(loader)
            puller = threading.Thread(target=lambda: next(iterator))
            puller.start()
            held.wait()  # within `next`
            wait_for_idle_threads()
            child = os.fork()
            if not child:
                signal.alarm(60)
                os._exit(0 if batches(loader) == expected else 1)
            print(os.waitpid(child, 0)[1], flush=True)
            go_on.set()
            puller.join()
            child = os.fork()
            if not child:
                signal.alarm(60)
                try:
                    list(iterator)
                except Exception as error:
                    print(type(error).__name__, flush=True)
                os._exit(0)
            print(os.waitpid(child, 0)[1], len(list(iterator)) - len(expected))
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "0\nStaleIteratorError\n0 -1\n"
