"""Iterators that only the garbage collector ends, whatever else is part of their reference cycle."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.executors import helpers
from tests.executors.helpers import AND_AHEAD, not_kept, wait_for_idle_threads
from torch_dataloader_utils import StructuredDataset

LOADERS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data")
    helpers.write_table(path)
    return str(path)


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Nothing is collected unless it is asked for."""
    gc.collect()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


class Trainer:
    """Holds a loader and its iterator, is part of a cycle, and perhaps of what the loader calls."""

    def __init__(self, folder: str, function: str | None, options: dict[str, Any]) -> None:
        calls = {} if function in (None, "alone") else {function: self.same}
        given = {"batch_size": 64, "split_rows": 500, "prefetch_bytes": 1}
        self.loader = StructuredDataset.create_dataloader(folder, **given, **calls, **options)[0]
        self.iterator = iter(self.loader)
        next(self.iterator)
        self.itself = self
        if function == "alone":
            del self.loader

    def same(self, batch: Any) -> Any:
        return batch


def held() -> dict[str, set[Any]]:
    """Open descriptors, threads and child processes of this process."""
    descriptors = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder
            descriptors.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return {
        "descriptors": descriptors,
        "threads": set(threading.enumerate()),
        "processes": set(multiprocessing.active_children()),
    }


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("function", [None, "alone", "collate_fn", "transform"])
@pytest.mark.parametrize("driver", AND_AHEAD)
def test_one_collection_gives_back_all_that_iterators_hold(
    folder: str, driver: str, function: str | None, persistent: bool
) -> None:
    before = held()
    for _ in range(LOADERS):
        Trainer(folder, function, AND_AHEAD[driver] if persistent else not_kept(AND_AHEAD[driver]))
    assert len(held()["descriptors"] - before["descriptors"]) >= LOADERS
    wait_for_idle_threads()
    gc.collect()
    # Threads that earlier tests left may end meanwhile.
    assert {kind: found - before[kind] for kind, found in held().items()} == {kind: set() for kind in before}


@pytest.mark.usefixtures("by_hand", "no_leaks")
@pytest.mark.parametrize("driver", AND_AHEAD)
def test_the_loader_goes_on_when_an_iterator_is_collected(folder: str, driver: str) -> None:
    trainer = Trainer(folder, None, {"shuffle": True, **AND_AHEAD[driver]})
    loader = trainer.loader
    del trainer
    gc.collect()
    assert loader.state_dict()["links"][-1]["batches"] == 1  # its place is kept
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(6000))
    loader.dataset.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_letting_go_of_an_iterator_at_its_end_runs_no_code_in_which_a_ctrl_c_is_lost(
    folder: str, num_workers: int
) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=64, num_workers=num_workers)
    batches = iter(loader)
    for _ in batches:
        pass
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_qualname) if event == "call" else None)
    del batches
    sys.setprofile(None)
    assert calls == []


@pytest.mark.parametrize("driver", ["inline", "pool", "processes"])
def test_an_iterator_that_lives_to_the_end_of_the_program_is_no_trouble(
    folder: str, tmp_path: Path, driver: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parents[2])!r})
            from tests.iteration.test_collected_iterators import Trainer
            from torch_dataloader_utils import Processes
            kept = [Trainer({folder!r}, function, {AND_AHEAD[driver]!r}) for function in (None, "transform")]
            print("done")
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
