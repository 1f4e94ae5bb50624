"""loader.head: the first rows of an epoch as one batch, in each form of batches; what it reads, what it leaves alone.

Each kind of loader is in the grid (`tests/end_to_end/test_parts.py`).
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.end_to_end.test_devices import FORMS, table
from tests.resume.helpers import KEPT, plain
from torch_dataloader_utils import EmptyDatasetError, OptionError, Pack, Padded, Transform, stream

RANKS: dict[str, Any] = {"num_ranks": 1, "rank": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 rows in three files of row groups of 10, 20 and 40 rows."""
    path = tmp_path_factory.mktemp("head")
    for number, size in enumerate((10, 20, 40)):
        pq.write_table(table(number * 40, 40), path / f"part-{number}.parquet", row_group_size=size)
    return str(path)


def same(one: Any, other: Any) -> bool:
    """Whether two batches have equal values, types, dtypes and shapes."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and one.is_nested:
        return same(one.values(), other.values()) and same(one.offsets(), other.offsets())
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(type(one) is type(other) and one == other)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("form", FORMS)
def test_head_has_the_form_of_a_batch(form: str, device: str | None, folder: str) -> None:
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, **FORMS[form], **RANKS}
    first = next(iter(stream(folder, **given)))
    sizes = {
        len(value) for key, value in first.items() if isinstance(value, (torch.Tensor, list)) and key != "cu_seqlens"
    }
    loader = stream(folder, device=device, **given)
    assert same(loader.head(min(sizes)), first)


@pytest.mark.parametrize("output_format", ["numpy", "dict", "arrow"])
def test_head_in_other_formats(output_format: Any, folder: str) -> None:
    given: dict[str, Any] = {"batch_size": 8, "columns": ["id", "city", "items"], "output_format": output_format}
    first = next(iter(stream(folder, **given, **RANKS)))
    head = stream(folder, **given, **RANKS).head(8)
    assert head.equals(first) if output_format == "arrow" else same(head, first)


def test_head_goes_over_batches_blocks_and_shards(folder: str) -> None:
    loader = stream(folder, columns=["id"], batch_size=7, num_workers=3, split_rows=10, shuffle="all", **RANKS)
    rows = [row for batch in loader for row in batch["id"].tolist()]
    loader.set_epoch(0)
    for n in (1, 6, 7, 8, 50, 119, 120):
        assert loader.head(n)["id"].tolist() == rows[:n]
    assert loader.head(1000)["id"].tolist() == rows
    assert loader.head(np.int64(3))["id"].tolist() == rows[:3]
    assert len(loader.head()["id"]) == 5


def test_head_is_of_the_epoch_that_is_set_or_read(folder: str) -> None:
    loader = stream(folder, columns=["id"], batch_size=50, shuffle=True, **RANKS)
    firsts = []
    for _ in range(2):
        passing = iter(loader)
        firsts.append(next(passing)["id"][:3].tolist())
        assert loader.head(3)["id"].tolist() == firsts[-1]
        list(passing)
    loader.set_epoch(1)
    assert loader.head(3)["id"].tolist() == firsts[1] != firsts[0]


def test_collate_fn_gets_the_rows_as_one_batch(folder: str) -> None:
    def collate(batch: Any) -> list[int]:
        rows: list[int] = batch["id"].tolist()
        return [-row for row in rows]

    loader = stream(folder, columns=["id"], batch_size=4, collate_fn=collate, **RANKS)
    assert loader.head(6) == sum(loader, [])[:6]


def test_head_repeats_what_laps_and_padding_repeat(folder: str) -> None:
    few: dict[str, Any] = {"columns": ["id"], "limit": 5, "batch_size": 4, **RANKS}
    assert stream(folder, steps_per_epoch=3, **few).head(100)["id"].tolist() == [*range(5), *range(5), 0, 1]
    padded = stream(folder, last_batch="pad", **few).head(100)
    assert padded["valid"].tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("even", ["sync", "drop", "pad", "none"])
def test_head_asks_no_other_rank(even: Any, folder: str) -> None:
    given: dict[str, Any] = {"columns": ["id"], "batch_size": 4, "even": even, "num_ranks": 2}
    heads = [stream(folder, rank=rank, **given).head(100) for rank in range(2)]
    rows = [row for head in heads for row in head["id"][head.get("valid", slice(None))].tolist()]
    assert sorted(rows) == list(range(120))


READ: list[int] = []


def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
    READ.extend(batch["id"].to_pylist())
    return batch


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 4}, {"num_workers": 2, "worker_mode": "processes"}]
)
def test_only_the_blocks_of_these_rows_are_read_in_the_calling_thread(workers: Any, folder: str) -> None:
    READ.clear()
    transform = Transform(noted, format="arrow")
    loader = stream(folder, columns=["id"], batch_size=2, split_rows=10, transform=transform, **workers, **RANKS)
    rows = loader.head(3)["id"].tolist()
    assert set(rows) <= set(READ)
    assert len(READ) <= 2 * 40  # the row groups of the first two batches
    assert loader.metrics(total=True)["rows"] == 0


def test_head_keeps_a_position_that_was_loaded(folder: str) -> None:
    loader = stream(folder, columns=["id"], batch_size=10, shuffle=True, filters=KEPT, **RANKS)
    passing = iter(loader)
    first, second = next(passing), next(passing)
    state = loader.state_dict()
    resumed = stream(folder, columns=["id"], batch_size=10, shuffle=True, filters=KEPT, **RANKS)
    resumed.load_state_dict(state)
    assert resumed.head(20)["id"].tolist() == [*first["id"].tolist(), *second["id"].tolist()]
    assert resumed.state_dict() == state
    assert plain(next(iter(resumed))) == plain(next(passing))


def test_a_copy_and_packed_sequences(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 2], [3], [4, 5, 6]]}), tmp_path / "x.parquet")
    loader = stream(tmp_path, pack=Pack(3), batch_size=1, **RANKS)
    head = pickle.loads(pickle.dumps(loader.dataset)).head(2)
    assert sorted(head["ids"].flatten().tolist()) == [1, 2, 3, 4, 5, 6]
    assert head["cu_seqlens"].tolist()[-1] == 6


def test_longest_padding_is_that_of_all_rows(folder: str) -> None:
    loader = stream(folder, columns=["items"], lists=Padded(multiple=4), batch_size=1, **RANKS)
    assert loader.head(4)["items"]["values"].shape == (4, 4)


def test_what_head_cannot_do(folder: str) -> None:
    with pytest.raises(OptionError, match=r"head\(0\): expected a whole number of rows, at least 1"):
        stream(folder, columns=["id"], **RANKS).head(0)
    with pytest.raises(EmptyDatasetError, match="head: rank 0 has no rows in epoch 0"):
        stream(folder, columns=["id"], filters=[("id", "<", 0)], **RANKS).head(2)


def test_an_error_of_a_transform_leaves_the_loader_as_it_was(folder: str) -> None:
    def fails(batch: Any) -> Any:
        if len(batch):
            raise ValueError("no")
        return batch

    loader = stream(folder, transform=fails, **RANKS)
    with pytest.raises(ValueError, match="no"):
        loader.head()
    assert loader.dataset._passes.live is None
