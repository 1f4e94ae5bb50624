"""Windows of any table, in order or not, are those of pandas, and of the executable model where it is at hand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import model as model_of
from tests.sequences.by_hand import make, write
from torch_dataloader_utils import Windows

tables = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=40)
shapes = st.fixed_dictionaries(
    {
        "length": st.integers(1, 6),
        "horizon": st.integers(0, 3),
        "stride": st.integers(1, 4),
        "by": st.sampled_from([None, "key"]),
        "pad": st.sampled_from([None, -1, "edge"]),
        "min_length": st.integers(1, 6),
        "min_horizon": st.integers(0, 3),
        "last": st.sampled_from([None, 1, 2]),
        "gap": st.sampled_from([None, 0, 3]),
    }
)
orders = st.sampled_from(["as it is", "by key and time"])


def rows_of(table: list[tuple[int, int]], order: str) -> tuple[list[int], list[int]]:
    """The keys and times of the rows, as they are, or in an order that is read in place."""
    rows = table if order == "as it is" else sorted(table)
    return [key for key, _ in rows], [time for _, time in rows]


def delivered(keys: list[int], times: list[int], fields: dict[str, Any], **options: Any) -> dict[int, tuple[Any, ...]]:
    """Anchor -> past, its mask, future, its mask; each anchor once."""
    found: dict[int, tuple[Any, ...]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        path = write(data, keys, times, [len(keys) // 2] if len(keys) > 1 else [])
        windows = Windows(order="time", sort=f"{folder}/copies", **fields)
        for batch in make(path, windows, columns=["x"], shuffle=True, split_rows=7, **options):
            count, horizon = len(batch["x"]), windows.horizon
            future = batch["x_future"] if horizon else np.zeros((count, 0), np.int64)
            past_mask = batch.get("valid_past", np.ones_like(batch["x"], dtype=bool))
            future_mask = batch.get("valid_future", np.ones_like(future, dtype=bool))
            each = zip(*(part.tolist() for part in (batch["x"], past_mask, future, future_mask)), strict=True)
            for window in each:
                assert window[0][-1] not in found
                found[window[0][-1]] = window
    return found


@pytest.fixture(scope="module")
def model() -> ModuleType:
    return model_of("windows_model")


@settings(max_examples=150, deadline=None)
@given(tables, shapes, orders)
def test_windows_are_those_of_the_model(
    model: ModuleType, table: list[tuple[int, int]], shape: dict[str, Any], order: str
) -> None:
    fields = {**shape, "min_length": min(shape["min_length"], shape["length"])}
    fields["min_horizon"] = min(shape["min_horizon"], shape["horizon"])
    keys, times = rows_of(table, order)
    asked = model.Windows(**fields, order="time")
    runs = model.runs_of([0] * len(keys) if fields["by"] is None else keys, times, fields["gap"])
    wanted = {each.anchor: model.filled(each, range(len(keys)), asked) for each in model.all_windows(runs, asked)}
    given_fields = fields if fields["pad"] is not None else {**fields, "min_length": None, "min_horizon": None}
    found = delivered(keys, times, {name: value for name, value in given_fields.items() if value is not None})
    assert found == wanted


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 6), st.integers(0, 3), orders)
def test_whole_windows_are_the_shifts_of_pandas(
    table: list[tuple[int, int]], length: int, horizon: int, order: str
) -> None:
    keys, times = rows_of(table, order)
    frame = pd.DataFrame({"key": keys, "time": times, "x": np.arange(len(keys))})
    ordered = frame.sort_values(["key", "time"], kind="stable")
    steps = range(1 - length, horizon + 1)
    wide = pd.DataFrame({step: ordered.groupby("key")["x"].shift(-step) for step in steps}).dropna().astype(int)
    wanted = sorted(map(tuple, wide.to_numpy().tolist()))
    found = delivered(keys, times, {"length": length, "horizon": horizon, "by": "key"})
    assert sorted((*past, *future) for past, _, future, _ in found.values()) == wanted


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 6), orders)
def test_means_of_padded_windows_are_the_rolling_means_of_pandas(
    table: list[tuple[int, int]], length: int, order: str
) -> None:
    keys, times = rows_of(table, order)
    frame = pd.DataFrame({"key": keys, "time": times, "x": np.arange(len(keys), dtype=float)})
    ordered = frame.sort_values(["key", "time"], kind="stable")
    means = ordered.groupby("key")["x"].rolling(length, min_periods=1).mean().droplevel(0)
    found = delivered(keys, times, {"length": length, "by": "key", "pad": 0})
    assert found.keys() == set(range(len(keys)))
    for anchor, (past, mask, *_) in found.items():
        assert np.mean(np.array(past)[mask]) == pytest.approx(means[anchor])
