"""Children forked from a process that reads: a clear error, or a pass of their own; the parent loses nothing."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executors import helpers
from tests.executors.helpers import DRIVERS
from torch_dataloader_utils import StaleIteratorError, StructuredDataset

ROWS = 6000
PATIENCE = 60  # seconds for a child

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    helpers.write_table(path)
    return str(path)


def loader_of(folder: str, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 64, "split_rows": 500, "columns": ["id"], "shuffle": "splits"}
    return StructuredDataset.create_dataloader(folder, **given | options)[0]


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def in_child(call: Callable[[], Any]) -> Any:
    """What `call` returns, as JSON, in a forked child; the child ends as one that calls `os._exit`."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        try:
            os.write(write, json.dumps(call()).encode())
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(said)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_forked_child_gets_an_error_for_its_parent_s_iterator_and_a_pass_of_its_own(folder: str, driver: str) -> None:
    expected = ids_of(loader_of(folder, num_workers=DRIVERS[driver]["num_workers"]))
    loader = loader_of(folder, **DRIVERS[driver])
    iterator = iter(loader)
    begun = ids_of([next(iterator) for _ in range(7)])

    def use() -> Any:
        try:
            next(iterator)
            error = ""
        except StaleIteratorError as stale:
            error = str(stale)
        state, metrics = loader.state_dict(), loader.metrics(detail=True, total=True)
        rows = ids_of(loader)
        after = loader.metrics(total=True)["rows"]
        loader.dataset.close()
        return error, state, {name: value for name, value in metrics.items() if value}, rows, after

    state = loader.state_dict()
    error, seen, metrics, rows, after = in_child(use)
    assert "was begun by the parent of this process" in error
    assert "Iterate the loader here" in error
    assert seen == json.loads(json.dumps(state))
    assert metrics == {}
    assert rows == expected
    assert after == ROWS
    assert begun + ids_of(iterator) == expected
    assert loader.metrics(total=True)["rows"] == ROWS
    loader.dataset.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_iterators_closed_and_collected_in_a_child_live_on_in_the_parent(folder: str, driver: str) -> None:
    loader = loader_of(folder, **DRIVERS[driver])
    iterator = iter(loader)
    begun = ids_of([next(iterator)])

    def drop() -> str:
        nonlocal iterator, loader
        iterator.close()
        del iterator, loader
        return "dropped"

    assert in_child(drop) == "dropped"
    assert sorted(sum(begun + ids_of(iterator), [])) == list(range(ROWS))
    loader.dataset.close()


@pytest.mark.parametrize("driver", ["inline", "threads"])
def test_a_child_does_not_move_the_place_at_which_its_parent_reads_compressed_text(tmp_path: Path, driver: str) -> None:
    draw = random.Random(7)
    with gzip.open(tmp_path / "rows.csv.gz", "wt", compresslevel=1) as file:
        file.write("id,text\n")
        file.writelines(f"{row},{draw.randbytes(400).hex()}\n" for row in range(ROWS * 5))
    given: dict[str, Any] = {"columns": ["id"], "prefetch_bytes": 1, "shuffle": False, "split_rows": None}
    loader = loader_of(str(tmp_path), **given, **DRIVERS[driver])
    iterator = iter(loader)
    begun = ids_of([next(iterator) for _ in range(10)])
    assert in_child(lambda: sorted(sum(ids_of(loader), [])) == list(range(ROWS * 5)))
    assert sum(begun + ids_of(iterator), []) == list(range(ROWS * 5))


def iterate(loader: Any, queue: Any) -> None:
    queue.put(sorted(sum(ids_of(loader), [])))


@pytest.mark.parametrize("driver", ["pool", "threads"])
def test_a_process_of_multiprocessing_that_is_forked_reads_its_parent_s_loader(folder: str, driver: str) -> None:
    loader = loader_of(folder, **DRIVERS[driver])
    iterator = iter(loader)
    begun = ids_of([next(iterator)])
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    child = context.Process(target=iterate, args=(loader, queue))
    child.start()
    assert queue.get(timeout=PATIENCE) == list(range(ROWS))
    child.join(PATIENCE)
    assert child.exitcode == 0
    queue.close()
    queue.join_thread()
    assert sorted(sum(begun + ids_of(iterator), [])) == list(range(ROWS))


@pytest.mark.parametrize("driver", DRIVERS)
def test_forked_workers_of_torch_s_loader_read_beside_their_parent(folder: str, driver: str) -> None:
    loader = loader_of(folder, **DRIVERS[driver])
    list(loader)  # the parent has read before, and its worker processes live
    foreign = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert sorted(sum(ids_of(foreign), [])) == list(range(ROWS))
    assert sorted(sum(ids_of(loader), [])) == list(range(ROWS))
    loader.dataset.close()


def test_a_child_s_exit_does_not_wait_for_the_parent_s_calls_to_stores(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys, threading, warnings
            from torch_dataloader_utils.storage import waiting

            warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
            waiting._EXIT = {2 * PATIENCE}
            begun, over = threading.Event(), threading.Event()
            call = lambda: (begun.set(), over.wait())
            caller = threading.Thread(target=waiting.answered, args=(call, {4 * PATIENCE}, "it"))
            caller.start()
            begun.wait()
            child = os.fork()
            if not child:
                signal.alarm({PATIENCE // 2})
                sys.exit()
            print(os.waitpid(child, 0)[1])
            over.set()
            caller.join()
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=180)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_a_child_s_exit_leaves_the_workers_and_their_memory_to_the_parent(
    folder: str, tmp_path: Path, context: str
) -> None:
    """A child that ends as scripts do runs all exit functions, Python's own for processes, too."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys, warnings
            from torch_dataloader_utils import Processes, StructuredDataset

            if __name__ == "__main__":
                warnings.simplefilter("ignore")  # newer Pythons warn of any fork with threads
                options = {{"num_workers": 2, "worker_mode": Processes(context={context!r})}}
                loader = StructuredDataset.create_dataloader({folder!r}, columns=["id"], batch_size=64, **options)[0]
                iterator = iter(loader)
                rows = len(next(iterator)["id"])
                child = os.fork()
                if not child:
                    signal.alarm({PATIENCE})
                    print(sum(len(batch["id"]) for batch in loader), flush=True)
                    sys.exit()
                print(os.waitpid(child, 0)[1], flush=True)
                child = os.fork()
                if not child:
                    signal.alarm({PATIENCE})
                    sys.exit()  # without a pass of its own
                print(os.waitpid(child, 0)[1], rows + sum(len(batch["id"]) for batch in iterator), flush=True)
                print(sum(len(batch["id"]) for batch in loader))
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=180)
    assert (done.stdout, done.stderr) == ("6000\n0\n0 6000\n6000\n", "")
