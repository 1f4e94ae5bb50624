"""Events: an observer in one file, outside of the package, sees what every worker did and every row once."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.patience import tried_thrice
from torch_dataloader_utils import BlockEvent, PassEvent, Processes, StructuredDataset
from torch_dataloader_utils.events import Event

FILES, GROUPS, ROWS = 3, 4, 100
TOTAL = FILES * GROUPS * ROWS
PROCESS = {"worker_mode": Processes(context="fork")}
# Who reads the rows of one and of two I/O workers.
ONE = [{"num_workers": 0}, {"num_workers": None}, {"num_workers": 1}, {"num_workers": 1, **PROCESS}]
TWO = [{"num_workers": 2}, {"num_workers": 2, **PROCESS}]


class Observer:
    """All that can be counted, and the seconds by stage."""

    def __init__(self, dataset: Any) -> None:
        self.blocks: list[BlockEvent] = []
        self.passes: list[PassEvent] = []
        dataset.on_event(self)

    def __call__(self, event: Event) -> None:
        (self.blocks if isinstance(event, BlockEvent) else self.passes).append(event)  # type: ignore[arg-type]

    def total(self, name: str) -> Any:
        return sum(getattr(event.work, name) for event in self.blocks)

    def counts(self) -> Counter[str]:
        names = "repeats", "bytes_read", "requests", "retries", "cache_hits", "cache_misses", "skipped_lines"
        counts = Counter({name: self.total(name) for name in names})
        return counts + Counter(
            blocks=len(self.blocks),
            rows=sum(event.rows for event in self.blocks),
            nbytes=sum(event.nbytes for event in self.blocks),
            delivered=sum(event.rows for event in self.passes),
            steps=sum(event.steps for event in self.passes),
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for number in range(FILES):
        ids = np.arange(number * GROUPS * ROWS, (number + 1) * GROUPS * ROWS)
        table = pa.table({"id": ids, "x": ids * 0.5, "name": [f"row {row}" for row in ids]})
        pq.write_table(table, path / f"{number}.parquet", row_group_size=ROWS)
    return path


def observed(path: Any, **options: Any) -> tuple[Any, Any, Observer]:
    given = {"batch_size": 32, "split_rows": ROWS, "num_ranks": 1, "rank": 0}
    loader, dataset = StructuredDataset.create_dataloader(str(path), **given | options)
    return loader, dataset, Observer(dataset)


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02 if batch.num_rows else 0)
    return batch


@pytest.mark.parametrize("executors", [ONE, TWO], ids=["one worker", "two workers"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {
            "shuffle_buffer_size": 150,
            "output_format": "arrow",
            "even": "pad",
            "num_ranks": 2,
            "rank": 1,
            "batch_size": 77,
        },
        {"filters": [("x", ">", 100.0)], "count_rows": True},
        {"transform": slow},
    ],
    ids=["plain", "shuffled", "padded", "filtered", "transformed"],
)
def test_every_executor_counts_the_same(folder: Path, executors: list[Any], options: dict[str, Any]) -> None:
    counted = []
    for executor in executors:
        store = DirFileSystem(str(folder.parent), LocalFileSystem())  # read as a remote store is
        loader, dataset, observer = observed(folder.name, filesystem=store, **options, **executor)
        rows = sum(len(batch["id"]) for batch in loader)
        dataset.close()
        counts = observer.counts()
        assert counts["rows"] == counts["delivered"] == rows
        assert counts["steps"] == len(loader)
        assert counts["requests"] >= FILES
        assert counts["bytes_read"] > counts["requests"]
        counted.append(counts)
    assert all(counts == counted[0] for counts in counted)


@pytest.mark.parametrize("executor", ONE, ids=["in-line", "pool", "thread", "process"])
def test_lines_left_out_by_workers_are_counted(tmp_path: Path, executor: dict[str, Any]) -> None:
    lines = ["a,b"] + ["1,2,3" if row % 10 == 0 else f"{row},x" for row in range(1000)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    loader, dataset, observer = observed(tmp_path, format_options={"on_bad_lines": "skip"}, split_rows=None, **executor)
    rows = sum(len(batch["a"]) for batch in loader)
    dataset.close()
    assert (rows, observer.total("skipped_lines")) == (900, 100)
    assert observer.counts()["delivered"] == 900


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    taken=st.integers(0, 45),
    size=st.integers(28, 150),
    workers=st.sampled_from([0, 2, 3]),
    options=st.sampled_from(
        [
            {},
            {"shuffle": True, "shuffle_buffer_size": 150},
            {"filters": [("x", ">", 100.0)], "shuffle_buffer_size": 150},
            {"filters": [("x", ">", 100.0)], "last_batch": "drop"},
            {"steps_per_epoch": 50},
            {"steps_per_epoch": 50, "filters": [("x", ">", 100.0)]},
            {"even": "pad", "num_ranks": 2},
            {"canonical_ranks": 4, "batch_size": 64},
        ]
    ),
)
def test_every_row_is_accounted_for_once_also_after_a_resume(
    folder: Path, taken: int, size: int, workers: int, options: dict[str, Any]
) -> None:
    options = {"batch_size": size, "num_workers": workers, **options}
    _, dataset, uninterrupted = observed(folder, **options)
    sizes = [len(batch["id"]) for batch in dataset]
    assert uninterrupted.passes == [PassEvent(0, len(sizes), sum(sizes), True)]
    if "filters" not in options and "steps_per_epoch" not in options:
        rows = uninterrupted.counts()["rows"] - uninterrupted.total("repeats")
        assert rows == TOTAL // options.get("num_ranks", 1)

    loader, dataset, first = observed(folder, **options)
    taken = min(taken, len(sizes) - 1)
    for number, _ in enumerate(loader, 1):
        if number > taken:
            break
    state = loader.state_dict()
    dataset.close()
    complete = taken + 1 == len(sizes) == dataset._steps()
    assert first.passes == [PassEvent(0, taken + 1, sum(sizes[: taken + 1]), complete)]

    loader, dataset, second = observed(folder, **options)
    loader.load_state_dict(state)
    rest = sum(len(batch["id"]) for batch in loader)
    assert rest == sum(sizes[taken + 1 :])
    assert second.passes == [PassEvent(0, len(sizes) - taken - 1, rest, True)]
    if options.get("last_batch") != "drop" and "steps_per_epoch" not in options:
        assert second.counts()["rows"] == rest


def test_steps_that_are_left_out_are_not_counted(folder: Path) -> None:
    for options in ({}, {"filters": [("x", ">=", 0.0)]}):
        loader, _, observer = observed(folder, num_workers=2, **options)
        loader.skip_steps(3, 7)
        iterator = iter(loader)
        rows = len(next(iterator)["id"])
        loader.skip_steps(10, 20)
        batches = list(iterator)
        rows += sum(len(batch["id"]) for batch in batches)
        assert [(event.steps, event.rows) for event in observer.passes] == [(1 + len(batches), rows)]


def test_a_pass_is_reported_once_when_it_is_over(folder: Path) -> None:
    loader, dataset, observer = observed(folder)
    for _ in loader:
        break
    assert not observer.passes  # its place is still that of the loader
    iterator = iter(loader)
    next(iterator)
    assert observer.passes == [PassEvent(0, 1, 32, False)]
    iterator.close()
    dataset.close()
    assert observer.passes[1:] == [PassEvent(0, 1, 32, False)]
    list(loader)
    dataset.close()
    assert observer.passes[2:] == [PassEvent(0, len(loader), TOTAL, True)]
    list(loader)
    assert [event.epoch for event in observer.passes] == [0, 0, 0, 1]


@pytest.mark.parametrize("executor", ONE, ids=["in-line", "pool", "thread", "process"])
@tried_thrice
def test_seconds_are_counted_where_they_pass(folder: Path, executor: dict[str, Any]) -> None:
    options = {"transform": slow, "filters": [("x", ">=", 0.0)], "shuffle_buffer_size": 150}
    loader, dataset, observer = observed(folder, **options, **executor)
    began = time.perf_counter()
    for _ in loader:
        pass
    wall = time.perf_counter() - began
    dataset.close()
    slept = 0.02 * len(observer.blocks)
    assert slept <= observer.total("transform") < slept + 0.5 * wall
    stages = ["decode", "filter", "transform", "shuffle", "convert"]
    assert all(observer.total(stage) > 0 for stage in stages)
    assert (observer.total("pack") > 0) == ("worker_mode" in executor)
    waited = sum(event.queue_empty for event in observer.blocks)
    assert waited <= wall
    assert waited > 0.5 * slept  # of one worker the loop sees every delay
    if executor["num_workers"] == 0:
        assert sum(map(observer.total, stages)) <= waited
        assert observer.total("queue_full") == 0


@pytest.mark.parametrize("executor", ONE[2:], ids=["thread", "process"])
def test_workers_that_wait_for_room_say_so(folder: Path, executor: dict[str, Any]) -> None:
    loader, dataset, observer = observed(folder, prefetch_bytes=1, **executor)
    for _ in loader:
        time.sleep(0.01)
    dataset.close()
    assert observer.total("queue_full") > 0.1


class SlowStore(DirFileSystem):  # type: ignore[misc]
    """Each request takes a while."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        time.sleep(0.02)
        return super().cat_file(path, start=start, end=end, **options)


