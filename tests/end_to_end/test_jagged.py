"""`jagged=`: columns of lists as one entry, in the layout of TorchRec's KeyedJaggedTensor."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import Buckets, StructuredDataset, combine
from torch_dataloader_utils.errors import NullValueError, OptionError

A = [[1, 2], None, [3], [], [4, 5, 6]] * 5
B = [[], [10], None, [20, 30], [40]] * 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = pa.table(
        {
            "id": range(25),
            "a": pa.array(A, pa.list_(pa.int64())),
            "dense": pa.array([0.5] * 25, pa.float32()),
            "b": pa.array(B, pa.large_list(pa.int64())),
            "c": pa.array([[1.0]] * 25, pa.list_(pa.float32())),
            "holes": pa.array([[1, None]] * 25, pa.list_(pa.int64())),
        }
    )
    path = tmp_path_factory.mktemp("lists") / "a.parquet"
    pq.write_table(table, path, row_group_size=4)
    return str(path)


def make(data: str, **options: Any) -> tuple[Any, Any]:
    given = {
        "columns": ["id", "a", "dense", "b"],
        "jagged": {"sparse": ["b", "a"]},
        "num_ranks": 1,
        "rank": 0,
        **options,
    }
    return StructuredDataset.create_dataloader(data, **given)


def lists_of(entry: dict[str, Any]) -> dict[str, list[list[int]]]:
    """The lists of each key, read as TorchRec reads them: key by key, row by row."""
    values, lengths = entry["values"].tolist(), entry["lengths"].tolist()
    rows, at, found = len(lengths) // len(entry["keys"]), 0, {}
    for number, key in enumerate(entry["keys"]):
        found[key] = []
        for length in lengths[number * rows : (number + 1) * rows]:
            found[key].append(values[at : at + length])
            at += length
    assert at == len(values)
    return found


@pytest.mark.parametrize("worker", [{"num_workers": 0}, {}, {"num_workers": 2, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_lists_are_joined_key_by_key(data: str, worker: dict[str, Any], shuffle: bool, output: str) -> None:
    loader, dataset = make(data, batch_size=7, shuffle=shuffle, output_format=output, **worker)
    ids = []
    for batch in loader:
        assert list(batch) == ["id", "sparse", "dense"]
        sparse = batch["sparse"]
        assert sparse["keys"] == ["b", "a"]
        assert isinstance(sparse["values"], torch.Tensor if output == "torch" else np.ndarray)
        assert str(sparse["lengths"].dtype).endswith("int32")
        rows = batch["id"].tolist()
        assert lists_of(sparse) == {"b": [B[row] or [] for row in rows], "a": [A[row] or [] for row in rows]}
        ids += rows
    assert sorted(ids) == list(range(25))
    dataset.close()


def test_torchrec_takes_the_entry(data: str) -> None:
    """With torchrec and fbgemm-gpu-cpu 1.8.0, whose library fits torch 2.13; they are not part of any extra."""
    torchrec = pytest.importorskip("torchrec")
    loader, _ = make(data, batch_size=7, num_workers=0)
    for batch in loader:
        features = torchrec.KeyedJaggedTensor(**batch["sparse"]).to_dict()
        for place, row in enumerate(batch["id"].tolist()):
            for key, lists in (("a", A), ("b", B)):
                assert features[key].to_dense()[place].tolist() == (lists[row] or [])


@settings(max_examples=30)
@given(size=st.integers(1, 30), groups=st.integers(1, 25), skipped=st.integers(0, 24))
def test_any_batch_size_and_resume(
    tmp_path_factory: pytest.TempPathFactory, size: int, groups: int, skipped: int
) -> None:
    path = str(tmp_path_factory.mktemp("lists") / "a.parquet")
    pq.write_table(pa.table({"id": range(25), "a": A, "b": B}), path, row_group_size=groups)
    loader, dataset = make(path, columns=None, batch_size=size, num_workers=0)
    dataset.skip_steps(0, skipped // size)
    rows = range(skipped // size * size, 25)
    found = [lists_of(batch["sparse"]) for batch in loader]
    assert sum((each["a"] for each in found), []) == [A[row] or [] for row in rows]
    assert sum((each["b"] for each in found), []) == [B[row] or [] for row in rows]


def test_the_description_shows_the_entry(data: str) -> None:
    _, dataset = make(data)
    assert "sparse  int64    values [*], lengths [2 * B]: lists of b, a" in str(dataset.describe())


def test_datasets_of_a_combination_are_joined_alike(data: str) -> None:
    loader = combine([make(data)[1], make(data)[1]], batch_size=50)
    (batch,) = loader
    assert list(batch) == ["id", "sparse", "dense"]
    rows = batch["id"].tolist()
    assert lists_of(batch["sparse"])["a"] == [A[row] or [] for row in rows]
    with pytest.raises(OptionError, match="'sparse'"):
        combine([make(data)[1], make(data, jagged={"sparse": ["a", "b"]})[1]])


def test_a_null_in_a_list_is_still_an_error(data: str) -> None:
    loader, _ = make(data, columns=["holes"], jagged={"x": ["holes"]})
    with pytest.raises(NullValueError, match="holes"):
        list(loader)


@pytest.mark.parametrize("nulls", ["drop", {"a": "drop"}])
def test_rows_with_null_lists_are_left_out_on_request(data: str, nulls: Any) -> None:
    assert None in A
    kept = [row for row in range(25) if A[row] is not None and (nulls != "drop" or B[row] is not None)]
    for columns in (["id", "a", "b"], ["id", "a"]):
        loader, _ = make(data, columns=columns, jagged={"x": columns[1:]}, nulls=nulls, batch_size=25)
        (batch,) = loader
        rows = kept if len(columns) == 3 else [row for row in range(25) if A[row] is not None]
        assert batch["id"].tolist() == rows
        assert lists_of(batch["x"])["a"] == [A[row] for row in rows]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jagged": {"x": ["a", "nothing"]}}, "names 'nothing': expected columns of lists"),
        ({"jagged": {"x": ["dense"]}}, "names 'dense': expected columns of lists"),
        ({"jagged": {"x": ["id"]}, "columns": ["id"]}, "but none is read .see columns=."),
        ({"jagged": {"x": ["a", "a"]}}, "a second time"),
        ({"jagged": {"x": ["a"], "y": ["a"]}}, "a second time"),
        ({"jagged": {"x": []}}, "at least one column"),
        ({"jagged": {"x": ["a", "c"]}, "columns": ["a", "c"]}, "of one dtype"),
        ({"jagged": {"id": ["a", "b"]}}, "'id' would occur twice"),
        ({"jagged": {"x": ["a"]}, "nulls": {"a": "mask"}}, "without a mask"),
    ],
)
def test_what_cannot_be_joined(data: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(data, **options)


def test_floats_can_be_joined(data: str, tmp_path: Path) -> None:
    loader, _ = make(data, columns=["c"], jagged={"weights": ["c"]}, batch_size=25)
    (batch,) = loader
    assert batch["weights"]["values"].dtype == torch.float32


def test_the_length_of_a_joined_list_cuts_batches(data: str) -> None:
    budget = {"batch_tokens": Buckets(6, by="a")}
    batches = list(make(data, **budget)[0])
    assert sorted(row for batch in batches for row in batch["id"].tolist()) == list(range(25))
    for batch in batches:
        lists = lists_of(batch["sparse"])
        assert max(map(len, lists["a"])) * len(lists["a"]) <= 6
        assert lists["a"] == [A[row] or [] for row in batch["id"].tolist()]
    assert {len(batch["id"]) for batch in batches} >= {2, 6}
    with pytest.raises(OptionError, match=r"several columns of lists, \['b', 'a'\]\. One of \['id', 'b', 'a'\]"):
        make(data, batch_tokens=6)
    alone, _ = make(data, batch_tokens=6, jagged={"sparse": ["a"]}, columns=["id", "a"])
    assert [batch["id"].tolist() for batch in alone] == [batch["id"].tolist() for batch in batches]
