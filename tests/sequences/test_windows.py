"""Windows of data in the order of keys and times: which there are, what they hold, and that each is delivered once."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.resume.helpers import batches, pass_with_states
from tests.sequences.by_hand import delivered, filled, make, sequences_of, windows_of, write
from torch_dataloader_utils import Files, Subsets, Transform, Windows, merge_state_dicts, stream
from torch_dataloader_utils.cli.app import app
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ColumnNotFoundError,
    OptionError,
    UnsupportedTypeError,
)

LENGTHS = (9, 1, 14, 3, 6, 20, 2, 7)
KEYS = [f"k{key}" for key, rows in enumerate(LENGTHS) for _ in range(rows)]
TIMES = [2 * time + 3 * (time > 5) for rows in LENGTHS for time in range(rows)]
CUTS = (4, 25, 26, 47)

shapes = st.builds(
    lambda length, horizon, stride, pad, last, least, gap: Windows(
        length,
        order="time",
        by="key",
        horizon=horizon,
        stride=stride,
        pad=pad,
        last=last,
        gap=gap,
        **({} if pad is None else {"min_length": min(least, length), "min_horizon": min(least - 1, horizon)}),
    ),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([None, -1, "edge"]),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 4),
    st.sampled_from([None, 3]),
)
tables = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=6)  # steps of each key


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("windows"), KEYS, TIMES, CUTS)


def expected(windows: Windows, rows: Any = None, keys: Any = KEYS, times: Any = TIMES) -> dict[int, Any]:
    """What is delivered of these rows (by their numbers; all, if None)."""
    chosen = list(range(len(keys))) if rows is None else list(rows)
    runs = sequences_of([keys[row] for row in chosen], [times[row] for row in chosen], windows.gap)
    found = windows_of([[chosen[place] for place in run] for run in runs], windows)
    return found if windows.pad is None else {row: filled(window, windows.pad) for row, window in found.items()}


@settings(max_examples=60, deadline=None)
@given(tables, shapes, st.integers(1, 7), st.data())
def test_windows_are_those_by_hand(steps: list[list[int]], windows: Windows, group: int, drawn: st.DataObject) -> None:
    keys = [key for key, of_key in enumerate(steps) for _ in of_key]
    times = [time for of_key in steps for time in np.cumsum(of_key).tolist()]
    cuts = sorted(drawn.draw(st.sets(st.integers(1, len(keys)), max_size=3)) - {len(keys)})
    least = drawn.draw(st.sampled_from([-1, 2]))
    options: dict[str, Any] = drawn.draw(
        st.fixed_dictionaries(
            {"shuffle": st.booleans(), "split_rows": st.integers(1, 9), "num_ranks": st.integers(1, 3)}
        )
    )
    left = [row for row in range(len(keys)) if row % 7 > least]
    filters = None if least < 0 else pc.field("x") - pc.field("x") / 7 * 7 > least
    wanted = expected(windows, left, keys, times)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), keys, times, cuts, group)
        found: dict[int, Any] = {}
        for rank in range(options["num_ranks"]):
            loader = make(path, windows, filters=filters, **options, rank=rank, even="none")
            planned, part = len(loader), list(loader)
            assert len(part) == planned
            own = delivered(part, windows)
            assert not found.keys() & own.keys()
            found |= own
            for batch in part if windows.pad is not None else ():
                check_masks(batch, windows, left, keys, times)
    assert found == wanted


def check_masks(batch: Any, windows: Windows, left: list[int], keys: Any, times: Any) -> None:
    runs = sequences_of([keys[row] for row in left], [times[row] for row in left], windows.gap)
    found = windows_of([[left[place] for place in run] for run in runs], windows)
    for place, anchor in enumerate(batch["x"][:, -1].tolist()):
        past, future = found[anchor]
        assert batch["valid_past"][place].tolist() == [row is not None for row in past]
        if windows.horizon:
            assert batch["valid_future"][place].tolist() == [row is not None for row in future]


def test_whole_windows_are_those_of_pandas(data: str) -> None:
    frame = pd.DataFrame({"key": KEYS, "x": np.arange(len(KEYS))})
    shifted = {step: frame.groupby("key")["x"].shift(-step) for step in range(-3, 3)}
    wanted = pd.DataFrame(shifted).dropna().astype(int).to_numpy()
    windows = Windows(4, order="time", by="key", horizon=2)
    found = list(make(data, windows, batch_size=1000))
    assert len(found) == 1
    np.testing.assert_array_equal(np.concatenate([found[0]["x"], found[0]["x_future"]], axis=1), wanted)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_mode": "processes"}])
def test_all_columns_have_the_rows_of_the_window(data: str, options: dict[str, Any]) -> None:
    windows = Windows(3, order="time", by="key", horizon=2, pad="edge", static=["half"], future=["pair"])
    found = list(make(data, windows, shuffle=True, output_format="torch", **options))
    assert len(delivered(found, windows.replace(horizon=0, future=None))) == len(KEYS)
    wanted = expected(windows)
    for batch in found:
        assert set(batch) == {"key", "time", "x", "pair", "pair_future", "half", "valid_past", "valid_future"}
        x, anchors = batch["x"], batch["x"][:, -1]
        assert batch["pair"].shape == (len(x), 3, 2)
        assert batch["pair_future"].shape == (len(x), 2, 2)
        assert torch.equal(batch["pair"][:, :, 1], (2 * x + 1).int())
        assert torch.equal(batch["half"], anchors / 2)
        assert batch["key"] == [KEYS[row] for row in anchors.tolist()]
        assert batch["time"].tolist() == [[TIMES[row] for row in rows] for rows in x.tolist()]
        future = torch.div(batch["pair_future"][:, :, 0], 2, rounding_mode="floor")
        assert [tuple(rows) for rows in future.tolist()] == [wanted[row][1] for row in anchors.tolist()]


def test_a_pass_resumes_at_each_step_and_on_other_ranks(data: str) -> None:
    windows = Windows(4, order="time", by="key", horizon=1, pad=-1)
    wanted = expected(windows)
    whole, states = pass_with_states(make(data, windows, shuffle=True, num_workers=2))
    for step, state in enumerate(states):
        resumed = make(data, windows, shuffle=True, num_workers=2)
        resumed.load_state_dict(state)
        assert batches(resumed) == whole[step:]
    begun = [make(data, windows, shuffle=True, num_ranks=2, rank=rank) for rank in range(2)]
    seen: dict[int, Any] = {}
    states = []
    for loader in begun:
        taken = iter(loader)
        seen |= delivered([next(taken), next(taken)], windows)
        states.append(loader.state_dict())
    for rank in range(3):
        loader = make(data, windows, shuffle=True, num_ranks=3, rank=rank)
        loader.load_state_dict(merge_state_dicts(states))
        own = delivered(list(loader), windows)
        assert not seen.keys() & own.keys()
        seen |= own
    assert seen == wanted


def test_padded_ranks_have_equal_steps(data: str) -> None:
    windows = Windows(4, order="time", by="key", horizon=1)
    found: dict[int, Any] = {}
    steps = set()
    for rank in range(3):
        loader = make(data, windows, even="pad", num_ranks=3, rank=rank, last_batch="pad")
        part = list(loader)
        steps.add(len(part))
        found |= delivered(part, windows)
    assert len(steps) == 1
    assert found == expected(windows)


def test_a_subset_by_key_takes_whole_sequences(data: str, caplog: pytest.LogCaptureFixture) -> None:
    windows, shares = Windows(4, order="time", by="key"), Subsets({"train": 0.5, "val": 0.5}, by="key")
    sides = [delivered(list(make(data, windows, subset=shares[name])), windows) for name in ("train", "val")]
    assert all(sides)
    assert sides[0] | sides[1] == expected(windows)
    assert not sides[0].keys() & sides[1].keys()
    assert "leaks" not in caplog.text


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("by", [None, "x"])
def test_other_subsets_choose_windows_by_their_anchors(
    data: str, tmp_path: Path, sort: bool, by: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    windows, shares = Windows(4, order="time", by="key", horizon=1), Subsets({"train": 0.6, "val": 0.4}, by=by)
    path, keys, times = data, KEYS, TIMES
    if sort:
        order = np.random.default_rng(0).permutation(len(KEYS)).tolist()
        keys, times = [KEYS[row] for row in order], [TIMES[row] for row in order]
        path, windows = write(tmp_path, keys, times, CUTS), windows.replace(sort=tmp_path / "_copies")
    options: dict[str, Any] = {"columns": ["x"], "shuffle": True, "filters": pc.field("x") - pc.field("x") / 9 * 9 != 0}
    sides = {}
    for name in ("train", "val"):
        loaders = [make(path, windows, subset=shares[name], num_ranks=2, rank=rank, **options) for rank in range(2)]
        parts = [delivered(list(loader), windows) for loader in loaders]
        assert not parts[0].keys() & parts[1].keys()
        sides[name] = parts[0] | parts[1]
        assert len(sides[name])
    wanted = expected(windows, [row for row in range(len(keys)) if row % 9], keys, times)
    assert sides["train"] | sides["val"] == wanted
    assert not sides["train"].keys() & sides["val"].keys()
    assert "leaks into validation. Use subset=" in caplog.text
    if by == "x":
        rows = make(path, windows, subset=shares["val"], columns=["x"]).replace(sequences=None)
        chosen = {row for batch in rows for row in batch["x"].tolist()}
        assert sides["val"].keys() == wanted.keys() & chosen
        sample = delivered(list(make(path, windows, fraction=0.5, columns=["x"])), windows)
        assert 0 < len(sample) < len(expected(windows, None, keys, times))


def test_a_subset_of_files_is_refused(data: str) -> None:
    windows = Windows(4, order="time", by="key")
    shares = Subsets({"train": 0.5, "val": 0.5}, unit="file")
    with pytest.raises(OptionError, match="by file: it would hold parts of sequences") as refused:
        make(data, windows, subset=shares["train"])
    for remedy in refused.value.remedies:
        assert delivered(list(make(data, windows, **remedy.given)), windows)


def test_columns_of_keys_and_times_are_read_although_they_are_not_delivered(data: str) -> None:
    windows = Windows(4, order="time", by="key", gap=3)
    found = list(make(data, windows, columns=["x"]))
    assert {key for batch in found for key in batch} == {"x"}
    assert delivered(found, windows) == expected(windows)


def test_transforms_see_rows(data: str) -> None:
    def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pc.multiply(rows.column("x"), 1), pc.multiply(rows.column("x"), 2)], names=["x", "two"])

    windows = Windows(5, order="time", by="key")
    found = list(make(data, windows, transform=Transform(doubled), shuffle=True))
    assert delivered(found, windows) == expected(windows)
    assert all((2 * batch["x"] == batch["two"]).all() for batch in found)


@pytest.mark.parametrize(
    ("unit", "gap"), [("s", "1h"), ("us", timedelta(hours=1)), ("ms", "60 min"), ("ns", "3600s"), ("us", 3_600_000_000)]
)
def test_a_gap_is_a_duration_or_in_the_unit_of_the_column(tmp_path: Path, unit: str, gap: Any) -> None:
    start, minutes = datetime(2026, 1, 1), [0, 30, 90, 151, 160, 161]
    times = pa.array([start + timedelta(minutes=minute) for minute in minutes], pa.timestamp(unit))
    path = write(tmp_path, ["a"] * 6, times)
    found = delivered(list(make(path, Windows(3, order="time", by="key", gap=gap))), Windows(3, order="time"))
    assert set(found) == {2, 5}


def test_order_may_be_of_any_width(tmp_path: Path) -> None:
    times = pa.array([-(2**63), -1, 2**63 - 1, -5, 0], pa.int64())
    path = write(tmp_path, [1, 1, 1, 2, 2], times)
    assert set(
        delivered(list(make(path, Windows(2, order="time", by="key", gap=2**62))), Windows(2, order="time"))
    ) == {4}
    wide = write(tmp_path / ".." / tmp_path.name, [1, 1, 1], pa.array([0, 2**63, 2**64 - 1], pa.uint64()), [1])
    assert set(
        delivered(list(make(wide + "/00.parquet", Windows(1, order="time", gap=1))), Windows(1, order="time"))
    ) == {0}


def test_errors_name_the_file_and_a_remedy_that_works(tmp_path: Path) -> None:
    windows = Windows(2, order="time", by="key")
    times = pa.array([0.0, 1.0, None, 3.0, float("nan"), 5.0])
    path = write(tmp_path, ["a", "a", "a", "b", "b", "b"], times)
    with pytest.raises(OptionError, match=r"00\.parquet.*'time', the column of Windows\(order=\)") as refused:
        make(path, windows)
    (remedy,) = refused.value.remedies
    filters = remedy.given["filters"].value
    assert set(delivered(list(make(path, windows, filters=filters)), windows)) == {1, 5}


@pytest.mark.parametrize(
    ("keys", "times", "why"),
    [
        (["a", "b", "a", "b"], [0, 0, 1, 1], "2.0 places on average"),
        (["a", "a", "b", "b"], [0, 1, 1, 0], r"in .*00\.parquet, 'time' falls"),
    ],
)
@pytest.mark.parametrize("group", [1, 4])
def test_data_in_another_order_are_refused(tmp_path: Path, keys: Any, times: Any, why: str, group: int) -> None:
    path = write(tmp_path, keys, times, group=group)
    with pytest.raises(OptionError, match=why):
        make(path, Windows(2, order="time", by="key"))


def test_columns_that_are_no_windows_are_refused(data: str, tmp_path: Path) -> None:
    table = pa.table({"time": [0, 1], "text": ["a", "b"], "lists": [[1], [2, 3]], "valid_past": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    windows = Windows(2, order="time")
    with pytest.raises(UnsupportedTypeError, match="'text' is of type string") as refused:
        make(str(tmp_path), windows, columns=["time", "text"])
    assert len(refused.value.remedies) == 2
    for remedy in refused.value.remedies:
        assert (
            len(list(make(str(tmp_path), **{"windows": windows, **_renamed(remedy.given)}, columns=["time", "text"])))
            == 1
        )
    ragged = windows.replace(horizon=1, future=["lists"], pad={"lists": 0, "time": 0})
    with pytest.raises(UnsupportedTypeError, match="'lists' is of type list") as refused:
        make(str(tmp_path), ragged, columns=["time", "lists"])
    (remedy,) = refused.value.remedies
    assert len(list(make(str(tmp_path), remedy.given["sequences"], columns=["time", "lists"]))) == 1
    with pytest.raises(OptionError, match="'valid_past' would be twice"):
        make(str(tmp_path), windows.replace(pad=0), columns=["time", "valid_past"])
    with pytest.raises(ColumnNotFoundError, match=r"Windows\(by='keys'\): no such column.*'key'"):
        make(data, Windows(2, order="time", by="keys"))
    with pytest.raises(ColumnNotFoundError, match=r"Windows\(static=\): batches have no key 'y'"):
        make(data, Windows(2, order="time", by="key", static="y"))
    for fields in ({"horizon": 1, "future": ["key"]}, {"pad": {"half": 0}, "static": ["half"]}):
        with pytest.raises(OptionError, match="has one value for a window"):
            make(data, Windows(2, order="time", by="key", **fields))
    with pytest.raises(UnsupportedTypeError, match="order='key'"):
        make(data, Windows(2, order="key"))
    with pytest.raises(UnsupportedTypeError, match="by='half'"):
        make(data, Windows(2, order="time", by="half"))
    with pytest.raises(OptionError, match="has no unit of time"):
        make(data, Windows(2, order="time", by="key", gap="1h"))
    with pytest.raises(OptionError, match="expected a number that fits int32"):
        make(data, Windows(2, order="time", by="key", pad={"pair": 0.5}))


def _renamed(given: Any) -> dict[str, Any]:
    return {"windows" if name == "sequences" else name: value for name, value in given.items()}


def test_other_windows_do_not_resume(data: str) -> None:
    windows = Windows(4, order="time", by="key", pad=0)
    loader = make(data, windows)
    next(iter(loader))
    other = make(data, windows.replace(length=5))
    with pytest.raises(CheckpointMismatchError, match="sequences"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize("sort", [False, True])
def test_rows_of_windows_have_names_and_windows_are_drawn_by_weights(data: str, tmp_path: Path, sort: bool) -> None:
    windows, path, order = Windows(4, order="time", by="key", horizon=1, pad=-1), data, np.arange(len(KEYS))
    if sort:
        order = np.random.default_rng(0).permutation(len(KEYS))
        keys, times = [KEYS[row] for row in order], [TIMES[row] for row in order]
        path, windows = write(tmp_path, keys, times, CUTS), windows.replace(sort=tmp_path / "_copies")
    named = Files(path, metadata_columns=["_file", "_pos", "_draws"])
    loader = stream(named, sequences=windows, batch_size=4, num_workers=0, output_format="numpy", shuffle=True)
    once, files = list(loader), loader.vocabulary("_file")
    assert [Path(name).name for name in files] == [f"{file:02}.parquet" for file in range(len(CUTS) + 1)]
    for batch in once:
        file = np.searchsorted(CUTS, batch["x"], "right")
        real = batch["valid_past"]
        assert (batch["_file"] == file)[real].all()
        assert (batch["_pos"] == batch["x"] - np.array([0, *CUTS])[file])[real].all()
        assert (batch["_pos"] == -1)[~real].all()
        assert (batch["_draws"] == 1).all()
    anchors = [batch["x"][:, -1] for batch in loader.replace(shuffle=False)]
    weights = np.arange(len(KEYS)) % 4
    loader.set_row_weights(weights, rows_per_epoch=100)
    shares = dict(zip(np.concatenate(anchors).tolist(), (100 * weights / weights.sum()).tolist(), strict=True))
    whole, seen = delivered(once, windows), Counter[int]()
    for batch in loader:
        for place, row in enumerate(batch["x"][:, -1].tolist()):
            assert (tuple(batch["x"][place].tolist()), tuple(batch["x_future"][place].tolist())) == whole[row]
            assert batch["_draws"][place] == np.float32(shares[row])
            seen[row] += 1
    assert all(int(share) <= seen[row] <= int(share) + 1 for row, share in shares.items())
    assert seen.total() == 100
    with pytest.raises(OptionError, match="a weight for each of the 62 windows"):
        loader.set_row_weights([1], rows=([0], [0]))


def test_plans_count_windows(data: str) -> None:
    loader = make(data, Windows(4, order="time", by="key"), batch_size=8)
    count = len(expected(Windows(4, order="time", by="key")))
    said = loader.dataset.describe()
    assert (said.rows, said.units, said.batch_in_words) == (count, "windows", "8 windows")
    assert said.sequences == f"Windows(4, order='time', by=['key']): 8 runs of {len(KEYS)} rows"
    assert f"windows {count}" in repr(loader)
    assert f"{count} windows" in str(loader.dataset.plan())
    fields = '{"length": 4, "order": "time", "by": "key"}'
    shown = CliRunner().invoke(app, ["plan", data, "--num-ranks", "2", "--set", f"sequences={fields}"])
    assert shown.exit_code == 0, shown.output
    assert f"windows  {count}\n" in shown.output
    with pytest.raises(OptionError, match=r"rows_of\(\) with sequences"):
        loader.dataset.rows_of(0, 0)


def test_no_window_at_all_is_an_empty_loader(data: str, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(data, Windows(21, order="time", by="key"))
    assert list(loader) == []
    assert len(loader) == 0
    assert "no run has the 21 rows of a window" in caplog.text


def test_the_first_batch_and_another_loader_of_the_same_files(data: str) -> None:
    windows = Windows(4, order="time", by="key")
    loader = stream(data, sequences=windows, batch_size=4, num_workers=0, output_format="numpy")
    assert loader.head(2)["x"].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    other = loader.replace(sequences=windows.replace(stride=3))
    assert set(delivered(list(other), windows)) == set(expected(windows.replace(stride=3)))


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 0},
        {"length": 3, "stride": 0},
        {"length": 3, "pad": 0, "min_length": 4},
        {"length": 3, "horizon": 1, "pad": 0, "min_horizon": 2},
        {"length": 3, "min_length": 2},
        {"length": 2, "last": 0},
        {"length": 2, "gap": "soon"},
        {"length": 2, "gap": "1M"},
        {"length": 2, "gap": -1},
        {"length": 2, "pad": "mean"},
        {"length": 2, "pad": True},
        {"length": 2, "future": ["x"]},
        {"length": True},
    ],
)
def test_values_that_cannot_work_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Windows(order="time", **fields)
