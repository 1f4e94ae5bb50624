"""The verdict: a table of totals and what limits each, then data throttled in turn at each place."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.metrics.throttled import (
    BLOCKS,
    NAP,
    PROCESS,
    TOTAL,
    SlowStore,
    make,
    remote,
    slow_collate,
    slow_transform,
)
from torch_dataloader_utils.metrics.meter import PassStatus, PassTotals
from torch_dataloader_utils.metrics.totals import Totals
from torch_dataloader_utils.metrics.verdict import Reading, verdict

AHEAD, INLINE, PROCESSES = Reading(), Reading(inline=True), Reading(processes=True)
REMOTE = Reading(local=False)


def ended(waited: float, stages: Mapping[str, float], *, empty: float | None = None, first: float = 1.0) -> PassTotals:
    """A pass of 100 s, of which `next` was blocked for some."""
    progress = PassStatus(3, 50, 50, 1000, 1000, waited, first, 100.0, live=False, complete=True)
    half = {name: seconds / 2 for name, seconds in stages.items()}
    empty = waited - first if empty is None else empty
    workers = {0: {**half, "queue_empty": empty / 2}, 1: {**half, "queue_empty": empty / 2}}
    steady = Totals(waited - first, 100.0 - first, 49, 980, 0.0, workers)
    return PassTotals(progress, Totals(waited, 100.0, 50, 1000, 0.0, workers), steady)


@pytest.mark.parametrize(
    ("waited", "stages", "reading", "limit", "words"),
    [
        (90, {"read": 80, "decode": 10, "transform": 5}, REMOTE, "storage", "cache="),
        (90, {"read": 10, "decode": 80}, REMOTE, "decode", "Decoding limits the speed, with 89%"),
        (90, {"decode": 80}, AHEAD, "decode", "Decoding, which includes reading local files, limits the speed"),
        (90, {"decode": 80}, PROCESSES, "decode", "Raise num_workers"),
        (90, {"decode": 8, "transform": 80}, AHEAD, "transform", "worker_mode='processes'"),
        (90, {"decode": 8, "transform": 80}, PROCESSES, "transform", "Raise num_workers"),
        (90, {"decode": 8, "transform": 80}, INLINE, "transform", "set num_workers=2"),
        (90, {"decode": 8, "delete": 80}, AHEAD, "delete", "Compact the table"),
        (90, {"decode": 8, "filter": 80}, AHEAD, "filter", "Sort the data"),
        (90, {"decode": 8, "shuffle": 80}, AHEAD, "shuffle", "smaller windows"),
        (90, {"decode": 8, "convert": 5, "pack": 5}, PROCESSES, "convert", "columns="),
        (30, {"decode": 80}, AHEAD, "decode", "30% of 100 s waiting"),
        (5, {"decode": 80}, AHEAD, "consumer", "a faster loader would change nothing"),
        (0, {}, AHEAD, "consumer", "Training limits"),
    ],
)
def test_the_limit_is_where_the_time_goes(
    waited: float, stages: Mapping[str, float], reading: Reading, limit: str, words: str
) -> None:
    judged = verdict(ended(waited, stages), reading)
    assert judged.limit == limit
    assert words in str(judged)
    assert str(judged).startswith("epoch 3: 1,000 of 1,000 rows in 50 steps, 10 rows/s, ")


def test_a_wait_for_batches_is_no_wait_for_blocks() -> None:
    judged = verdict(ended(90, {"decode": 80}, empty=10), AHEAD)
    assert judged.limit == "batches"
    assert judged.advice.startswith("Making batches (cutting blocks, the copy to the device) limits the speed: ")


@pytest.mark.parametrize(
    ("reading", "words", "not_said"),
    [
        (AHEAD, "a larger batch_size=", "collate_fn"),
        (INLINE, "a larger batch_size=", "runs ahead"),
        (Reading(collates=True), "from collate_fn to transform=, which runs ahead", "batch_size"),
        (Reading(inline=True, collates=True), "and set num_workers=2 or more", "which runs ahead"),
        (Reading(in_step=True), "waiting for the other ranks", "collate_fn"),
    ],
)
def test_advice_on_making_batches_fits_the_options(reading: Reading, words: str, not_said: str) -> None:
    advice = verdict(ended(90, {"decode": 80}, empty=10), reading).advice
    assert words in advice
    assert not_said not in advice


def test_a_long_start_is_told_from_the_steady_state() -> None:
    assert verdict(ended(61, {"decode": 80}, first=60.0), AHEAD).limit == "start"
    assert verdict(ended(41, {"decode": 80}, first=40.0), AHEAD).limit == "consumer"
    assert verdict(ended(60, {"decode": 80}, first=40.0), AHEAD).limit == "decode"


def test_a_wait_that_is_the_first_batchs_is_said_to_be() -> None:
    said = str(verdict(ended(26, {"decode": 80}, first=25.0), AHEAD))
    assert (
        "26% of 100 s waiting for data (25 s of it for the first batch). After the first batch, training limits" in said
    )
    assert "After the first" not in str(verdict(ended(5, {"decode": 80}), AHEAD))


def test_a_pass_without_batches_has_a_verdict() -> None:
    empty = PassStatus(0, 0, None, 0, None, 0.0, None, 0.0, live=False, complete=True)
    judged = verdict(PassTotals(empty, Totals(), Totals()), AHEAD)
    assert str(judged) == "epoch 0: 0 rows in 0 steps, 0 rows/s, 0% of 0 s waiting for data. No row was delivered."


def judged(loader: Any, dataset: Any, nap: float = 0.0) -> Any:
    if dataset._options.worker.worker_mode == "processes":
        list(loader)  # starts the processes, which takes longer than reading so little data
    for _ in loader:
        time.sleep(nap)
    found = dataset.verdict()
    dataset.close()
    assert found is not None
    return found


AHEAD_OR_NOT: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, **PROCESS}]


@pytest.mark.parametrize("executor", AHEAD_OR_NOT, ids=["in-line", "threads", "processes"])
def test_a_slow_transform_limits_the_speed(folder: Path, executor: dict[str, Any]) -> None:
    found = judged(*make(folder, transform=slow_transform, **executor))
    assert found.limit == "transform"
    assert found.share > 0.5


@pytest.mark.parametrize("executor", [{"num_workers": 0}, {"num_workers": 1}], ids=["in-line", "threads"])
def test_a_slow_store_limits_the_speed(folder: Path, executor: dict[str, Any]) -> None:
    found = judged(*remote(folder, SlowStore, **executor))
    assert found.limit == "storage"
    assert found.waited_fraction > 0.5


@pytest.mark.parametrize("executor", AHEAD_OR_NOT[1:], ids=["threads", "processes"])
def test_slow_training_limits_the_speed(folder: Path, executor: dict[str, Any]) -> None:
    found = judged(*make(folder, **executor), nap=NAP)
    assert found.limit == "consumer"
    assert found.progress.seconds >= NAP * found.progress.steps


def test_a_slow_collate_fn_limits_the_speed(folder: Path) -> None:
    found = judged(*make(folder, num_workers=1, collate_fn=slow_collate))
    assert found.limit == "batches"
    assert "from collate_fn" in found.advice


def test_a_loop_that_counts_its_steps_gets_the_verdict_after_the_last_one(folder: Path) -> None:
    """As Lightning's does, which never asks for a batch after the last."""
    loader, dataset = make(folder, num_workers=0)
    iterator = iter(loader)
    for _ in range(len(loader) - 1):
        next(iterator)
    assert dataset.verdict() is None
    next(iterator)
    assert dataset.verdict().progress.rows == TOTAL
    first = dataset.verdict()
    next(iter(loader))
    assert dataset.verdict().progress.epoch == first.progress.epoch == 0


