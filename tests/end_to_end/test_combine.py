"""`combine`: files and map-style datasets in one epoch, by all policies, drivers and formats; and what it refuses."""

import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.end_to_end.sharded import Broken, Fetched, Kinds, Plain, Utterances, epoch_of, ids, structured, write
from torch_dataloader_utils import Codes, DataLoaderUtilsError, Rotate, Strided, StructuredDataset, combine
from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    EmptyDatasetError,
    OptionError,
    SchemaMismatchError,
    UnknownOptionError,
    UnsupportedTypeError,
)


@pytest.fixture
def parts(tmp_path: Path) -> list[Any]:
    """60 + 40 rows of files and 24 samples."""
    return [
        structured(write(tmp_path / "a", 0, 60)),
        structured(write(tmp_path / "b", 60, 40), batch_size=3, num_workers=0, num_ranks=7, rank=6),
        Utterances(24, first=100),
    ]


ROTATE = {"batches": "splits", "sharding": Rotate(8)}

POLICIES = [
    {},
    {"sharding": "contiguous"},
    {"sharding": "rotate"},
    {"sharding": "strided"},
    {"sharding": Strided("batch")},
    {"sharding": Strided("split_batch"), "batch_size": 12},
    {"sharding": "auto"},
]


@pytest.mark.parametrize("options", POLICIES, ids=str)
@pytest.mark.parametrize("even", ["none", "drop", "pad"])
def test_every_row_once_over_the_ranks(parts: list[Any], options: dict[str, Any], even: str) -> None:
    options = {"batches": "splits", "batch_size": 3, "shuffle": True, "split_rows": 10, "num_workers": 2, **options}
    found = epoch_of(parts, 4, 1, even=even, **options)
    rows = sorted(row for rank in found for row in rank)
    if even == "drop":
        assert len({len(rank) for rank in found}) == 1
        assert len(set(rows)) == len(rows) == 124 - 124 % 12
    else:
        assert rows == list(range(124))


@pytest.mark.parametrize("shuffle", [False, True])
def test_total_shards_over_files_and_given_shards(parts: list[Any], shuffle: bool) -> None:
    """One round of 8 shards on 4 ranks takes two epochs; the dataset's own shards are rotated as the files' are."""
    options = {**ROTATE, "shuffle": shuffle, "split_rows": 10, "batch_size": 4}
    epochs = [epoch_of(parts, 4, epoch, **options) for epoch in range(2)]
    assert sorted(row for epoch in epochs for rank in epoch for row in rank) == list(range(124))
    for epoch, ranks in enumerate(epochs):
        for rank, rows in enumerate(ranks):
            shard = (epoch * 4 + rank) % 8
            assert sorted(row - 100 for row in rows if row >= 100) == list(range(shard * 3, shard * 3 + 3))


def test_splits_are_mixed_in_proportion(parts: list[Any]) -> None:
    """Every beginning of the epoch: never more than a split of any dataset away from its share."""
    (rows,) = epoch_of(parts[:2], 1, split_rows=10, batch_size=5, batches="splits")
    for end in range(0, 101, 10):
        assert abs(sum(row < 60 for row in rows[:end]) - 0.6 * end) <= 10
    (rows,) = epoch_of(parts[:2], 1, split_rows=10, batch_size=5, weights=[1, 1], batches="splits")
    assert sum(row < 60 for row in rows[:60]) == 30
    assert [row < 60 for row in rows[80:]] == [True] * 20  # the other one has ended


def test_a_combination_of_one_delivers_what_its_loader_delivers(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0, 60)
    options = {"shuffle": True, "split_rows": 10, "batch_size": 7, "num_ranks": 2, "rank": 1, "num_workers": 3}
    alone, dataset = StructuredDataset.create_dataloader(folder, **options)
    combined = combine([dataset], **options)
    assert ids(combined) == ids(alone)


