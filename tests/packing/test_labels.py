"""Labels of packed documents: what is left out of a loss, labels that are made, and the keys that models take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing.helpers import LENGTH, documents, make, write_documents
from tests.resume.helpers import batches, pass_with_states
from torch_dataloader_utils import ColumnNotFoundError, OptionError, Pack, combine

LENGTHS = np.random.default_rng(1).integers(0, 24, 50).tolist()
METHODS: Any = pytest.mark.parametrize("method", ["best_fit", "wrap"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_documents(tmp_path_factory.mktemp("documents"), LENGTHS)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same tokens without labels."""
    folder = tmp_path_factory.mktemp("tokens")
    ids = pa.array(documents(LENGTHS), pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": ids}), folder / "0.parquet", row_group_size=7)
    return str(folder)


def next_token_pairs(batch: Any) -> list[tuple[int, int]]:
    """(token, label of the next place) of a batch wherever a loss of a model that shifts counts it."""
    ids, labels = batch["input_ids"][:, :-1], batch["labels"][:, 1:]
    counted = labels != -100
    return list(zip(ids[counted].tolist(), labels[counted].tolist(), strict=True))


@METHODS
@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    length=st.integers(1, 20),
    long=st.sampled_from(["split", "truncate", "drop"]),
)
def test_a_shifted_loss_sees_only_neighbours_of_one_document(
    tmp_path_factory: pytest.TempPathFactory, method: Any, lengths: list[int], length: int, long: Any
) -> None:
    path = write_documents(tmp_path_factory.mktemp("any"), [*lengths, length], files=2)
    pack = Pack(length, method=method, labels=None, **({} if method == "wrap" else {"long": long}))
    for batch in make(path, pack=pack):
        for before, label in next_token_pairs(batch):
            assert -label == before + 1  # labels are the negative tokens, which count on within a document
        counted = batch["labels"] != -100
        inside = (batch["position_ids"] > 0) & (batch["document_ids"] >= 0)
        assert torch.equal(counted, inside)


@METHODS
def test_labels_are_made_of_tokens(data: str, tokens: str, method: Any) -> None:
    given = {"shuffle": True, "count_rows": method == "wrap", "split_rows": 60}
    made = list(make(tokens, **given, pack=Pack(LENGTH, method=method, labels="input_ids")))
    assert len(made) > 3
    for batch in made:
        assert list(batch)[:2] == ["input_ids", "labels"]
        assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int64)
        inside = (batch["position_ids"] > 0) & (batch["document_ids"] >= 0)
        assert torch.equal(batch["labels"], torch.where(inside, batch["input_ids"].long(), -100))
    described = make(tokens, **given, pack=Pack(LENGTH, method=method, labels="input_ids")).dataset.describe()
    assert "labels" in [key.key for key in described.keys]


@METHODS
def test_labels_do_not_change_what_other_columns_hold(data: str, method: Any) -> None:
    def ids(pack: Pack) -> list[Any]:
        loader = make(data, pack=pack, shuffle=True, split_rows=60)
        return [batch["input_ids"].tolist() for batch in loader]

    pack = Pack(LENGTH, method=method, columns=["input_ids"])
    assert ids(pack) == ids(pack.replace(labels="input_ids")) == ids(pack.replace(keys="hf"))


def test_the_padding_of_labels_is_what_a_loss_ignores(data: str) -> None:
    for batch in make(data, pack=Pack(LENGTH, pad={"labels": -1, "input_ids": 9})):
        outside = (batch["position_ids"] == 0) | (batch["document_ids"] < 0)
        assert (batch["labels"][outside] == -1).all()
        assert (batch["input_ids"][batch["document_ids"] < 0] == 9).all()


def test_a_column_of_another_name_is_as_it_was(data: str) -> None:
    """Such as targets that are shifted already."""

    def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.rename_columns(["input_ids", "targets"])

    for batch in make(data, transform=renamed, pack=Pack(LENGTH, pad={"targets": -100})):
        real = batch["document_ids"] >= 0
        assert torch.equal(batch["targets"], torch.where(real, -batch["input_ids"].long(), -100))


def test_unsigned_labels_need_another_dtype(tmp_path: Path) -> None:
    ids = pa.array([[1, 2, 3], [4]], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"labels": ids}), tmp_path / "0.parquet")
    for pack in (Pack(4), Pack(4, method="wrap")):
        with pytest.raises(OptionError, match=r"pad=\{'labels': -100\}: .* fits uint16\. Use dtypes=") as caught:
            make(str(tmp_path), pack=pack)
        (remedy,) = caught.value.remedies
        (batch,) = make(str(tmp_path), **remedy.applied({"pack": pack}))
        assert batch["labels"].dtype == torch.int64