@tried_thrice
def test_waiting_for_a_store_counts_as_reading(folder: Path) -> None:
    store = SlowStore(str(folder.parent), LocalFileSystem())
    loader, _, observer = observed(folder.name, filesystem=store, num_workers=0)
    list(loader)
    assert observer.total("read") >= 0.02 * observer.total("requests") > 0
    assert observer.total("decode") < observer.total("read")


def test_a_callback_that_comes_late_sees_what_follows(folder: Path) -> None:
    loader, dataset, observer = observed(folder)
    iterator = iter(loader)
    next(iterator)
    late = Observer(dataset)
    list(iterator)
    assert late.blocks == observer.blocks[1:] != []
    assert late.passes == [PassEvent(0, len(loader), TOTAL, True)]


@pytest.mark.parametrize("kind", [BlockEvent, PassEvent])
@pytest.mark.parametrize("executor", [*ONE, *TWO])
def test_what_a_callback_raises_is_raised_by_next(folder: Path, executor: dict[str, Any], kind: type, no_leaks) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, kind):
            raise KeyError("a mistake of the user's")

    loader, dataset, _ = observed(folder, **executor)
    dataset.on_event(fail)
    with pytest.raises(KeyError, match="a mistake") as caught:
        list(loader)
    assert "raised by a callback of dataset.on_event" in caught.value.__notes__[0]