def test_one_dataset_twice_comes_twice_in_two_orders(tmp_path: Path) -> None:
    """The parts' files have one name: filters tell them apart, and so does the order."""
    folder = write(tmp_path / "a", 0, 60)
    low, high = structured(folder, filters=[("id", "<", 20)]), structured(folder, filters=[("id", ">=", 20)])
    assert sorted(epoch_of_unknown([low, high])) == list(range(60))
    (rows,) = epoch_of([structured(folder), structured(folder)], 1, shuffle=True, split_rows=10, batch_size=10)
    assert sorted(rows) == sorted([*range(60), *range(60)])


def epoch_of_unknown(parts: list[Any]) -> list[int]:
    loader = combine(parts, batch_size=7, batches="splits")
    with pytest.raises(TypeError, match="known only after reading"):
        len(loader)
    return ids(loader)


def test_counted_filters_stay_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0, 60)
    counted = [
        structured(folder, filters=[("id", "in", [1, 5, 33])], count_rows=True),
        structured(folder, filters=[("id", ">=", 55)], count_rows=True),
    ]
    found = epoch_of(counted, 2, batch_size=2, even="drop")
    assert [len(rank) for rank in found] == [4, 4]
    assert {row for rank in found for row in rank} == {1, 5, 33, *range(55, 60)}


def test_ranks_without_rows_are_told_that_each_dataset_is_shared_by_itself(tmp_path: Path) -> None:
    folders = [str(write(tmp_path / name, 0, 20)) for name in "abc"]
    dataset = combine(folders, num_ranks=3, rank=0, batches="splits").dataset
    (advice,) = dataset.describe().warnings
    assert "each of the 3 datasets is shared by itself, and has at most 2 splits" in advice.problem


def test_steps_per_epoch_and_wrap(parts: list[Any]) -> None:
    options = {"batches": "splits", "split_rows": 10}
    loader = combine(parts, num_ranks=4, rank=1, batch_size=5, steps_per_epoch=30, shuffle=True, **options)
    batches = list(loader)
    assert len(batches) == len(loader) == 30
    own = [row for batch in batches for row in batch["id"][batch["valid"]].tolist()]
    assert len(set(own)) == len(own) < 150
    assert set(ids(batches)) == set(own)
    found = epoch_of(parts, 4, batch_size=9, last_batch="wrap", **options)
    assert sorted(row for rank in found for row in rank) == list(range(124))


# ---------------------------------------------------------------------------------------------------------- drivers


@pytest.mark.usefixtures("no_leaks")
def test_threads_processes_and_the_caller_deliver_the_same(parts: list[Any]) -> None:
    options = {**ROTATE, "shuffle": True, "split_rows": 10, "batch_size": 4}
    found = [
        epoch_of(parts, 4, 1, **options, **worker)
        for worker in ({"num_workers": 0}, {"num_workers": None}, {"num_workers": 1, "worker_mode": "processes"})
    ]
    assert found[0] == found[1] == found[2]
    two = [epoch_of(parts, 4, 1, num_workers=2, worker_mode=mode, **options) for mode in ("threads", "processes")]
    assert two[0] == two[1]
    assert [sorted(rank) for rank in two[0]] == [sorted(rank) for rank in found[0]]


@pytest.mark.usefixtures("no_leaks")
def test_processes_go_on_to_the_next_epoch(parts: list[Any]) -> None:
    loader = combine(parts, num_ranks=4, rank=1, num_workers=2, worker_mode="processes", **ROTATE)
    two = [sorted(ids(loader)) for _ in range(2)]
    assert not set(two[0]) & set(two[1])
    loader.close()


def test_a_dataset_pickles_with_its_parts(parts: list[Any]) -> None:
    loader = combine(parts, num_ranks=4, rank=2, shuffle=True, split_rows=10)
    assert ids(pickle.loads(pickle.dumps(loader.dataset))) == ids(loader)


def test_workers_of_a_foreign_loader_share_the_rank_s_rows(parts: list[Any]) -> None:
    parts = [*parts[:2], Utterances(24, 8, 1, first=100)]
    dataset = combine(parts, batch_size=4, split_rows=10, batches="splits").dataset
    foreign = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(ids(foreign)) == list(range(124))


