"""What a state is: plain, small, cheap, without secrets; and when it is refused."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from tests.resume.helpers import KEPT, batches, make, pass_with_states, plain, through_json, write_files
from torch_dataloader_utils import (
    CheckpointMismatchError,
    OptionError,
    Rotate,
    Strided,
    StructuredDataset,
    merge_state_dicts,
)
from torch_dataloader_utils.checkpoint.form import sealed
from torch_dataloader_utils.checkpoint.positions import BlockLog, EpochPosition, cursor_after, exact_cursor
from torch_dataloader_utils.model import RankCursor, WorkerCursor
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.reading.blocks import Block


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("data"))


def state_after(loader: Any, steps: int) -> Any:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return through_json(loader.state_dict())


def test_the_form(folder: str) -> None:
    state = state_after(make(folder, shuffle=True, num_workers=2, sharding="auto"), 4)
    assert set(state) == {"version", "plan_version", "data", "epoch", "links", "skip", "digest"}
    assert (state["version"], state["epoch"], state["skip"]) == (1, 0, [])
    assert all(len(digest) == 16 and isinstance(text, str) for digest, text in state["data"].values())
    assert state["data"]["files"][1] == "4 files, 38 rows"
    (link,) = state["links"]
    assert link["batches"] == 4
    assert link["policy"] == "interleave"
    assert link["options"] == {
        "num_ranks": 1, "num_shards": 2, "batch_size": 3, "assignment": "lpt", "sharding": "auto",
        "stick_to_shard": False, "full_rotation": False, "shard_batches": False, "split_batches": False,
        "canonical_ranks": None, "total_shards": None, "even": "none", "last_batch": "partial", "buffer_rows": None,
        "window_bytes": 128 * 2**20, "open_splits": None, "steps_per_epoch": None, "pack_rows": None, "pack_bytes": 0,
        "pack_keyed": False, "sequence_length": 1,
        "levelled": False,
    }  # fmt: skip


def test_a_state_can_be_changed_without_harm(folder: str) -> None:
    loader = make(folder)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    state["data"]["files"][1] = "nothing"
    state["links"][0]["options"]["batch_size"] = 0
    state["skip"].append([0, 1])
    assert loader.state_dict() == kept


def test_known_counts_one_state_for_all_ranks(folder: str) -> None:
    options: dict[str, Any] = {"even": "drop", "shuffle": True}
    states = [state_after(make(folder, num_ranks=3, rank=rank, **options), 2) for rank in range(3)]
    assert states[0] == states[1] == states[2]
    for rank in range(3):
        loader = make(folder, num_ranks=3, rank=rank, **options)
        whole = batches(loader)
        loader.load_state_dict(states[0])
        assert batches(loader) == whole[2:]


def test_a_rank_that_was_shorter_has_nothing_left(folder: str) -> None:
    loaders = [make(folder, num_ranks=2, rank=rank, split_rows=20) for rank in range(2)]
    lengths = [len(loader) for loader in loaders]
    long, short = sorted(range(2), key=lambda rank: -lengths[rank])
    assert lengths[long] > lengths[short]
    state = state_after(loaders[long], lengths[long] - 1)
    loaders[short].load_state_dict(state)
    assert batches(loaders[short]) == []
    assert loaders[short].state_dict()["epoch"] == 1


def test_the_size(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(10_000))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    loader = make(str(tmp_path), split_rows=1, num_workers=16)
    assert loader.dataset.plan().num_splits == 10_000
    assert len(json.dumps(loader.state_dict())) < 2_000
    codec = loader.dataset._latest.codec
    cursor = RankCursor(7, tuple(WorkerCursor(shard, 10**5, 10**6) for shard in range(16)))
    assert len(json.dumps(codec.state(EpochPosition(3, 10**6, cursor=cursor, skip=((10, 20),))))) < 3_000


@pytest.mark.parametrize("filters", [None, KEPT])
def test_a_state_of_each_step_makes_no_plan(folder: str, monkeypatch: pytest.MonkeyPatch, filters: Any) -> None:
    loader = make(folder, filters=filters, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.state_dict()
    monkeypatch.setattr(Planner, "rank_plan", None)
    monkeypatch.setattr("torch_dataloader_utils.checkpoint.checkpoint.fingerprint", None)
    for _ in iterator:
        loader.state_dict()


def test_no_secret_is_told(folder: str) -> None:
    secret = "hunter2"
    loader, _ = StructuredDataset.create_dataloader(
        f"file://{folder}", storage_options={"key": secret}, num_ranks=1, rank=0, num_workers=0
    )
    assert secret not in json.dumps(loader.state_dict())


def test_files_are_known_by_their_place_below_the_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    state = state_after(make(write_files(tmp_path / "here")), 5)
    moved = make(write_files(tmp_path / "there"))
    whole = batches(moved)
    moved.load_state_dict(state)
    assert batches(moved) == whole[5:]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shuffle_seed": 7}, r"shuffle_seed: 42 \(digest \w+\) in the state, 7 \(digest"),
        ({"shuffle": False}, r"shuffle: True .* in the state, False"),
        ({"filters": [("id", ">", 20)]}, r"filters: None .* in the state, .*20"),
        ({"columns": ["id"]}, r"schema: 2 columns: id: int64, name: string .* in the state, 1 columns: id: int64"),
        ({"split_rows": 3}, r"splits: 8 splits .* in the state, \d+ splits"),
    ],
)  # fmt: skip
def test_other_options_of_the_data_are_refused(folder: str, options: dict[str, Any], told: str) -> None:
    state = state_after(make(folder, shuffle=True), 2)
    other = make(folder, **{"shuffle": True} | options)
    with pytest.raises(CheckpointMismatchError, match=told):
        other.load_state_dict(state)
    assert other.state_dict()["links"][0]["batches"] == 0


def test_other_files_are_refused_unless_told_otherwise(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_after(make(folder), 2)
    other = make(write_files(tmp_path, ((5, 2, 8), (4, 4))))
    with pytest.raises(CheckpointMismatchError, match=r"files: 4 files, 38 rows .* in the state, 2 files, 23 rows"):
        other.load_state_dict(state)
    whole = batches(other)
    with caplog.at_level(logging.WARNING):
        other.load_state_dict(state, strict=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "rows may repeat or be missed" in caplog.text
    assert batches(other) == whole[2:]


def test_strict_false_with_unknown_counts(folder: str, tmp_path: Path) -> None:
    state = state_after(make(folder, filters=KEPT), 2)
    other = make(write_files(tmp_path, ((5, 2, 8), (4, 4))), filters=KEPT)
    whole = batches(other)
    other.load_state_dict(state, strict=False)
    assert batches(other) == whole[2:]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "got NoneType"),
        ({"epoch": 1}, r"got a dict with the keys \['epoch'\]"),
        ({"version": 99, "plan_version": 1, "data": {}, "epoch": 0, "links": [{}]}, "has version 99"),
    ],
)
def test_what_is_no_state_is_refused(folder: str, state: Any, told: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=told):
        make(folder).load_state_dict(state)


def test_another_plan_version_is_refused(folder: str) -> None:
    state = make(folder).state_dict() | {"plan_version": 0}
    with pytest.raises(CheckpointMismatchError, match="plan version: 0 in the state, 4 here"):
        make(folder).load_state_dict(state)


def test_another_version_of_what_was_left_is_refused(folder: str) -> None:
    loader = make(folder, num_workers=3)
    loader.load_state_dict(state_after(make(folder), 2))
    state = loader.state_dict()
    assert (len(state["links"]), state["plan_version"]) == (2, 5)
    with pytest.raises(CheckpointMismatchError, match="plan version: 1 in the state, 5 here"):
        make(folder, num_workers=3).load_state_dict(state | {"plan_version": 1})


@pytest.mark.parametrize("workers", [0, 3])
def test_another_rank_s_state_of_unknown_counts_is_replayed(
    folder: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"filters": KEPT, "num_ranks": 2, "num_workers": workers, "shuffle": True}
    state = state_after(make(folder, rank=0, **options), 3)
    assert list(state["links"][0]["cursors"]) == ["0"]
    loader = make(folder, rank=1, **options)
    whole = batches(loader)
    loader.load_state_dict(state)
    with caplog.at_level(logging.WARNING):
        found, states = pass_with_states(loader)
    assert "the position of rank 1 in epoch 0: 3 batches are read again" in caplog.text
    assert found == whole[3:]
    # From then on its own place is known.
    assert list(states[1]["links"][0]["cursors"]) == ["1"]
    loader.load_state_dict(states[1])
    assert batches(loader) == whole[4:]


def test_only_the_rest_is_read(folder: str) -> None:
    loader = make(folder)
    whole = batches(loader)
    read: list[Any] = []
    scan = loader.dataset._source.scan
    reader = scan.open(loader.dataset._source.by_key)
    original = type(reader).block

    def counted(self: Any, task: Any) -> Any:
        read.append(task)
        return original(self, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(reader), "block", counted)
        loader.load_state_dict(state_after(make(folder), 0))
        plan = loader.dataset.plan()
        tasks = plan.tasks(0)
        for step in range(len(whole) + 1):
            loader.load_state_dict(through_json(make_state(loader, step)))
            read.clear()
            assert batches(loader) == whole[step:]
            begun = exact_cursor(lambda lap: plan, lambda lap: [tasks], step, laps=False)
            assert len(read) == len(tasks) - begun.shards[0].task if step < len(whole) else not read


def make_state(loader: Any, step: int) -> Any:
    state = loader.state_dict()
    state["epoch"] = 0
    state["links"][-1]["batches"] = step
    return sealed(state)


def test_padding_of_unknown_counts_is_the_shard_s_beginning(folder: str) -> None:
    for workers in (0, 2):
        loader = make(folder, filters=KEPT, last_batch="pad", num_workers=workers, batch_size=7)
        whole, states = pass_with_states(loader)
        assert any(False in batch["valid"] for batch in whole)
        for step, state in enumerate(states):
            loader.load_state_dict(state)
            assert batches(loader) == whole[step:]


def test_output_formats_and_collate(folder: str) -> None:
    for output_format in ("numpy", "dict"):
        loader = make(folder, output_format=output_format, collate_fn=lambda batch: {"n": len(batch["id"]), **batch})
        whole, states = pass_with_states(loader)
        loader.load_state_dict(states[7])
        assert batches(loader) == whole[7:]
        assert plain(whole[0])["n"] == 3


def log(start: WorkerCursor, *laps: list[int]) -> BlockLog:
    made = BlockLog(start)
    for number, blocks in enumerate(laps):
        if number:
            made.begin_lap()
        for rows in blocks:
            made.take(Block(rows, {}, None, 0))
    return made


@drawn(data=st.data())
def test_a_trail_counts_rows_that_were_left_out_of_blocks(data: st.DataObject) -> None:
    """A cursor is the place of the next row among those of its task, whether or not rows before it were left out."""
    tasks = data.draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4))
    begun = data.draw(st.integers(0, len(tasks[0]) - 1))
    made = BlockLog(WorkerCursor(0, begun, len(tasks[0]) if begun else 0))
    left: list[tuple[int, int]] = []  # task and place of each row that is delivered
    for number, there in enumerate(tasks):
        gaps = np.flatnonzero(~np.array(there))
        block = Block(sum(there), {}, None, 0, left_out=gaps if len(gaps) else None)
        before = made.take(block)
        assert before == (sum(there[:begun]) if number == 0 else 0)
        left += [(number, place) for place, is_there in enumerate(there) if is_there and (number or place >= begun)]
    size = data.draw(st.integers(1, 3))
    for taken in range(1, len(left) // size + 1):
        at = made.after(taken, size)
        following = left[taken * size] if taken * size < len(left) else None
        if at.rows:
            assert (at.task, at.rows) == following
            assert at.live == len(tasks[at.task])
        elif following is not None:  # the begin of a block, of which no row was delivered
            assert at.task <= following[0]
            assert all(task < at.task for task, _ in left[: taken * size])


def test_a_trail_tells_where_a_shard_was() -> None:
    seen = log(WorkerCursor(2, 1, 4), [4, 0, 5])
    assert seen.after(0, 3) == WorkerCursor(2, 1, 4)
    assert seen.after(1, 3) == WorkerCursor(4)
    assert seen.after(2, 3) == WorkerCursor(4, 3, 5)
    assert cursor_after([seen], 0, 2, 3, False).shards == (WorkerCursor(4, 3, 5),)
    seen.ended = True
    assert (seen.batches(3, False), seen.batches(3, True)) == (3, 2)
    assert seen.after(3, 3) == WorkerCursor(5)
    assert cursor_after([seen], 0, 2, 3, False).shards == (WorkerCursor(4, 3, 5),)


def test_a_trail_over_laps() -> None:
    seen = log(WorkerCursor(1), [2], [0, 2, 1], [0, 2], [0, 0])
    assert seen.after(1, 2) == WorkerCursor(0, 0, 0, 1)  # nothing of the lap was seen: it begins anew
    assert seen.after(2, 2) == WorkerCursor(2, 0, 0, 1)
    assert seen.after(3, 2) == WorkerCursor(1, 1, 2, 2)
    seen.ended = True
    assert seen.after(4, 2) == WorkerCursor(0, 0, 0, 3)
    begun = log(WorkerCursor(2, 0, 0, 1), [0])
    assert begun.after(0, 2) == WorkerCursor(2, 0, 0, 1)


def test_whose_turn_is_next() -> None:
    logs = [log(WorkerCursor(), [9]), log(WorkerCursor(), [3]), log(WorkerCursor(), [9])]
    assert [cursor_after(logs, 1, taken, 3, False).turn for taken in range(4)] == [1, 2, 0, 1]
    logs[1].ended = True
    assert [cursor_after(logs, 1, taken, 3, False).turn for taken in range(7)] == [1, 2, 0, 2, 0, 2, 0]


@pytest.mark.parametrize("epoch", [-1, 1.0, 1.5, "1", None, True])
def test_an_epoch_is_a_whole_number(tmp_path: Path, epoch: Any) -> None:
    loader = make(write_files(tmp_path))
    with pytest.raises(OptionError, match="expected a whole number of at least 0"):
        loader.dataset.set_epoch(epoch)


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_any_kind_of_whole_number_is_the_same_epoch(tmp_path: Path, kind: Any) -> None:
    folder = write_files(tmp_path)
    found = []
    for epoch in (1, kind(1)):
        loader = make(folder, shuffle=True, shuffle_buffer_size=8)
        loader.dataset.set_epoch(epoch)
        iterator = iter(loader)
        next(iterator)
        found.append((through_json(loader.state_dict()), [plain(batch) for batch in iterator]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "damage", [{"links": "x"}, {"skip": "x"}, {"epoch": "x"}, {"epoch": -5}, {"epoch": 2.5}, {"data": None}], ids=str
)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    loader = make(write_files(tmp_path))
    whole = batches(loader)
    with pytest.raises(CheckpointMismatchError, match=r"damaged|different data"):
        loader.load_state_dict({**loader.state_dict(), **damage})
    loader.dataset.set_epoch(0)
    assert batches(loader) == whole


def as_numpy(value: Any) -> Any:
    """The same state with numpy's numbers and tuples, as some stores return them."""
    if isinstance(value, dict):
        return {key: as_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(as_numpy(item) for item in value)
    if isinstance(value, bool):
        return np.bool_(value)
    return np.int64(value) if isinstance(value, int) else value


def as_config(value: Any) -> Any:
    return pytest.importorskip("omegaconf").OmegaConf.create(value)


@pytest.mark.parametrize("stored", [as_numpy, as_config])
@pytest.mark.parametrize("options", [{}, {"filters": KEPT, "num_workers": 2}], ids=["known", "unknown"])
def test_states_of_numpy_numbers_and_configs(folder: str, stored: Any, options: dict[str, Any]) -> None:
    loader = make(folder, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = stored(through_json(loader.state_dict()))
    rest = [plain(batch) for batch in iterator]
    for given in (state, merge_state_dicts([state])):
        again = make(folder, **options)
        again.load_state_dict(given)
        assert batches(again) == rest


@pytest.mark.parametrize(
    ("sharding", "held"),
    [
        ("interleave", {"sharding": "interleave"}),
        (Rotate(4, full_rotation=True), {"sharding": "rotate", "total_shards": 4, "full_rotation": True}),
        (Strided("batch"), {"sharding": "strided", "shard_batches": True}),
        (Strided("split_batch"), {"sharding": "strided", "split_batches": True}),
    ],
    ids=str,
)
def test_states_hold_a_policy_as_they_did_before_it_was_a_value(
    folder: str, sharding: Any, held: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"sharding": sharding, "batch_size": 2, "num_ranks": 1, "rank": 0, "num_workers": 0}
    loader, _ = StructuredDataset.create_dataloader(folder, **given)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    flags = dict.fromkeys(("stick_to_shard", "full_rotation", "shard_batches", "split_batches"), False)
    expected = {"total_shards": None, **flags, **held}
    assert {name: state["links"][0]["options"][name] for name in expected} == expected
    again, _ = StructuredDataset.create_dataloader(folder, **given)
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in again] == [batch["id"].tolist() for batch in batches]
