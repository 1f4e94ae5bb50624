"""Reported rows are those that the loader delivers: of plans, tables, shards, descriptions and reprs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.end_to_end.parts import BUDGET, EVERY, ids, of_rows, write_rows
from tests.resume.helpers import KEPT, make, write_files
from torch_dataloader_utils import CheckpointMismatchError
from torch_dataloader_utils.options.buckets import BucketOptions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


ORDERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"shuffle": "splits"}, {"sharding": "contiguous"}])


@given(steps=st.integers(1, 30), ranks=st.integers(1, 3), workers=st.integers(0, 3), options=ORDERS)
def test_steps_per_epoch_cuts_what_is_reported(
    folder: str, steps: int, ranks: int, workers: int, options: dict[str, Any]
) -> None:
    """Fewer steps than a rank has rows for leave rows out; more repeat them, which `valid` marks."""
    for rank in range(ranks):
        given = {"steps_per_epoch": steps, "num_ranks": ranks, "num_workers": workers, **options}
        loader = make(folder, rank=rank, **given)
        plan, share = loader.dataset.plan(), loader.dataset.describe().ranks[rank]
        found = [row for batch in loader for row in batch["id"][batch["valid"]].tolist()]
        assert plan.steps == share.steps == steps
        assert plan.rows == share.rows == loader.dataset.shard_size(rank, 0) == len(found)
        assert share.padding == steps * 3 - len(found)
        listed = [place for place in plan.table() if not place["padding"]]
        assert sum(place["rows"] for place in listed) == len(found)
        assert sum(plan.shard(worker).row_count or 0 for worker in range(len(plan.shards))) == len(found)
        assert f"{len(found)} row" in repr(plan)


def test_a_repr_does_not_count_rows_that_a_filter_may_drop(folder: str) -> None:
    assert "rows 38;" in repr(make(folder).dataset)
    assert "rows 25;" in repr(make(folder, filters=KEPT, count_rows=True).dataset)
    uncounted = make(folder, filters=KEPT)
    assert "rows known only after reading (of 38);" in repr(uncounted.dataset)
    assert uncounted.dataset.describe().rows is None


def test_batches_by_length_may_change_between_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning of an epoch and between windows; within one, an error says what to keep."""
    monkeypatch.setattr(BucketOptions, "rows", 10)
    monkeypatch.setattr(BucketOptions, "batches", 1)
    path, place = write_rows(tmp_path), {"num_ranks": 1, "rank": 0, "num_workers": 0}
    make_with, loaded = of_rows(**BUDGET), {True: 0, False: 0}
    steps = sum(1 for _ in make_with(path, **place))
    for step in range(steps):
        for options in ({"batch_size": 3}, {"batch_tokens": 30}):
            loader = make_with(path, **place)
            iterator = iter(loader)
            seen = [row for _ in range(step) for row in ids(next(iterator))]
            other = of_rows(**{**BUDGET, **options})(path, **place)
            told = refusal(other, loader.state_dict())
            loaded[not told] += 1
            if told:
                assert "sorted by length were delivered, in batches of the state's budget" in told
            else:
                assert sorted(seen + [row for batch in other for row in ids(batch)]) == list(EVERY)
    assert loaded[True] > 4 < loaded[False]


def refusal(loader: Any, state: Any) -> str:
    """Why the loader refuses the state; "" if it loads it."""
    try:
        loader.load_state_dict(state)
    except CheckpointMismatchError as error:
        return str(error)
    return ""