def test_each_shard_is_made_once_in_each_reader() -> None:
    class Counting(Utterances):
        made: list[int] = []  # noqa: RUF012 - a counter

        def shard(self, shard_idx: int) -> Dataset:
            self.made.append(shard_idx)
            return super().shard(shard_idx)

    loader = combine([Counting(80)], num_ranks=4, rank=1, sharding=Rotate(8), num_workers=0, batch_size=3)
    assert Counting.made == list(range(8))  # their lengths
    Counting.made.clear()
    loader.set_epoch(1)
    assert ids(loader) == list(range(50, 60))
    assert Counting.made == [5]


def test_samples_may_be_fetched_many_at_a_time() -> None:
    loader = combine([Fetched(10)], batch_size=4)
    assert ids(loader) == [-row for row in range(10)]


def test_samples_with_names_instead_of_numbers_are_an_error_that_says_so() -> None:
    class ByName(Plain):
        def __getitem__(self, name: str) -> dict[str, Any]:  # type: ignore[override]
            return {"a": {"id": 1}, "b": {"id": 2}}[name]

    with pytest.raises(
        OptionError, match=r"dataset 'x' \(ByName\) has no sample 0: expected samples numbered from 0 to"
    ):
        combine({"x": ByName(2)})


def test_a_hugging_face_dataset_is_a_plain_one() -> None:
    """Its `shard(num_shards, index)` is not the `shard(i)` of datasets that make their own shards."""
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    samples = [Utterances(24)[row] for row in range(24)]
    hf = datasets.Dataset.from_list([{**sample, "speech": sample["speech"].tolist()} for sample in samples])
    hf = hf.cast_column("speech", datasets.Sequence(datasets.Value("float32"))).with_format("torch")
    assert sorted(ids(combine([hf], batch_size=5, shuffle=True, split_rows=4))) == list(range(24))
    found = epoch_of([hf, Plain(10, first=24)], 2, batch_size=5, sharding="contiguous")
    assert sorted(row for rank in found for row in rank) == list(range(34))


# ----------------------------------------------------------------------------------------------------------- values


def test_values_of_samples() -> None:
    batches = list(combine([Kinds()], batch_size=4, split_rows=3))
    whole = {key: [batch[key] for batch in batches] for key in batches[0]}

    def joined(key: str) -> torch.Tensor:
        return torch.cat(whole[key])

    expected = {
        "int": torch.arange(10),
        "float": torch.arange(10, dtype=torch.float64) / 2,
        "flag": torch.arange(10) % 2 == 0,
        "scalar": torch.arange(10, dtype=torch.float32),
        "tensor": torch.arange(10, dtype=torch.int16),
        "learned": torch.arange(10, dtype=torch.float32)[:, None].expand(10, 2),
        "image": torch.arange(10, dtype=torch.uint8)[:, None, None].expand(10, 2, 3),
    }
    for key, values in expected.items():
        torch.testing.assert_close(joined(key), values, rtol=0, atol=0)
    for key, row in {
        "wave": lambda i: torch.arange(i, dtype=torch.int32),
        "frames": lambda i: torch.full((i % 3 + 1, 2), float(i)),
        "tokens": lambda i: torch.arange(i % 3),
    }.items():
        rows = [part for batch in whole[key] for part in batch["values"].split(batch["offsets"].diff().tolist())]
        for i, found in enumerate(rows):
            torch.testing.assert_close(found, row(i), rtol=0, atol=0)
    assert sum(whole["word"], []) == [None if i == 3 else f"é{i}" for i in range(10)]
    assert sum(whole["blob"], []) == [bytes([i]) for i in range(10)]
    assert sum(whole["meta"], []) == [{"speaker": i, "tags": ["a"] * (i % 2)} for i in range(10)]


def test_values_of_samples_as_arrow_and_as_lists() -> None:
    arrow = pa.Table.from_batches(list(combine([Kinds()], batch_size=4, output_format="arrow")))
    dataset = combine([Kinds()]).dataset
    assert arrow.schema == dataset.schema
    wanted = [Kinds()[i] for i in range(10)]
    lists = next(iter(combine([Kinds()], batch_size=10, output_format="dict")))
    for key, values in lists.items():
        plain = [value.tolist() if hasattr(value, "tolist") else value for value in (row[key] for row in wanted)]
        assert values == arrow[key].to_pylist() == plain


