"""The numbers of `metrics()`: what they count, when they are reset, and that they add up."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.metrics.throttled import (
    BLOCKS,
    FILES,
    NAP,
    PROCESS,
    ROWS,
    TOTAL,
    SlowStore,
    make,
    remote,
    slow_collate,
    slow_transform,
)
from tests.patience import tried_thrice
from torch_dataloader_utils import BlockEvent, FileSnapshot, SnapshotCursor, TableDataset, TableFile, combine
from torch_dataloader_utils.metrics.totals import STAGES, Totals, metrics

EXECUTORS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": None},
    {"num_workers": 2},
    {"num_workers": 2, **PROCESS},
]
NAMES = ["in-line", "pool", "threads", "processes"]
SUMS = ["data_wait_s", "epoch_s", "steps", "rows", "bytes_read", "requests", "retries"]


def test_every_fraction_of_nothing_is_0(folder: Path) -> None:
    loader, dataset = make(folder)
    for values in (loader.metrics(), dataset.metrics(detail=True), metrics(Totals(), detail=True)):
        assert all(isinstance(value, float) for value in values.values())
        assert not any(value for name, value in values.items() if name != "list_s")


@pytest.mark.parametrize("executor", EXECUTORS, ids=NAMES)
def test_counts_of_all_workers_are_included(folder: Path, executor: dict[str, Any]) -> None:
    loader, dataset = remote(folder, **executor)
    counted = {"bytes_read": 0, "requests": 0}

    def count(event: Any) -> None:
        if isinstance(event, BlockEvent):
            counted["bytes_read"] += event.work.bytes_read
            counted["requests"] += event.work.requests

    dataset.on_event(count)
    steps = len(list(loader))
    dataset.close()
    values = dataset.metrics(detail=True)
    assert (values["rows"], values["steps"]) == (TOTAL, steps)
    assert {name: values[name] for name in counted} == counted
    assert values["requests"] > 0
    workers = {name.split("/")[1] for name in values if name.startswith("worker/")}
    assert sum(values[f"worker/{worker}/rows"] for worker in workers) == TOTAL
    assert workers == {str(number) for number in range(executor["num_workers"] or 1)}
    assert values["list_s"] > 0
    assert not any(value for name, value in dataset.metrics(detail=True).items() if not name.endswith("_s"))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.sets(st.integers(0, 60)), options=st.sampled_from([{}, {"filters": [("id", ">", 150)]}]))
def test_calls_share_out_what_happened(folder: Path, calls: set[int], options: dict[str, Any]) -> None:
    loader, dataset = make(folder, num_workers=0, **options)
    parts = []
    for epoch in range(2):
        for step, _ in enumerate(loader):
            if step + 30 * epoch in calls:
                parts.append(loader.metrics(detail=True))
    parts.append(loader.metrics(detail=True))
    total = loader.metrics(detail=True, total=True)
    assert total["rows"] == 2 * (TOTAL if not options else TOTAL - 151)
    for name in [*SUMS, *(name for name in total if name.endswith(("_s", "/rows")))]:
        if name not in ("rows_per_s", "batch_s"):
            assert sum(part.get(name, 0.0) for part in parts) == pytest.approx(total[name]), name
    assert loader.metrics(total=True) == dataset.metrics(total=True)


def test_reading_totals_resets_nothing(folder: Path) -> None:
    loader, dataset = make(folder)
    list(loader)
    dataset.metrics(total=True), dataset.metrics_text(detail=True)
    assert loader.metrics()["rows"] == TOTAL
    assert loader.metrics()["rows"] == 0


def test_threads_that_call_at_once_share_out_what_happened(folder: Path) -> None:
    loader, dataset = make(folder, batch_size=1)
    parts: list[dict[str, float]] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            parts.append(dataset.metrics(detail=True))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        list(loader)
    over.set()
    for thread in threads:
        thread.join()
    parts.append(dataset.metrics())
    assert sum(part["rows"] for part in parts) == 2 * TOTAL
    assert all(part["rows"] >= 0 <= part["data_wait_fraction"] <= 1 for part in parts)


def test_loaders_and_copies_are_independent(folder: Path) -> None:
    loader, dataset = make(folder)
    other, _ = make(folder)
    list(loader)
    assert not any(other.metrics().values())
    assert not any(copy.deepcopy(dataset).metrics(detail=True, total=True).values())
    assert loader.metrics()["rows"] == TOTAL


def test_padding_and_rows_by_source_are_counted(folder: Path) -> None:
    loader, dataset = make(folder, even="pad", num_ranks=7, batch_size=90)
    rows = torch.cat([batch["valid"] for batch in loader])
    values = dataset.metrics()
    assert values["pad_fraction"] == pytest.approx((~rows).double().mean().item())
    assert values["pad_fraction"] > 0
    assert "rows/0" not in values


@pytest.mark.parametrize("executor", EXECUTORS, ids=NAMES)
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle_buffer_size": 250}], ids=["plain", "rows", "few"])
def test_rows_of_a_combination_are_counted_by_source(
    folder: Path, executor: dict[str, Any], options: dict[str, Any]
) -> None:
    _, first = make(folder)
    _, second = make(folder, filters=[("id", ">=", 700)])
    splits = {"batches": "splits", **options}
    loader = combine([first, second], batch_size=64, num_ranks=1, rank=0, **executor, **splits)
    list(loader)
    loader.close()
    values = loader.metrics()
    assert (values["rows/0"], values["rows/1"]) == (TOTAL, TOTAL - 700)
    assert values["rows"] == values["rows/0"] + values["rows/1"]


def test_a_resumed_block_counts_what_is_left_of_it(folder: Path) -> None:
    _, first = make(folder)
    _, second = make(folder)

    def combined() -> Any:
        return combine([first, second], batch_size=30, num_ranks=1, rank=0, shuffle_buffer_size=250, batches="splits")

    loader = combined()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    loader = combined()
    loader.load_state_dict(state)
    list(loader)
    values = loader.metrics()
    assert values["rows"] == 2 * TOTAL - 150
    assert values["rows/0"] + values["rows/1"] == pytest.approx(values["rows"])


@dataclass(frozen=True)
class Table:
    """A table of one file of which a row is deleted."""

    folder: Path
    pinned: str | None = None

    def newest(self, options: Any) -> SnapshotCursor:
        return SnapshotCursor(1)

    def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
        paths = ["00.parquet", "01.parquet"]
        files = [TableFile(path, (self.folder / path).stat().st_size) for path in paths]
        files[0] = replace(files[0], deleted=[7])
        return FileSnapshot(name="table", cursor=SnapshotCursor(1), location=str(self.folder), files=files)


def test_leaving_out_deleted_rows_is_a_stage(folder: Path) -> None:
    loader, dataset = TableDataset.create_dataloader(Table(folder), batch_size=50, num_ranks=1, rank=0)
    ids = torch.cat([batch["id"] for batch in loader])
    assert ids.tolist() == [row for row in range(200) if row != 7]
    assert dataset.metrics(detail=True)["delete_s"] > 0
    loader, dataset = make(folder)
    list(loader)
    assert dataset.metrics(detail=True)["delete_s"] == 0


def test_hits_of_the_cache_are_a_fraction(folder: Path, tmp_path: Path) -> None:
    def cached() -> tuple[Any, Any]:
        return remote(folder, cache=str(tmp_path))

    fractions = []
    for _ in range(2):
        loader, dataset = cached()
        list(loader)
        fractions.append(dataset.metrics()["cache_hit_fraction"])
    assert fractions[1] == 1.0 >= fractions[0]


def test_the_parent_of_a_foreign_loader_measures_nothing(folder: Path) -> None:
    _, dataset = make(folder, num_workers=0)
    foreign = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert sum(len(batch["id"]) for batch in foreign) == TOTAL
    assert dataset.metrics()["rows"] == 0


def timed(loader: Any) -> tuple[float, float]:
    """The seconds of an epoch, and those of them outside of the loader."""
    began, trained = time.perf_counter(), 0.0
    for _ in loader:
        left = time.perf_counter()
        time.sleep(NAP)
        trained += time.perf_counter() - left
    return time.perf_counter() - began, trained


@tried_thrice
def test_in_line_all_seconds_of_the_wait_are_in_a_stage(folder: Path) -> None:
    loader, dataset = remote(folder, SlowStore, num_workers=0, transform=slow_transform, collate_fn=slow_collate)
    wall, trained = timed(loader)
    values = dataset.metrics(detail=True)
    assert values["epoch_s"] == pytest.approx(wall, rel=0.05)
    assert values["data_wait_s"] == pytest.approx(wall - trained, rel=0.05)
    assert values["data_wait_fraction"] == pytest.approx(values["data_wait_s"] / wall, rel=0.05)
    stages = sum(values[f"worker/0/{stage}_s"] for stage in STAGES)
    assert stages == pytest.approx(values["queue_empty_s"], rel=0.05)
    assert stages + values["batch_s"] == pytest.approx(values["data_wait_s"], rel=0.05)
    assert values["read_s"] >= NAP * values["requests"]
    assert values["transform_s"] >= NAP * BLOCKS
    assert values["batch_s"] >= NAP * values["steps"]


@pytest.mark.parametrize("stack", [None, {"both": ["x"]}])
@tried_thrice
def test_in_line_no_second_of_a_row_shuffle_counts_twice(folder: Path, stack: Any) -> None:
    loader, dataset = remote(folder, SlowStore, num_workers=0, shuffle=True, shuffle_buffer_size=400, stack=stack)
    list(loader)
    values = dataset.metrics(detail=True)
    assert sum(values[f"{stage}_s"] for stage in STAGES) == pytest.approx(values["queue_empty_s"], rel=0.2)
    assert values["read_s"] > values["shuffle_s"]


@pytest.mark.parametrize("stack", [None, {"both": ["x"]}])
def test_processes_report_what_a_row_shuffle_takes(folder: Path, stack: Any) -> None:
    window = 4 * ROWS  # whose files are read at once: the naps of a window's requests overlap
    requests = set()
    for executor in ({"num_workers": 0}, {"num_workers": 1, **PROCESS}):
        options = {"shuffle": True, "shuffle_buffer_size": window, "stack": stack, **executor}
        loader, dataset = remote(folder, SlowStore, **options)
        began = time.perf_counter()
        list(loader)
        dataset.close()
        wall = time.perf_counter() - began
        values = dataset.metrics(detail=True)
        assert values["worker/0/read_s"] >= NAP * TOTAL / window
        assert values["worker/0/decode_s"] > 0
        assert sum(values[f"worker/0/{stage}_s"] for stage in STAGES) <= wall, "some second counts twice"
        requests.add(values["requests"])
    assert requests == {FILES}


@pytest.mark.parametrize("executor", [{"num_workers": 1}, {"num_workers": 1, **PROCESS}], ids=["thread", "process"])
@tried_thrice
def test_a_worker_that_is_always_busy_accounts_for_the_whole_time(folder: Path, executor: dict[str, Any]) -> None:
    loader, dataset = make(folder, transform=slow_transform, **executor)
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began  # threads or processes have to start
    list(iterator)
    wall = time.perf_counter() - began
    dataset.close()
    values = dataset.metrics(detail=True)
    busy = sum(values[f"worker/0/{name}_s"] for name in (*STAGES, "queue_full"))
    start = max(first - NAP, 0.0)
    assert 0.9 * (wall - start) <= busy <= 1.05 * wall


@tried_thrice
def test_a_worker_that_waits_for_room_accounts_for_it(folder: Path) -> None:
    loader, dataset = make(folder, num_workers=1, batch_size=100, prefetch_bytes=1)
    _, trained = timed(loader)
    values = dataset.metrics(detail=True)
    # With room for one block, a block is read once the one before it was consumed: only the last one has no successor.
    assert values["worker/0/queue_full_s"] == pytest.approx(trained * (1 - 1 / BLOCKS), rel=0.3)
    assert values["data_wait_fraction"] < 0.5
