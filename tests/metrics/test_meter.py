"""The meter: what a pass has delivered, and how long its consumer waited, seen from outside while it runs."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.metrics.throttled import TOTAL, make
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.iteration import one_pass
from torch_dataloader_utils.metrics.meter import Meter, PassStatus
from torch_dataloader_utils.metrics.totals import Totals
from torch_dataloader_utils.planning.rank_plan import rows_of_batches


def progress(dataset: Any) -> PassStatus:
    found = dataset._latest.meter.progress()
    assert found is not None
    return found


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 3},
    {"even": "pad", "num_ranks": 2},
    {"steps_per_epoch": 60, "num_workers": 2},
    {"canonical_ranks": 4, "batch_size": 64},
    {"shuffle_buffer_size": 150, "shuffle": True},
    {"filters": [("id", ">=", 100)], "num_workers": 2},
    {"filters": [("id", ">=", 100)], "count_rows": True},
    {"filters": [("id", ">=", 100)], "steps_per_epoch": 60},
]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(options=st.sampled_from(OPTIONS), first=st.integers(0, 8), size=st.integers(0, 8))
def test_progress_is_exact_after_each_batch_and_what_was_expected_is_delivered(
    folder: Path, options: dict[str, Any], first: int, size: int
) -> None:
    loader, dataset = make(folder, **{"num_workers": 0} | options)
    assert dataset._latest.meter.progress() is None
    loader.skip_steps(first, first + size)
    steps = rows = 0
    expected = set()
    for batch in loader:
        steps, rows = steps + 1, rows + len(batch["id"])
        now = progress(dataset)
        assert (now.steps, now.rows, now.epoch) == (steps, rows, 0)
        expected.add((now.steps_expected, now.rows_expected))
    ((steps_expected, rows_expected),) = expected
    assert steps_expected in (None, steps)
    assert rows_expected in (None, rows)
    assert (steps_expected is None) == (dataset._steps() is None)
    if "filters" not in options:
        assert rows_expected is not None
    last = progress(dataset)
    assert (last.steps, last.rows, last.live, last.complete) == (steps, rows, False, True)
    assert (dataset._latest.meter.totals().steps, dataset._latest.meter.totals().rows) == (steps, rows)


def test_a_resumed_pass_counts_from_where_it_began(folder: Path) -> None:
    for options in ({}, {"filters": [("id", ">=", 0)]}):
        loader, dataset = make(folder, num_workers=2, **options)
        iterator = iter(loader)
        taken = sum(len(next(iterator)["id"]) for _ in range(7))
        state = loader.state_dict()
        loader, dataset = make(folder, num_workers=2, **options)
        loader.load_state_dict(state)
        rest = sum(len(batch["id"]) for batch in loader)
        assert progress(dataset).rows == rest == TOTAL - taken


def test_time_in_next_is_waited_and_time_outside_is_not(folder: Path) -> None:
    loader, dataset = make(folder, num_workers=0, batch_size=200, collate_fn=lambda batch: time.sleep(0.05) or batch)
    for _ in loader:
        time.sleep(0.1)
    last = progress(dataset)
    assert last.steps == 6
    assert 0.05 * 6 <= last.waited <= last.seconds - 0.1 * 6
    assert last.first_wait is not None
    assert 0.05 <= last.first_wait < last.waited
    time.sleep(0.1)
    assert progress(dataset) == last


def test_a_wait_is_seen_by_other_threads_while_it_lasts(folder: Path) -> None:
    gate = threading.Event()
    loader, dataset = make(folder, num_workers=0, collate_fn=lambda batch: gate.wait(30) and batch)
    thread = threading.Thread(target=next, args=(iter(loader),))
    thread.start()
    seen = [0.0]
    while len(seen) < 4:
        time.sleep(0.02)
        now = dataset._latest.meter.progress()
        if now is not None:
            assert now.first_wait is None
            assert now.live
            seen.append(now.waited)
    gate.set()
    thread.join()
    seen.append(progress(dataset).waited)
    assert seen == sorted(seen)
    assert seen[3] >= seen[1] + 0.04


@pytest.mark.parametrize("options", [{}, {"filters": [("id", ">=", 0)]}, {"steps_per_epoch": 100}])
def test_what_other_threads_see_never_goes_back(folder: Path, hasty: None, options: dict[str, Any]) -> None:
    loader, dataset = make(folder, batch_size=25, num_workers=0, **options)
    seen: list[PassStatus] = []
    totals: list[Any] = []
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            seen.extend(now for now in [dataset._latest.meter.progress()] if now is not None)
            totals.append(dataset._latest.meter.totals())

    thread = threading.Thread(target=poll)
    thread.start()
    for _ in range(4):
        loader.skip_steps(10, 20)
        for step, _ in enumerate(loader):
            if step == 15:
                loader.skip_steps(30, 40)
    over.set()
    thread.join()
    assert [(now.epoch, now.steps, now.rows) for now in seen] == sorted(
        (now.epoch, now.steps, now.rows) for now in seen
    )
    assert [(now.steps, now.rows) for now in totals] == sorted((now.steps, now.rows) for now in totals)
    assert seen
    assert all(0 <= now.waited <= now.seconds + 0.01 for now in seen)


def test_seconds_never_fall() -> None:
    """Which a pass that ends while another thread reads its time would let happen."""
    meter, later = Meter(), iter([Totals(2.0, 3.0, 1, 10), Totals(1.9, 2.9, 2, 20), Totals(2.5, 3.5, 2, 20)])
    meter.totals = lambda: next(later)  # type: ignore[method-assign]
    first, second = meter.read(), meter.read()
    assert (second.waited, second.seconds, second.rows) == (first.waited, first.seconds, 20)
    assert meter.take().seconds == 3.5
    meter.totals = lambda: Totals(2.4, 3.4, 2, 20)  # type: ignore[method-assign]
    assert (meter.take().waited, meter.take().seconds) == (0, 0)


def test_threads_that_share_an_iterator_wait_in_turn(folder: Path) -> None:
    loader, dataset = make(folder, num_workers=0, collate_fn=lambda batch: time.sleep(0.01) or batch)
    iterator = iter(loader)
    threads = [threading.Thread(target=lambda: list(iterator)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = progress(dataset)
    assert (last.steps, last.rows) == (len(loader), TOTAL)
    assert 0.01 * last.steps <= last.waited <= last.seconds


@pytest.mark.parametrize("ending", ["garbage", "close", "dataset", "load", "error"])
def test_the_time_after_a_pass_is_not_its_own(folder: Path, ending: str) -> None:
    def collate(batch: Any) -> Any:
        if ending == "error" and 120 in batch["id"]:
            raise KeyError("a mistake")
        return batch

    loader, dataset = make(folder, num_workers=0, collate_fn=collate)
    iterator = iter(loader)
    next(iterator), next(iterator)
    if ending == "garbage":
        del iterator
    elif ending == "close":
        iterator.close()
    elif ending == "dataset":
        dataset.close()
    elif ending == "load":
        loader.load_state_dict(loader.state_dict())
    else:
        with pytest.raises(KeyError):
            next(iterator)
    first = progress(dataset)
    assert (first.steps, first.live, first.complete) == (2, False, False)
    time.sleep(0.05)
    assert progress(dataset) == first
    assert dataset._latest.meter.totals().seconds == first.seconds


def test_the_garbage_collector_may_end_a_pass_while_its_rows_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(*args: Any) -> int:
        gc.collect()
        return rows_of_batches(*args)

    loader, dataset = make(folder, num_workers=0, show_progress=True)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    monkeypatch.setattr(one_pass, "rows_of_batches", count)
    rows: list[float] = []
    thread = threading.Thread(target=lambda: rows.append(dataset.metrics()["rows"]), daemon=True)
    thread.start()
    thread.join(30)
    assert rows == [10 * 50]
    assert not progress(dataset).live


def test_a_loop_that_stops_at_the_last_batch_ends_the_pass_there(folder: Path) -> None:
    loader, dataset = make(folder, num_workers=0)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    time.sleep(0.05)
    first = progress(dataset)
    assert first.complete
    assert first.seconds < 0.05 + first.waited
    second = iter(loader)
    next(second)
    assert dataset._latest.meter.totals().steps == len(loader) + 1
    assert dataset._latest.meter.totals().rows == TOTAL + 50
    assert progress(dataset).epoch == 1
    assert progress(dataset).seconds >= progress(dataset).waited > 0


def test_copies_begin_with_a_meter_of_their_own(folder: Path) -> None:
    loader, dataset = make(folder)
    list(loader)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy._latest.meter.progress() is None
    assert copy._latest.meter.waited() == 0
    other, second = make(folder)
    assert second._latest.meter.progress() is None
    list(other)
    assert dataset._latest.meter.totals().rows == second._latest.meter.totals().rows == TOTAL


def test_the_rows_of_any_number_of_steps_are_known_without_planning_their_laps(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(20)}), tmp_path / "a.parquet", row_group_size=4)
    loader, dataset = StructuredDataset.create_dataloader(
        tmp_path, num_workers=0, batch_size=3, steps_per_epoch=2**31, shuffle=True
    )
    next(iter(loader))
    began = time.process_time()
    assert (progress(dataset).rows, progress(dataset).rows_expected) == (3, 3 * 2**31)
    dataset.close()
    assert time.process_time() - began < 1