def test_files_and_samples_as_arrow(parts: list[Any], tmp_path: Path) -> None:
    files = structured(write(tmp_path / "c", 0, 20), output_format="arrow")
    batches = list(combine([files, Utterances(24, 1, 1, first=100)], batch_size=9, output_format="arrow", even="pad"))
    table = pa.Table.from_batches(batches).filter(pa.compute.field("valid"))
    assert sorted(table["id"].to_pylist()) == [*range(20), *range(100, 124)]
    with pytest.raises(OptionError, match="dataset 0, which was made for torch or numpy: use the same"):
        combine([parts[0]], output_format="arrow")


def test_masks_of_padding_may_not_be_a_key(parts: list[Any]) -> None:
    with pytest.raises(OptionError, match="valid_key='text'"):
        combine([parts[2]], even="pad", valid_key="text")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"id": 7}, r"a sample has the keys \['id'\], but the first one has \['id', 'speech', 'text'\]"),
        ({"id": 7.5, "speech": np.ones(1, np.float32), "text": ""}, "'id' holds float64 of shape .*'dtype': 'int64'"),
        ({"id": 7, "speech": np.ones(1), "text": ""}, "'speech' holds float64 of shape .1., .*'dtype': 'float32'"),
        ({"id": 7, "speech": np.ones((1, 1), np.float32), "text": ""}, r"'speech' holds float32 of shape \[1, 1\]"),
        ({"id": None, "speech": np.ones(1, np.float32), "text": ""}, "'id' holds NoneType"),
        ({"id": 7, "speech": np.ones(1, np.float32), "text": b""}, "'text' holds bytes, but the first samples"),
    ],
)
@pytest.mark.parametrize("workers", [0, None])
def test_later_samples_that_are_unlike_the_first(bad: Any, message: str, workers: int | None) -> None:
    loader = combine([Broken(30, bad)], num_workers=workers)
    with pytest.raises(SchemaMismatchError, match=message) as caught:
        list(loader)
    assert "while reading dataset 0 (Broken)" in caught.value.__notes__[0]


@pytest.mark.parametrize("worker", [{"num_workers": 0}, {}, {"num_workers": 1, "worker_mode": "processes"}], ids=str)
def test_errors_of_getitem_arrive(worker: dict[str, Any]) -> None:
    loader = combine([Broken(30, ZeroDivisionError("sample 7"))], **worker)
    with pytest.raises(ZeroDivisionError, match="sample 7"):
        list(loader)
    loader.close()


# ----------------------------------------------------------------------------------------------- what is refused


def test_keys_and_dtypes_must_agree(parts: list[Any], tmp_path: Path) -> None:
    more = structured(write(tmp_path / "more", 0, 4, extra=[1.5, 2.5]))
    with pytest.raises(OptionError, match=r"dataset 0 .*\['id', 'speech', 'text'\], dataset 1 .*'extra'\]"):
        combine([parts[0], more])
    with pytest.raises(OptionError, match=r"dataset 0 \(Utterances\) has .* dataset 1 .*more.* has .*'extra'"):
        combine([parts[2], more])
    wide = structured(write(tmp_path / "wide", 0, 4), dtypes={"id": "float32"})
    with pytest.raises(OptionError, match=r"key 'id' has dtype int64 in dataset 0.*but dtype float32 in dataset 1"):
        combine([parts[0], wide])
    padded = structured(write(tmp_path / "padded", 0, 4), lists="padded")
    with pytest.raises(OptionError, match=r"key 'speech' has kind ragged.* in .*, but kind padded"):
        combine([parts[2], padded])


def test_dtypes_asked_for_by_column_and_by_type_agree(tmp_path: Path) -> None:
    by_column = structured(write(tmp_path / "a", 0, 4), columns=["id"], dtypes={"id": "float32"})
    by_type = structured(write(tmp_path / "b", 4, 4), columns=["id"], dtypes={"int64": "float32"})
    loader = combine([by_column, by_type], batch_size=8)
    (batch,) = list(loader)
    assert batch["id"].dtype == torch.float32
    assert sorted(batch["id"].tolist()) == list(range(8))


