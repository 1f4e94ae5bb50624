"""Length buckets: the law of the batches, and every row exactly once under ranks, workers and resumes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packing.helpers import write_documents
from tests.resume.helpers import batches, pass_with_states, through_json
from torch_dataloader_utils import (
    Buckets,
    Pack,
    Padded,
    Strided,
    StructuredDataset,
    Transform,
    combine,
    merge_state_dicts,
)
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ColumnNotFoundError,
    CountsRequiredError,
    OptionError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.length_buckets.groups import Budget, buckets_of
from torch_dataloader_utils.options.buckets import BucketOptions

LENGTHS = np.random.default_rng(0).integers(1, 24, 60).tolist()
ORDERS: list[dict[str, Any]] = [{}, {"shuffle": True, "shuffle_buffer_size": 20}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("documents"), LENGTHS)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketOptions, "rows", 10)
    monkeypatch.setattr(BucketOptions, "batches", 1)


def make(path: str, **options: Any) -> Any:
    given = {
        "num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 6, "split_rows": 12,
        "batch_tokens": Buckets(48, by="input_ids"),
    } | options  # fmt: skip
    return StructuredDataset.create_dataloader(path, **given)[0]


def ranks_of(path: str, num_ranks: int, **options: Any) -> list[Any]:
    return [make(path, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]


def held(loader: Any) -> list[int]:
    """The first tokens of all rows; each batch is checked against the budget."""
    found: list[int] = []
    for batch in loader:
        offsets = np.asarray(batch["input_ids"]["offsets"])
        sizes = np.diff(offsets)
        assert len(sizes) <= 6
        assert len(sizes) * sizes.max() <= 48
        found += np.asarray(batch["input_ids"]["values"])[offsets[:-1]].tolist()
    return found


@given(
    lengths=st.lists(st.integers(0, 60), max_size=80), tokens=st.integers(1, 80), rows=st.integers(1, 9),
    multiple=st.integers(1, 9), long=st.sampled_from(["single", "drop"]), key=st.integers(0, 2**63),
)  # fmt: skip
def test_batches_hold_every_row_once_within_the_budget(
    lengths: list[int], tokens: int, rows: int, multiple: int, long: str, key: int
) -> None:
    budget = Budget(tokens, rows, multiple, long)
    sizes = np.array(lengths, np.int64)
    found = buckets_of(sizes, budget, key, np.arange(len(sizes))[::-1])
    padded = budget.padded(sizes)
    kept = np.flatnonzero((padded <= tokens) | (long == "single"))
    assert sorted(found.rows.tolist()) == kept.tolist()
    for first, last in pairwise(found.offsets.tolist()):
        group = found.rows[first:last]
        assert 1 <= len(group) <= rows
        assert len(group) == 1 or len(group) * padded[group].max() <= tokens
        assert (np.diff(group) < 0).all()  # in the order of the stream


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_each_row_is_delivered_once(data: str, num_workers: int, order: dict[str, Any]) -> None:
    for num_ranks in (1, 2, 3):
        found = [held(each) for each in ranks_of(data, num_ranks, num_workers=num_workers, **order)]
        assert sorted(sum(found, [])) == [1000 * i for i in range(60)]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_threads_and_processes_deliver_the_same_batches(data: str, order: dict[str, Any]) -> None:
    processes = make(data, num_workers=2, worker_mode="processes", **order)
    assert batches(processes) == batches(make(data, num_workers=2, **order))
    processes.dataset.close()


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_each_epoch_has_an_order_of_its_own(data: str, order: dict[str, Any]) -> None:
    loader = make(data, **order)
    first = held(loader)
    loader.dataset.set_epoch(1)
    assert held(loader) != first
    loader.dataset.set_epoch(0)
    assert held(loader) == first
    assert held(make(data, shuffle_seed=1, **order)) != first


def test_descriptions_and_plans_tell_of_batches_by_length(data: str) -> None:
    loader = make(data)
    described = " ".join(str(loader.dataset.describe()).split())
    assert "B = up to 48 tokens and 6 rows by length of input_ids" in described
    assert "rows 60; batches are counted as they are cut" in described
    assert "batches are permuted in 5 windows, each sorted by length and cut into batches" in described
    plan = repr(loader.dataset.plan(0, 0))
    assert "(batches by length)" in plan
    assert "permuted in 5 windows, each sorted by length" in plan
    with pytest.raises(TypeError, match="batch_tokens cuts batches by length"):
        len(loader)


@pytest.mark.parametrize(
    ("lists", "multiple"),
    [
        (Padded(multiple=8), 8),
        (Padded(-1), 1),
        ({"input_ids": Padded(multiple=4), "labels": Padded(-1, multiple=6)}, 12),
        ({"*": Padded(multiple=8), "input_ids": "ragged"}, 8),
    ],
    ids=str,
)
def test_what_is_padded_keeps_the_budget(data: str, lists: Any, multiple: int) -> None:
    loader = make(data, batch_tokens=Buckets(72, by="input_ids"), lists=lists, shuffle=True)
    padded = [entry for batch in loader for entry in batch.values() if "lengths" in entry]
    assert max(entry["values"].numel() for entry in padded) <= 72
    assert sum(len(entry["lengths"]) for entry in padded) in (60, 120)
    text = "" if multiple == 1 else f", padded to multiples of {multiple}"
    described = " ".join(str(loader.dataset.describe()).split())
    assert f"B = up to 72 tokens and 6 rows by length of input_ids{text}" in described


def test_what_the_parts_of_a_combination_pad_keeps_the_budget(data: str) -> None:
    parts = [make(data, batch_tokens=None, lists=Padded(multiple=8)).dataset for _ in range(2)]
    loader = combine(parts, batch_tokens=Buckets(72, by="input_ids"), batches="splits", num_ranks=1, rank=0)
    assert max(batch["input_ids"]["values"].numel() for batch in loader) <= 72
    assert "padded to multiples of 8" in " ".join(str(loader.describe()).split())


def test_the_multiple_is_part_of_what_a_state_belongs_to(data: str) -> None:
    loader = make(data, lists=Padded(multiple=4))
    next(iter(loader))
    state = loader.state_dict()
    batches_by_value = make(data, lists={"*": Padded(multiple=4), "labels": Padded(-1, multiple=2)})
    batches_by_value.load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="padded to multiples of 4"):
        make(data, lists=Padded(multiple=6)).load_state_dict(state)


def test_batches_waste_little(data: str) -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 4096).astype(np.int64) + 1
    found = buckets_of(lengths, Budget(16_384, 1024, long="single"), 0)
    padded = sum(
        (last - first) * int(lengths[found.rows[first:last]].max()) for first, last in pairwise(found.offsets.tolist())
    )
    assert lengths.sum() / padded > 0.95


def test_ranks_in_step_stop_together(data: str) -> None:
    steps = [len(list(loader)) for loader in ranks_of(data, 1, even="sync")]
    assert steps == [len(list(make(data)))]


def test_filters_transforms_and_class_weights_come_before_the_batches(data: str, tmp_path: Path) -> None:
    def longer(batch: Any) -> Any:
        return batch.filter(pc.greater(pc.list_value_length(batch["input_ids"]), 5))

    rows = [1000 * i for i, length in enumerate(LENGTHS) if length > 5]
    assert sorted(held(make(data, transform=Transform(longer, rows="any")))) == rows
    table = pq.read_table(data)
    pq.write_table(table.append_column("id", pa.array(range(60))), tmp_path / "a.parquet", row_group_size=7)
    given = {
        "columns": ["input_ids"],
        "filters": [("id", "<", 30)],
        "class_weights": {"id": dict.fromkeys(range(9), 2)},
    }
    twice = sorted([*range(9), *range(30)])
    assert sorted(held(make(str(tmp_path), **given))) == [1000 * i for i in twice]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", [*ORDERS, {"steps_per_epoch": 30}], ids=str)
def test_a_pass_resumes_at_every_step(data: str, order: dict[str, Any], num_workers: int) -> None:
    whole, states = pass_with_states(make(data, num_workers=num_workers, **order))
    for taken, state in enumerate(states[:-1]):
        loader = make(data, num_workers=num_workers, **order)
        loader.load_state_dict(state)
        assert batches(loader) == whole[taken:]


# The last one: several windows of a task, which are cut into batches together.
@pytest.mark.parametrize("order", [*ORDERS, {"shuffle": True, "shuffle_buffer_size": 5}], ids=str)
def test_other_ranks_finish_the_epoch(data: str, order: dict[str, Any]) -> None:
    for taken in (0, 1, 3):
        done, states = [], []
        for loader in ranks_of(data, 2, num_workers=2, **order):
            taking = iter(loader)
            done += held([next(taking) for _ in range(taken)])
            states.append(loader.state_dict())
            loader.dataset.close()
        state = through_json(merge_state_dicts(states))
        for loader in ranks_of(data, 3, **order):
            loader.load_state_dict(state)
            done += held(loader)
        assert sorted(done) == [1000 * i for i in range(60)]


def test_a_long_row_is_an_error_that_names_it(data: str) -> None:
    with pytest.raises(OptionError, match=r"parquet: row \d+ of the rows read.*more than batch_tokens=20"):
        list(make(data, batch_tokens=Buckets(20, by="input_ids")))
    for long, kept in (("single", 60), ("drop", sum(length <= 20 for length in LENGTHS))):
        found = make(data, batch_tokens=Buckets(20, by="input_ids", long=long))
        assert sum(len(batch["input_ids"]["offsets"]) - 1 for batch in found) == kept


def test_combined_rows_share_batches_only_by_splits(data: str) -> None:
    parts = [StructuredDataset.create_dataloader(data)[1] for _ in range(2)]
    options = {"batch_tokens": Buckets(48, by="labels"), "batch_size": 6}
    with pytest.raises(OptionError, match="batches='splits'"):
        combine(parts, **options)
    loader = combine(parts, batches="splits", **options)
    assert sorted(held(loader)) == sorted([1000 * i for i in range(60)] * 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_tokens": 48}, OptionError, "several columns of lists"),
        ({"even": "drop"}, CountsRequiredError, "steps_per_epoch=n"),
        ({"last_batch": "drop"}, OptionError, "none is short"),
        ({"last_batch": "wrap"}, CountsRequiredError, "steps_per_epoch=n"),
        ({"canonical_ranks": 4}, CountsRequiredError, "steps_per_epoch=n"),
        ({"sharding": Strided("split_batch")}, OptionError, "batch of one rank"),
        ({"pack": Pack(8, columns=["input_ids"])}, OptionError, "Leave out batch_tokens"),
        ({"output_format": "arrow"}, OptionError, "only tensors and arrays are padded"),
    ],
    ids=str,
)
def test_what_cannot_work_is_an_error(data: str, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(data, **options)


def test_rows_without_lists_need_a_column_of_lengths(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    message = r"there is no column of lists\. One of \['n'\]"
    with pytest.raises(OptionError, match=message):
        make(str(tmp_path), batch_tokens=48)


def test_without_a_column_of_lengths_no_empty_list_of_columns_is_the_remedy(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "n": [1, 2]}), tmp_path / "a.parquet")
    for name, error in ((None, OptionError), ("y", ColumnNotFoundError), ("x", UnsupportedTypeError)):
        with pytest.raises(error) as caught:
            make(str(tmp_path), batch_tokens=Buckets(48, by=name), columns=["x"])
        assert "lists, strings or whole numbers" in str(caught.value)
        assert "[]" not in str(caught.value)
    assert len(list(make(str(tmp_path), batch_tokens=Buckets(48, by="n"), columns=["x", "n"]))) == 1
