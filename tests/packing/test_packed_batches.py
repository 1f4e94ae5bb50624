"""Packed batches end to end: each token exactly once, under ranks, workers and any resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import LENGTH, PACK, documents, held, make, parts_of, write_documents
from tests.resume.helpers import batches, pass_with_states, through_json
from torch_dataloader_utils import Pack, StructuredDataset, combine, merge_state_dicts
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ColumnNotFoundError,
    CountsRequiredError,
    OptionError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.options import PackOptions

LENGTHS = np.random.default_rng(0).integers(0, 24, 60).tolist()
ORDERS: list[dict[str, Any]] = [{}, {"shuffle": True, "shuffle_buffer_size": 9}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("documents"), LENGTHS)


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackOptions, "documents", 10)
    monkeypatch.setattr(PackOptions, "sequences", 2)


def ranks_of(path: str, num_ranks: int, **options: Any) -> list[Any]:
    return [make(path, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]


@settings(max_examples=12)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=50),
    length=st.integers(1, 30),
    num_ranks=st.integers(1, 3),
    num_workers=st.sampled_from([0, 2]),
    order=st.sampled_from([*ORDERS, {"shuffle": "splits"}]),
    row_group_size=st.integers(1, 20),
    sharding=st.sampled_from(["interleave", "contiguous", "strided"]),
)
def test_each_token_is_delivered_once(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    length: int,
    num_ranks: int,
    num_workers: int,
    order: dict[str, Any],
    row_group_size: int,
    sharding: str,
) -> None:
    path = write_documents(tmp_path_factory.mktemp("any"), [*lengths, 1], files=2, row_group_size=row_group_size)
    options = {"num_workers": num_workers, "sharding": sharding, "pack": PACK.replace(length=length), **order}
    found = [held(loader) for loader in ranks_of(path, num_ranks, **options)]
    assert sorted(sum(found, [])) == parts_of([*lengths, 1], length)


def test_threads_and_processes_deliver_the_same_batches(data: str) -> None:
    for order in ORDERS:
        threads = make(data, num_workers=2, **order)
        processes = make(data, num_workers=2, worker_mode="processes", **order)
        assert batches(processes) == batches(threads)
        processes.dataset.close()
    assert batches(make(data, num_workers=None)) == batches(make(data, num_workers=0))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", [*ORDERS, {"steps_per_epoch": 21}], ids=str)
def test_a_pass_resumes_at_every_step(data: str, order: dict[str, Any], num_workers: int) -> None:
    whole, states = pass_with_states(make(data, num_workers=num_workers, **order))
    assert len(whole) > 6
    for taken, state in enumerate(states[:-1]):
        loader = make(data, num_workers=num_workers, **order)
        loader.load_state_dict(state)
        assert batches(loader) == whole[taken:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_other_ranks_and_workers_finish_the_epoch(data: str, order: dict[str, Any], num_workers: int) -> None:
    expected = parts_of(LENGTHS)
    steps = min(len(list(loader)) for loader in ranks_of(data, 2, num_workers=num_workers, **order))
    for taken in range(0, steps + 1, 2):
        done, state = taken_by(ranks_of(data, 2, num_workers=num_workers, **order), taken)
        for num_ranks, workers in ((1, 2), (3, 0)):
            loaders = ranks_of(data, num_ranks, num_workers=workers, **order)
            again, second = taken_by(loaders, 1, state)
            rest = ranks_of(data, 2, num_workers=0, **order)
            for loader in rest:
                loader.load_state_dict(second)
            assert sorted([*done, *again, *(each for loader in rest for each in held(loader))]) == expected


def taken_by(loaders: list[Any], steps: int, state: Any = None) -> tuple[list[Any], Any]:
    """The documents of the first batches of each loader, and their merged state."""
    done, states = [], []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        taking = iter(loader)
        done += held(batch for batch in (next(taking, None) for _ in range(steps)) if batch is not None)
        states.append(loader.state_dict())
        loader.dataset.close()
    return done, through_json(merge_state_dicts(states))


def test_the_keys_of_a_batch(tmp_path: Path) -> None:
    path = write_documents(tmp_path, [3, 4, 2, 6], files=1)
    (batch,) = make(path, pack=PACK.replace(length=8))
    assert {key: getattr(value, "dtype", int) for key, value in batch.items()} == {
        "input_ids": torch.int32, "labels": torch.int64, "position_ids": torch.int32, "document_ids": torch.int32,
        "cu_seqlens": torch.int32, "max_seqlen": int,
    }  # fmt: skip
    assert batch["input_ids"].tolist() == [
        [0, 1, 2, 1000, 1001, 1002, 1003, 0],
        [2000, 2001, 3000, 3001, 3002, 3003, 3004, 3005],
    ]
    assert batch["labels"][0].tolist() == [-100, -1, -2, -100, -1001, -1002, -1003, -100]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 1, -1], [0, 0, 1, 1, 1, 1, 1, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 0, 1, 2, 3, 4, 5]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 7, 8, 10, 16]
    assert batch["max_seqlen"] == 6
    batch["input_ids"].mul_(2)  # writable
    (numpy,) = make(path, pack=PACK.replace(length=8), output_format="numpy")
    assert numpy["cu_seqlens"].tolist() == batch["cu_seqlens"].tolist()


def test_windows_span_files_and_are_packed_in_the_order_of_the_stream(data: str) -> None:
    order = [document[0] // 1000 for batch in make(data) for document in held([batch])]
    assert order != sorted(order)
    # A window has some 10 documents and whole row groups of 7.
    assert max(abs(at - number) for at, number in enumerate(order)) < 30


@pytest.mark.parametrize(("long", "kept"), [("truncate", LENGTH), ("drop", 0)])
def test_long_documents(data: str, long: str, kept: int) -> None:
    whole = [each if len(each) <= LENGTH else each[:kept] for each in documents(LENGTHS)]
    assert sorted(held(make(data, pack=PACK.replace(long=long)))) == sorted(each for each in whole if each)


def test_a_long_document_is_an_error_on_request(data: str) -> None:
    with pytest.raises(OptionError, match="more than length=16") as caught:
        list(make(data, pack=PACK.replace(long="error")))
    assert any("0.parquet" in note for note in caught.value.__notes__)


def test_columns_of_different_lengths_are_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3, 4]]}), tmp_path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match=r"in row 1 .* 'input_ids' has 1 values and 'labels' has 2"):
        list(make(str(tmp_path)))


def test_documents_are_filtered_and_transformed_before_they_are_packed(data: str) -> None:
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch.column(0)
        ids = pa.ListArray.from_arrays(lists.offsets, pa.compute.multiply(lists.values, 2))
        return pa.record_batch({"ids": ids})

    found = make(data, columns=["input_ids"], transform=doubled, pack=LENGTH, limit=5)
    tokens = {token for batch in found for row in batch["ids"].tolist() for token in row} - {0}
    assert tokens == {2 * token for each in documents(LENGTHS[:5]) for token in each} - {0}


def test_steps_per_epoch_repeats_sequences_that_the_mask_marks(data: str) -> None:
    steps = len(list(make(data)))
    found = list(make(data, steps_per_epoch=steps + 3))
    assert len(found) == steps + 3
    real = [batch["input_ids"][batch["valid"][:, None] & (batch["document_ids"] >= 0)] for batch in found]
    expected = sorted(token for each in documents(LENGTHS) for token in each)
    assert sorted(token for tokens in real for token in tokens.tolist()) == expected
    last = list(make(data, last_batch="pad"))[-1]
    assert len(last["valid"]) == 3


def test_text_without_row_counts_is_packed(tmp_path: Path) -> None:
    for number in range(2):
        lines = (json.dumps({"input_ids": list(each)}) for each in documents(LENGTHS)[number::2])
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    found = []
    for loader in ranks_of(str(tmp_path), 2, pack=LENGTH, split_rows=None):
        for batch in loader:
            found += batch["input_ids"][batch["document_ids"] >= 0].tolist()
    assert sorted(found) == sorted(token for each in documents(LENGTHS) for token in each)


def test_combined_documents_share_sequences(data: str, tmp_path: Path) -> None:
    other = write_documents(tmp_path, [5] * 20)
    parts = [StructuredDataset.create_dataloader(path)[1] for path in (data, other)]
    options = {"pack": PACK, "batch_size": 3}
    with pytest.raises(OptionError, match=r"method='wrap'.*batches='splits' without weights"):
        combine(parts, weights=[1, 2], **options)
    for loader in (combine(parts, **options), combine(parts, batches="splits", **options)):
        assert sorted(held(loader)) == sorted(parts_of(LENGTHS) + parts_of([5] * 20))
    loader = combine(parts, batches="splits", num_ranks=1, rank=0, steps_per_epoch=40, **options)
    batches = list(loader)
    assert len(batches) == 40
    real = [{key: batch[key][batch["valid"]] for key in ("input_ids", "document_ids")} for batch in batches]
    tokens = [token for batch in real for token in batch["input_ids"][batch["document_ids"] >= 0].tolist()]
    assert len(tokens) == sum(LENGTHS) + 100
    packed, _ = StructuredDataset.create_dataloader(data, pack=Pack(8, columns=["input_ids", "labels"]))
    with pytest.raises(OptionError, match="dataset 'a' has pack: pass it to combine"):
        combine({"a": packed.dataset})


def test_a_state_of_another_packing_is_refused(data: str) -> None:
    state = through_json(make(data).state_dict())
    with pytest.raises(CheckpointMismatchError, match="pack: input_ids, labels into 16 tokens"):
        make(data, pack=PACK.replace(length=32)).load_state_dict(state)


def test_a_description_says_what_is_packed(data: str) -> None:
    text = " ".join(str(make(data).dataset.describe()).split())
    assert "packed input_ids, labels into 16 tokens by best_fit" in text
    assert "documents 60; sequences are counted as they are packed" in text
    assert "shuffle off" in text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"pack": Pack(8, columns=["input_id"])},
            ColumnNotFoundError,
            "did you mean 'input_ids'",
        ),
        ({"pack": Pack(8, columns=["labels"]), "columns": ["input_ids"]}, ColumnNotFoundError, "no column 'labels'"),
        ({"pack": Pack(8, pad={"label": 0})}, OptionError, r"Pack: pad names 'label': expected .*'labels'"),
        ({"pack": Pack(8, pad={"labels": 0.5})}, OptionError, r"Pack: pad={'labels': 0.5}: .* fits int64"),
        ({"pack": Pack(8, pad=2**31)}, OptionError, "Pack: pad={'input_ids': 2147483648}: .* fits int32"),
        ({"output_format": "arrow"}, OptionError, "Leave out output_format"),
        ({"lists": "padded"}, OptionError, "Leave out lists"),
        ({"even": "drop"}, CountsRequiredError, "steps_per_epoch=n"),
        ({"last_batch": "wrap"}, CountsRequiredError, "even='sync'"),
        ({"canonical_ranks": 2}, CountsRequiredError, "even='sync'"),
        ({"last_batch": "pad", "valid_key": "cu_seqlens"}, OptionError, "a key that pack adds"),
    ],
    ids=str,
)
def test_what_cannot_work_is_an_error_at_construction(
    data: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(data, **options)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The documents beside columns of other types and lengths, one of which has a null."""
    path = Path(write_documents(tmp_path_factory.mktemp("mixed"), LENGTHS, files=1))
    table = pq.read_table(path / "0.parquet")
    rows, scores = range(len(table)), [None, *range(len(LENGTHS) - 1)]
    nested = pa.StructArray.from_arrays([table["labels"].combine_chunks(), pa.array(scores)], ["ids", "score"])
    others = {"url": ["a"] * len(table), "score": scores, "spans": [[row] for row in rows], "nested": nested}
    for name, values in others.items():
        table = table.append_column(name, pa.array(values) if isinstance(values, list) else values)
    pq.write_table(table, path / "0.parquet", row_group_size=7)
    return str(path)


