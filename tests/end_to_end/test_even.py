"""Equal steps, last batches and laps, from files to batches (the plans themselves: tests/planning)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import CountsRequiredError, Processes, Rotate, ShardingError, Strided, StructuredDataset
from torch_dataloader_utils.errors import OptionError

SIZES = [[700, 30], [5], [400], [64, 64], [1], [900], [33]]  # rows of the row groups of 7 files
ROWS = sum(map(sum, SIZES))
POLICIES: list[dict[str, Any]] = [
    {"sharding": "interleave"},
    {"sharding": "contiguous"},
    {"sharding": "rotate"},
    {"sharding": Rotate(stick_to_shard=True)},
    {"sharding": "strided"},
    {"sharding": Strided("batch")},
    {"sharding": Strided("split_batch")},
    {"sharding": "auto"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("even")
    at = 0
    for number, groups in enumerate(SIZES):
        ids = np.arange(at, at + sum(groups))
        table = pa.table({"id": ids, "x": ids.astype(np.float32), "name": [f"row {row}" for row in ids]})
        with pq.ParquetWriter(root / f"{number}.parquet", table.schema) as writer:
            for size in groups:
                writer.write_table(table.slice(0, size))
                table = table.slice(size)
        at += sum(groups)
    return str(root)


def ranks_of(folder: str, num_ranks: int, epoch: int = 0, **options: Any) -> list[list[dict[str, Any]]]:
    """The batches of each rank."""
    found = []
    for rank in range(num_ranks):
        loader, dataset = StructuredDataset.create_dataloader(folder, num_ranks=num_ranks, rank=rank, **options)
        dataset.set_epoch(epoch)
        batches = list(loader)
        if options.get("filters") is None or options.get("steps_per_epoch"):
            dataset.set_epoch(epoch)
            assert len(loader) == len(batches)
        found.append(batches)
    return found


def real_ids(batches: list[dict[str, Any]]) -> list[int]:
    return [row for batch in batches for row in batch["id"][batch["valid"]].tolist()]


@settings(max_examples=60)
@given(
    policy=st.sampled_from(POLICIES),
    even=st.sampled_from(["none", "drop", "pad"]),
    num_ranks=st.integers(1, 5),
    workers=st.sampled_from([0, 2, 3]),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    output_format=st.sampled_from(["torch", "numpy"]),
)
def test_policies_and_even(
    folder: str,
    policy: dict[str, Any],
    even: str,
    num_ranks: int,
    workers: int,
    epoch: int,
    shuffle: bool,
    output_format: str,
) -> None:
    size = 20 * num_ranks
    rows_of_batch = 20 if policy.get("sharding") == Strided("split_batch") else size
    options = {
        "batch_size": size,
        "num_workers": workers,
        "shuffle": shuffle,
        "even": even,
        "split_rows": 100,
        **policy,
    }
    ranks = ranks_of(folder, num_ranks, epoch, output_format=output_format, **options)
    for batches in ranks:
        sizes = [len(batch["id"]) for batch in batches]
        assert all(length == rows_of_batch for length in sizes[: None if even != "none" else -1])
        for batch in batches:
            assert batch["x"].tolist() == batch["id"].tolist()
            assert batch["name"] == [f"row {row}" for row in batch["id"].tolist()]
            assert ("valid" in batch) == (even == "pad")
    if even != "none":
        assert len({len(batches) for batches in ranks}) == 1
    if even == "pad":
        assert sorted(row for batches in ranks for row in real_ids(batches)) == list(range(ROWS))
        return
    seen = sorted(row for batches in ranks for batch in batches for row in batch["id"].tolist())
    if even == "none":
        assert seen == list(range(ROWS))
    else:
        assert len(seen) == len(set(seen)) > ROWS - num_ranks * rows_of_batch


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("last_batch", ["drop", "pad", "wrap"])
def test_last_batch(folder: str, last_batch: str, counted: bool, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 64, "num_workers": workers, "last_batch": last_batch, "shuffle": True}
    if not counted:
        options["filters"] = pc.field("id") + 0 < 10**6  # lets all rows through, but who knows before reading
        if last_batch == "wrap":
            with pytest.raises(CountsRequiredError, match="wrap"):
                ranks_of(folder, 2, **options)
            return
    ranks = ranks_of(folder, 2, **options)
    assert all(len(batch["id"]) == 64 for batches in ranks for batch in batches)
    if last_batch == "drop":
        assert all("valid" not in batch for batches in ranks for batch in batches)
        return
    real = [real_ids(batches) for batches in ranks]
    assert sorted(real[0] + real[1]) == list(range(ROWS))
    for rank, batches in enumerate(ranks):
        repeats = {row for batch in batches for row in batch["id"][~batch["valid"]].tolist()}
        assert repeats
        assert repeats <= set(real[1 - rank if last_batch == "wrap" else rank])


@pytest.mark.parametrize("output_format", ["torch", "arrow", "dict"])
def test_padding_in_each_output(folder: str, output_format: str) -> None:
    options: dict[str, Any] = {
        "batch_size": 1000,
        "even": "pad",
        "valid_key": "is_real",
        "output_format": output_format,
    }
    real = 0
    for batches in ranks_of(folder, 2, columns=["id"], **options):
        (first, last) = batches
        assert list(first if output_format != "arrow" else first.schema.names) == ["id", "is_real"]
        marks = [last["is_real"].to_pylist() if output_format == "arrow" else list(last["is_real"])][0]
        assert len(marks) == 1000
        assert sorted(marks, reverse=True) == marks  # repeats come last
        real += 1000 + sum(marks)
    assert real == ROWS


def test_valid_key_must_be_free(folder: str) -> None:
    with pytest.raises(OptionError, match="valid_key='x' is the name of a column"):
        StructuredDataset.create_dataloader(folder, even="pad", valid_key="x")


def test_repeats_are_copies(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=4096, even="pad", num_ranks=1, rank=0)
    (batch,) = list(loader)
    before = batch["id"][ROWS:].clone()
    batch["id"][:ROWS] = -1
    assert torch.equal(batch["id"][ROWS:], before)
    assert (before >= 0).all()


@settings(max_examples=12)
@given(
    steps=st.integers(1, 40),
    num_ranks=st.integers(1, 4),
    workers=st.sampled_from([0, 2, 3]),
    counted=st.booleans(),
    shuffle=st.booleans(),
)
def test_steps_per_epoch(folder: str, steps: int, num_ranks: int, workers: int, counted: bool, shuffle: bool) -> None:
    options: dict[str, Any] = {"batch_size": 50, "num_workers": workers, "shuffle": shuffle, "split_rows": 100}
    if not counted:
        options["filters"] = pc.field("id") + 0 < 2000
    once = [
        [row for batch in batches for row in batch["id"].tolist()] for batches in ranks_of(folder, num_ranks, **options)
    ]
    ranks = ranks_of(folder, num_ranks, steps_per_epoch=steps, **options)
    for batches, own in zip(ranks, once, strict=True):
        assert [len(batch["id"]) for batch in batches] == [50] * steps
        real = real_ids(batches)
        assert len(real) == len(set(real))
        assert set(real) <= set(own)
        # Where counts are known the rank's rows come round as a whole. Else each worker's share does so by itself.
        enough = len(own) + (max(workers, 1) - 1) * 50 if counted else 3 * len(own) + 3 * 50
        if steps * 50 >= enough:
            assert set(real) == set(own)
    again = ranks_of(folder, num_ranks, steps_per_epoch=steps, **options)
    assert [[batch["id"].tolist() for batch in batches] for batches in ranks] == [
        [batch["id"].tolist() for batch in batches] for batches in again
    ]


def test_laps_come_in_orders_of_their_own(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        folder, batch_size=ROWS, steps_per_epoch=3, shuffle=True, split_rows=50
    )
    first, second, third = [batch["id"].tolist() for batch in loader]
    assert sorted(first) == sorted(second) == sorted(third)
    assert first != second != third


@pytest.mark.parametrize("mode", ["threads", Processes(context="fork")], ids=["thread", "process"])
def test_laps_on_workers_equal_laps_in_line(folder: str, mode: Any) -> None:
    options: dict[str, Any] = {"batch_size": 50, "steps_per_epoch": 120, "shuffle": True, "split_rows": 100}
    one, _ = StructuredDataset.create_dataloader(folder, num_workers=3, **options)
    other, dataset = StructuredDataset.create_dataloader(folder, num_workers=3, worker_mode=mode, **options)
    for _ in range(2):
        assert [batch["id"].tolist() for batch in one] == [batch["id"].tolist() for batch in other]
    dataset.close()


def test_a_rank_without_rows_repeats_others(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), tmp_path / f"{number}.parquet")
    for options in ({"even": "pad"}, {"steps_per_epoch": 3}):
        ranks = ranks_of(str(tmp_path), 4, batch_size=4, shuffle=True, **options)
        assert len({len(batches) for batches in ranks}) == 1
        assert sorted(row for batches in ranks for row in real_ids(batches)) == list(range(20))


def test_nothing_to_repeat_is_an_error(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, filters=pc.field("id") + 0 < 0, steps_per_epoch=3)
    with pytest.raises(ValueError, match="3 steps of steps_per_epoch are missing: this rank has no row"):
        list(loader)


@pytest.mark.parametrize("even", ["drop", "pad"])
def test_uncounted_filters_are_refused_with_the_three_remedies(folder: str, even: str) -> None:
    with pytest.raises(CountsRequiredError, match=r"count_rows=True.*steps_per_epoch=n.*even='sync'"):
        StructuredDataset.create_dataloader(folder, filters=[("id", ">", 3)], even=even)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"even": "maybe"}, "'drop'"),
        ({"even": "drop", "last_batch": "pad"}, "last_batch='pad' with even='drop'"),
        ({"even": "drop", "steps_per_epoch": 3}, "steps_per_epoch=3"),
        ({"last_batch": "drop", "steps_per_epoch": 3}, "steps_per_epoch=3"),
        ({"steps_per_epoch": 0}, "steps_per_epoch=0"),
        ({"sharding": "zigzag"}, "interleave"),
        ({"sharding": Rotate(5)}, "total_shards=5"),
        ({"batch_size": 5, "sharding": Strided("split_batch")}, "batch_size=5"),
        ({"batch_size": 5000, "even": "drop"}, "N=2197.*R=2.*B=5000"),
        ({"valid_key": ""}, "valid_key"),
        ({"even": {"every": 0}}, "Sync: every=0"),
    ],
)
def test_options_that_cannot_work(folder: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StructuredDataset.create_dataloader(folder, num_ranks=2, rank=0, **options)


def test_sync_needs_peers_to_ask(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, even="sync", num_ranks=2, rank=0)
    with pytest.raises(TypeError, match=r"even='sync' ends all ranks with the first one\. Set even='drop'"):
        len(loader)
    with pytest.raises(ShardingError, match=r"torch\.distributed is not initialised"):
        list(loader)
    loader, _ = StructuredDataset.create_dataloader(folder, even="sync")
    assert sum(len(batch["id"]) for batch in loader) == ROWS


def test_uneven_steps_are_warned_about_once(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loader, _ = StructuredDataset.create_dataloader(folder, batch_size=64, num_ranks=4, rank=0)
        list(loader)
        list(loader)
    (record,) = caplog.records
    assert "even='drop'" in record.message
    assert "even='pad'" in record.message
    steps = [len(batches) for batches in ranks_of(folder, 4, batch_size=64)]
    assert f"different numbers of steps in epoch 0: {', '.join(map(str, steps))}" in record.message
    caplog.clear()
    StructuredDataset.create_dataloader(folder, batch_size=64, num_ranks=4, rank=0, even="drop")
    StructuredDataset.create_dataloader(folder, batch_size=64)
    assert not caplog.records
    for rank in (1, 2, 3):  # the first rank has said it for all
        list(StructuredDataset.create_dataloader(folder, batch_size=64, num_ranks=4, rank=rank)[0])
    assert not caplog.records


def test_steps_may_differ_without_a_warning_where_it_is_said(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {"batch_size": 64, "num_ranks": 4, "rank": 0}
    (usual, before), (said, after) = (
        StructuredDataset.create_dataloader(folder, **given, even=even) for even in (None, "none")
    )
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the 4 ranks have different numbers of steps in epoch 0"
    ]
    assert before.plan() == after.plan()
    assert usual.state_dict() == said.state_dict()
    said.load_state_dict(usual.state_dict())
    told, silent = before.describe(), after.describe()
    assert "different numbers of steps" in told.warnings[0].problem
    assert told.warnings[1:] == silent.warnings
    assert told.even == silent.even == "none"
    assert said.state_dict() == usual.state_dict()
    list(said)
    assert len(caplog.records) == 1


def test_len_follows_the_epoch_where_rotation_changes_it(folder: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, batch_size=7, num_ranks=3, rank=2, sharding=Rotate(12)
    )
    sizes, lengths = [], []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        lengths.append(len(loader))
        rows = [row for batch in loader for row in batch["id"].tolist()]
        sizes.append(len(rows))
        assert dataset.shard_size(2, epoch) == len(rows)
        assert lengths[-1] == -(-len(rows) // 7)
        shard = (epoch * 3 + 2) % 12
        assert rows == list(range(shard * ROWS // 12, (shard + 1) * ROWS // 12))
    assert len(set(sizes)) > 1


def test_a_policy_of_the_user(folder: str) -> None:
    def backwards(order: Any, world: Any) -> Any:
        return order.every(world.num_ranks - 1 - world.rank, world.num_ranks)

    one = ranks_of(folder, 3, batch_size=50, sharding=backwards)
    other = ranks_of(folder, 3, batch_size=50)
    assert [batch["id"].tolist() for batch in one[0]] == [batch["id"].tolist() for batch in other[2]]
