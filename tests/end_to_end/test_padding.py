"""`pad_values` and `pad_multiple`: how padded lists are filled up."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import StructuredDataset, combine
from torch_dataloader_utils.errors import OptionError

IDS = [[1, 2, 3], [], [4], None, [5, 6, 7, 8, 9], [10]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    lists = [row or [] for row in IDS]
    table = pa.table(
        {
            "ids": pa.array(lists, pa.list_(pa.int32())),
            "labels": pa.array(lists, pa.large_list(pa.int64())),
            "weights": pa.array(lists, pa.list_(pa.float32())),
        }
    )
    path = tmp_path_factory.mktemp("lists") / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    return str(path)


def batches(data: str, **options: Any) -> list[Any]:
    given = {"lists": "padded", "pad_values": {"labels": -100, "weights": 0.5}, "batch_size": 4, **options}
    loader, dataset = StructuredDataset.create_dataloader(data, num_ranks=1, rank=0, **given)
    try:
        return list(loader)
    finally:
        dataset.close()


@pytest.mark.parametrize("worker", [{"num_workers": 0}, {}, {"num_workers": 1, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_column_is_padded_with_its_value(data: str, worker: dict[str, Any], shuffle: bool) -> None:
    found = batches(data, shuffle=shuffle, pad_multiple=4, **worker)
    rows = []
    for batch in found:
        for key, pad in {"ids": 0, "labels": -100, "weights": 0.5}.items():
            values, lengths = batch[key]["values"], batch[key]["lengths"]
            longest = int(lengths.max())
            assert values.shape[1] == -(-longest // 4) * 4
            outside = torch.arange(values.shape[1]) >= lengths[:, None]
            assert (values[outside] == pad).all()
            assert outside.any()
        rows += [row[:n].tolist() for row, n in zip(batch["ids"]["values"], batch["ids"]["lengths"], strict=True)]
    assert sorted(rows) == sorted(row or [] for row in IDS)
    if not shuffle:
        assert [batch["labels"]["values"].dtype for batch in found] == [torch.int64] * 2
        assert found[0]["labels"]["values"].tolist()[0] == [1, 2, 3, -100]


def test_the_padding_has_the_dtype_of_its_column(data: str) -> None:
    (batch,) = batches(data, batch_size=8, dtypes={"labels": "float32"}, pad_values={"labels": float("nan")})
    assert batch["labels"]["values"].dtype == torch.float32
    assert batch["labels"]["values"][1].isnan().all()


@pytest.mark.parametrize("value", [np.int64(-100), np.int8(-100), np.float32(-100)], ids=repr)
def test_the_padding_may_be_a_number_of_numpy(data: str, value: Any) -> None:
    plain, other = (batches(data, pad_values={"ids": each}, pad_multiple=8) for each in (-100, value))
    for one, two in zip(plain, other, strict=True):
        assert one["ids"]["values"].dtype == two["ids"]["values"].dtype
        assert (one["ids"]["values"] == two["ids"]["values"]).all()


def test_lists_of_only_empty_lists_have_no_width(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([[], []], pa.list_(pa.int8()))}), path)
    (batch,) = batches(path, pad_values=None, pad_multiple=8)
    assert batch["x"]["values"].shape == (2, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pad_values": {"label": 0}},
            r"pad_values names 'label': expected one of .*'ids', 'labels', 'weights'",
        ),
        ({"jagged": {"x": ["ids"]}, "pad_values": {"ids": 1}}, r"pad_values names 'ids': expected one of .*'labels'"),
        ({"pad_values": {"ids": 0.5}}, r"pad_values=\{'ids': 0.5\}: expected a number that fits int32"),
        ({"pad_values": {"ids": 2**31}}, "expected a number that fits int32"),
        ({"lists": "ragged"}, r"pad_values=.*no lists are padded.*Use lists='padded'"),
        ({"lists": "ragged", "pad_values": None, "pad_multiple": 8}, r"pad_multiple=8, but no lists are padded"),
        ({"pad_multiple": 0}, "pad_multiple=0"),
    ],
)
def test_padding_that_cannot_be(data: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        batches(data, **options)


def test_datasets_of_a_combination_are_padded_alike(data: str) -> None:
    zeros, ones = (
        StructuredDataset.create_dataloader(data, lists="padded", pad_values={"ids": value})[1] for value in (0, 1)
    )
    with pytest.raises(OptionError, match=r"the key 'ids' has padding None in .* but padding 1, to multiples of 1 in"):
        combine([zeros, ones])
    loader, _ = combine([ones, ones], batch_size=12)
    (batch,) = loader
    assert batch["ids"]["values"][1].tolist() == [1] * 5