def test_codes_must_mean_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 0, 6)
    one, other = structured(folder, strings="codes"), structured(write(tmp_path / "b", 6, 6), strings="codes")
    with pytest.raises(OptionError, match="codes of the key 'text' have other meanings"):
        combine([one, other])
    words = {"text": [f"row {row}" for row in range(12)]}
    alike = [structured(path, strings=Codes(words)) for path in (folder, tmp_path / "b")]
    loader = combine(alike, batch_size=100)
    (batch,) = loader
    assert [loader.vocabulary("text")[code] for code in batch["text"]] == [f"row {row}" for row in batch["id"]]


@pytest.mark.parametrize(
    ("parts", "options", "error", "message"),
    [
        ([], {}, OptionError, "at least one dataset"),
        (Plain(3), {}, OptionError, "expected a list of at least one dataset"),
        ({1: Plain(3)}, {}, OptionError, r"names \[1\]: expected strings"),
        ([3], {}, OptionError, "dataset 0 is int: expected a source such as a path, a dict with one"),
        ([Plain(3)], {"weights": [1, 2]}, OptionError, r"weights=\[1, 2\] for 1 dataset"),
        ([Plain(3)], {"weights": [0]}, OptionError, "a positive number for each"),
        ([Plain(3)], {"columns": ["id"]}, OptionError, "columns=.* would define what parts read"),
        ([Plain(3)], {"nulls": "mask"}, OptionError, "nulls=.* would define what parts read"),
        ([Plain(3)], {"batch_sized": 3}, UnknownOptionError, "did you mean 'batch_size'"),
        ([Plain(0)], {}, EmptyDatasetError, r"dataset 0 \(Plain\) has no samples"),
        ([[(1, 2), (3, 4)]], {}, UnsupportedTypeError, "a sample is tuple: expected a dict"),
        ([[{"x": 1}, {"y": 1}]], {}, SchemaMismatchError, r"a sample has the keys \['y'\]"),
        ([[{"x": 1}, {"x": 1.0}]], {}, SchemaMismatchError, "'x' holds float64 of shape"),
        ([[{"x": threading.Lock()}]], {}, UnsupportedTypeError, "the key 'x' holds .'lock'.: expected numbers"),
        ([[{"x": 1j}]], {}, UnsupportedTypeError, "the key 'x' holds .'complex'."),
    ],
)
def test_what_cannot_be_combined(parts: Any, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        combine(parts, **options)
    assert isinstance(caught.value, DataLoaderUtilsError)


def test_strategies_that_make_shards_and_codes_of_samples(parts: list[Any]) -> None:
    class Own:
        def generate(self, files: Any, num_workers: int, epoch: int) -> Any:
            raise AssertionError

    with pytest.raises(OptionError, match="split_strategy that generates shards with combine"):
        combine(parts, split_strategy=Own())
    with pytest.raises(ColumnNotFoundError, match="no codes"):
        combine([parts[2]]).vocabulary("text")


def test_processes_need_a_dataset_that_pickles() -> None:
    class Local(Plain):
        pass

    with pytest.raises(OptionError, match=r"dataset 0 \(Local\) cannot be pickled .*worker_mode='threads'"):
        combine([Local(4)], worker_mode="processes", num_workers=1)
    assert ids(combine([Local(4)])) == [0, 1, 2, 3]


def test_the_signature_begins_with_how_datasets_are_mixed() -> None:
    assert list(inspect.signature(combine).parameters)[:3] == ["datasets", "weights", "stop"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_split_bytes_cuts_samples_as_if_each_had_64_kib(shuffle: bool) -> None:
    for options, splits in (({}, 1), ({"split_bytes": "2MiB"}, 4), ({"split_rows": 16}, 7)):
        dataset = combine([Plain(100)], num_ranks=1, rank=0, shuffle=shuffle, **options).dataset
        assert len(dataset._source.splits) == splits