@pytest.mark.parametrize("method", ["best_fit", "wrap"])
@pytest.mark.parametrize("transform", [None, lambda batch: batch], ids=["read", "transformed"])
def test_columns_that_are_not_packed_are_left_out(mixed: str, method: Any, transform: Any) -> None:
    pack, columns = Pack(LENGTH, method=method), ["labels", "input_ids"]
    options = {"transform": transform, "count_rows": method == "wrap"}
    found = make(mixed, pack=pack.replace(columns=columns), **options)
    given = make(mixed, pack=pack, columns=columns, **options)
    assert batches(found) == batches(given)
    assert list(next(iter(found)))[:2] == columns
    read = found.dataset._source.scan.schema.names
    assert sorted(read) == sorted(columns) if transform is None else len(read) == 6


def test_a_field_of_a_struct_is_packed_by_its_name(mixed: str) -> None:
    tokens = sorted(-token for each in documents(LENGTHS) for token in each)
    for columns in (None, ["input_ids", "nested"]):
        found = make(mixed, pack=Pack(LENGTH, columns=["nested.ids"]), columns=columns)
        assert sorted(token for b in found for token in b["nested.ids"][b["document_ids"] >= 0].tolist()) == tokens


def test_columns_of_combined_documents_that_are_not_packed_are_left_out(data: str) -> None:
    parts = [StructuredDataset.create_dataloader(data)[1] for _ in range(2)]
    some, every = (
        batches(combine(parts, pack=pack, batches="splits", num_ranks=1, rank=0, num_workers=0))
        for pack in (Pack(LENGTH, columns=["labels"]), LENGTH)
    )
    assert [{name: item for name, item in batch.items() if name != "input_ids"} for batch in every] == some