# ----------------------------------------------------------------------------------------------- the keys of models

HF = ["position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]


@METHODS
def test_the_keys_that_models_take(data: str, method: Any) -> None:
    pack = Pack(LENGTH, method=method)
    plain = list(make(data, pack=pack, split_rows=60))
    named = list(make(data, pack=pack.replace(keys="hf"), split_rows=60))
    assert len(plain) == len(named) > 3
    for ours, theirs in zip(plain, named, strict=True):
        assert list(theirs) == ["input_ids", "labels", *HF]
        for key in ("input_ids", "labels", "position_ids"):
            assert torch.equal(ours[key], theirs[key])
        for key in ("cu_seq_lens_q", "cu_seq_lens_k"):
            assert torch.equal(ours["cu_seqlens"], theirs[key])
        assert theirs["max_length_q"] == theirs["max_length_k"] == ours["max_seqlen"]
    described = make(data, pack=pack.replace(keys="hf")).dataset.describe()
    assert [key.key for key in described.keys] == ["input_ids", "labels", *HF]


@METHODS
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filled", [{"last_batch": "pad"}, {"steps_per_epoch": 19}], ids=str)
def test_labels_say_which_rows_are_repeats(data: str, method: Any, filled: dict[str, Any], num_workers: int) -> None:
    given = {"batch_size": 5, "split_rows": 60, "shuffle": True, "num_workers": num_workers, **filled}
    pack = Pack(LENGTH, method=method)
    masked = list(make(data, pack=pack, **given))
    named = list(make(data, pack=pack.replace(keys="hf"), **given))
    repeats = 0
    for ours, theirs in zip(masked, named, strict=True):
        assert list(theirs) == ["input_ids", "labels", *HF]
        valid = ours["valid"].reshape(len(ours["valid"]), -1)
        kept = valid if valid.any() else torch.ones_like(valid)  # the loss of no label is no number
        repeats += int((~valid).sum())
        assert torch.equal(theirs["labels"], torch.where(kept, ours["labels"], -100))
        assert torch.equal(theirs["input_ids"], ours["input_ids"])
    assert repeats


def test_a_pass_of_such_batches_resumes_at_every_step(data: str) -> None:
    given: dict[str, Any] = {"shuffle": True, "steps_per_epoch": 19, "pack": Pack(LENGTH, keys="hf")}
    whole, states = pass_with_states(make(data, **given))
    for taken, state in enumerate(states[:-1]):
        loader = make(data, **given)
        loader.load_state_dict(state)
        assert batches(loader) == whole[taken:]


def test_a_state_does_not_depend_on_labels_and_keys(data: str) -> None:
    state = make(data, pack=Pack(LENGTH)).state_dict()
    make(data, pack=Pack(LENGTH, keys="hf")).load_state_dict(state)


def test_threads_and_processes_name_them_alike(data: str) -> None:
    given: dict[str, Any] = {"num_workers": 2, "pack": Pack(LENGTH, keys="hf"), "last_batch": "pad"}
    processes = make(data, worker_mode="processes", **given)
    assert batches(processes) == batches(make(data, **given))
    processes.dataset.close()


@pytest.mark.parametrize(
    ("pack", "options", "error", "message"),
    [
        (Pack(8, labels="input_ids"), {}, OptionError, "'labels' is a column already"),
        (Pack(8, columns=["input_ids"], labels="ids"), {}, ColumnNotFoundError, "no column 'ids' to make labels of"),
        (
            Pack(8, columns=["input_ids"], keys="hf"),
            {"steps_per_epoch": 5},
            OptionError,
            r"no mask of them, so that labels have to tell.*labels='input_ids'",
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_an_error_at_construction(
    data: str, pack: Pack, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        make(data, pack=pack, **options)
    for remedy in getattr(caught.value, "remedies", ()):
        assert list(make(data, **remedy.applied({"pack": pack, **options})))


def test_a_weighted_mix_of_sequences_has_labels_and_keys_of_models(tokens: str) -> None:
    given = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 3, "tokens_per_epoch": 12 * LENGTH}
    pack = Pack(LENGTH, method="wrap", labels="input_ids")
    found = [
        list(combine([tokens, tokens], weights=[1, 2], pack=pack.replace(keys=keys), **given)) for keys in (None, "hf")
    ]
    for ours, theirs in zip(*found, strict=True):
        inside = ours["position_ids"] > 0
        assert torch.equal(ours["labels"], torch.where(inside, ours["input_ids"].long(), -100))
        assert torch.equal(ours["labels"], theirs["labels"])
        assert list(theirs) == ["input_ids", "labels", *HF]
    assert len(found[0]) == 4