def test_workers_end_with_their_pass_though_a_callback_raises(folder: Path, no_leaks) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, PassEvent):
            raise KeyError("a mistake of the user's")

    loader, dataset, _ = observed(folder, num_workers=1, worker_mode=Processes(False, context="fork"))
    dataset.on_event(fail)
    iterator = iter(loader)
    before = set(multiprocessing.active_children())
    with pytest.raises(KeyError, match="a mistake"):
        for _ in iterator:
            pass
    assert set(multiprocessing.active_children()) <= before


def test_workers_of_a_foreign_loader_do_not_call_back(folder: Path) -> None:
    _, dataset, observer = observed(folder, num_workers=0)
    foreign = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert sum(len(batch["id"]) for batch in foreign) == TOTAL
    assert not observer.blocks


@pytest.mark.parametrize("ending", ["a callback that raises", "skip_steps"])
def test_a_pass_that_is_over_leaves_no_worker_behind(folder: Path, ending: str) -> None:
    """Though its iterator lives, and whatever a callback does."""

    def callback(event: Event) -> None:
        if isinstance(event, PassEvent) and ending != "skip_steps":
            raise RuntimeError("of the callback")

    options: dict[str, Any] = {"num_workers": 1, "worker_mode": Processes(False, context="fork")}
    loader, dataset = StructuredDataset.create_dataloader(folder, batch_size=TOTAL // 2, **options)
    dataset.on_event(callback)
    before, iterator = set(multiprocessing.active_children()), iter(loader)
    assert len([next(iterator), next(iterator)]) == len(loader)
    if ending == "skip_steps":
        loader.skip_steps(0, 1)
    else:
        with pytest.raises(RuntimeError, match="of the callback"):
            next(iterator)
    assert set(multiprocessing.active_children()) <= before
    assert next(iterator, "the end") == "the end"