def test_all_columns_must_be_lists_unless_some_are_named(mixed: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"pack=16: column 'url' is of type string") as caught:
        make(mixed, pack=16, nulls={"score": "drop"})
    (remedy,) = caught.value.remedies
    assert remedy.given == {"pack": Pack(16, columns=["input_ids", "labels", "spans", "nested.ids"])}


def test_one_number_pads_all_columns_but_labels(data: str) -> None:
    for batch in make(data, pack=Pack(LENGTH, pad=-1)):
        padding = batch["document_ids"] == -1
        assert (batch["input_ids"][padding] == -1).all()
        assert (batch["labels"][padding] == -100).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "wrap", "long": "drop"}, r"long='drop' with method='wrap': it cuts documents .* Use pack="),
        ({"method": "wrap", "pad": -100}, r"pad=-100 with method='wrap': no sequence is padded. Use pack="),
        ({"method": "first_fit"}, r"method='first_fit': expected one of 'best_fit', 'wrap'"),
        ({"pad": "x"}, r"pad='x': expected a number, or a dict of column -> number"),
        ({"pad": {"ids": None}}, r"pad=\{'ids': None\}: expected a number"),
        ({"columns": "ids"}, r"columns='ids': expected a list of names"),
        ({"columns": []}, r"columns=\(\): expected a list of at least one name"),
        ({"length": 0}, "length=0: expected a whole number of at least 1"),
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_not_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"Pack: {message}"):
        Pack(**{"length": 8, **fields})


def test_only_lists_of_numbers_are_packed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UnsupportedTypeError, match="what is packed is lists of numbers"):
        make(str(tmp_path), pack=Pack(8, columns=["text"]))
