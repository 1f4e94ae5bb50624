"""torch's keywords, here and around us: `pin_memory`, `worker_mode`, `timeout`."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.resume.helpers import batches, make, write_files
from torch_dataloader_utils import OptionError, Processes

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than cores

Workers = Callable[[], set[int | None]]

PROCESSES: dict[str, Any] = {"num_workers": 2, "worker_mode": "processes"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def ids(found: list[Any]) -> list[int]:
    return [row for batch in found for row in batch["id"]]


@pytest.fixture
def workers() -> Callable[[], set[int | None]]:
    """The processes that run now and did not before the test: others' may stay until they are collected."""
    before = {process.pid for process in multiprocessing.active_children()}
    return lambda: {process.pid for process in multiprocessing.active_children()} - before


def test_they_read_as_they_were_given(folder: str) -> None:
    given = {"batch_size": 5, "num_workers": 3, "pin_memory": True, "timeout": 7}
    loader = make(folder, worker_mode=Processes(persistent=False), **given)
    assert {name: getattr(loader, name) for name in given} == given
    assert not loader.persistent_workers
    assert isinstance(loader, DataLoader)
    assert make(folder, num_workers=0).num_workers == 0
    assert make(folder, num_workers=None).num_workers == len(os.sched_getaffinity(0))  # a number, as frameworks expect


@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")], ids=["name", "context"])
def test_workers_stay_if_they_are_persistent(folder: str, context: Any, workers: Workers) -> None:
    loader = make(folder, num_workers=2, worker_mode=Processes(context=context))
    seen = set()
    for _ in range(3):
        assert sorted(ids(batches(loader))) == list(range(38))
        seen |= workers()
    assert len(seen) == 2
    loader.dataset.close()
    assert not workers()


def test_workers_go_with_the_pass_if_they_are_not(folder: str, workers: Workers) -> None:
    loader = make(folder, num_workers=2, worker_mode=Processes(False, context="fork"))
    seen = []
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        seen += workers()
        list(iterator)
        assert not workers()
    assert len(set(seen)) == 4


def test_a_wrong_context_or_timeout_is_named(folder: str) -> None:
    with pytest.raises(OptionError, match="Processes: context='thread'"):
        make(folder, worker_mode=Processes(context="thread"))
    with pytest.raises(OptionError, match="timeout=-1"):
        make(folder, timeout=-1)


def slowly(table: Any) -> Any:
    time.sleep(0.3)
    return table


def test_no_timeout_waits(folder: str) -> None:
    assert len(batches(make(folder, num_workers=1, timeout=0, transform=slowly))) == 13


def test_pinned_memory(folder: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no accelerator to pin memory for")
    for batch in make(folder, pin_memory=True, columns=["id"]):
        assert batch["id"].is_pinned()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_around_our_dataset(folder: str, persistent: bool, context: str) -> None:
    """torch's own loader: its workers are our shards; the epoch reaches those that start after it was set."""
    dataset = make(folder, shuffle=True).dataset
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=persistent,
        timeout=60,
    )
    orders = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        orders.append(ids(batches(loader)))
        assert sorted(orders[-1]) == list(range(38))
    assert len(set(map(tuple, orders))) == 3
    again = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    dataset.set_epoch(1)
    assert ids(batches(again)) == orders[1]


def test_a_timeout_around_our_dataset(tmp_path: Path) -> None:
    dataset = make(write_files(tmp_path), transform=lambda table: time.sleep(4) or table).dataset
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=1)  # seconds
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(iter(loader))