def test_an_epoch_that_is_resumed_at_its_end_has_a_verdict(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader, dataset = make(folder, num_workers=0)
    loader.skip_steps(0, len(loader))
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        assert list(loader) == []
    (line,) = lines(caplog)
    assert "epoch 0: 0 of 0 rows in 0 steps, 0 rows/s, " in line
    assert dataset.verdict().progress.seconds >= 0


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "waiting for data" in record.getMessage()]


def test_one_line_is_logged_after_each_complete_pass(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader, dataset = make(folder, num_ranks=2, rank=1, num_workers=0)
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        assert dataset.verdict() is None
        next(iter(loader))
        assert not lines(caplog)
        iterator = iter(loader)
        list(iterator), list(iterator), list(loader)
        dataset.close()
    first, second = lines(caplog)
    assert first.startswith(f"rank 1 of 2, epoch 0: {TOTAL // 2} of {TOTAL // 2} rows in {BLOCKS} steps, ")
    assert second.startswith("rank 1 of 2, epoch 1: ")
    assert second.endswith(str(dataset.verdict()))
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        list(loader)
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize("ending", ["abandoned", "loaded", "closed", "failed"])
def test_no_line_is_logged_after_an_incomplete_pass(
    folder: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    def collate(batch: Any) -> Any:
        if ending == "failed" and 120 in batch["id"]:
            raise KeyError("a mistake")
        return batch

    loader, dataset = make(folder, num_workers=0, collate_fn=collate)
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        iterator = iter(loader)
        next(iterator)
        if ending == "abandoned":
            next(iter(loader))
        elif ending == "loaded":
            loader.load_state_dict(loader.state_dict())
        elif ending == "failed":
            with pytest.raises(KeyError):
                list(iterator)
        dataset.close()
    assert not lines(caplog)
    assert dataset.verdict() is None


def test_a_resumed_pass_is_judged_by_its_own_rows(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader, _ = make(folder)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    loader, _ = make(folder)
    loader.load_state_dict(state)
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        list(loader)
    (line,) = lines(caplog)
    assert f"epoch 0: {TOTAL - 150:,} of {TOTAL - 150:,} rows in {BLOCKS * 2 - 3} steps" in line
