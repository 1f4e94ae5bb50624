"""`lists=Padded(...)` and `lists=` by column: the form of lists, and how padded ones are filled up."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import torch_dataloader_utils
from torch_dataloader_utils import Padded, StructuredDataset, combine
from torch_dataloader_utils.errors import OptionError, UnknownOptionError

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
    given = {"batch_size": 4, **options}
    loader, dataset = StructuredDataset.create_dataloader(data, num_ranks=1, rank=0, **given)
    try:
        return list(loader)
    finally:
        dataset.close()


@pytest.mark.parametrize("worker", [{"num_workers": 0}, {}, {"num_workers": 1, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_column_is_padded_with_its_value(data: str, worker: dict[str, Any], shuffle: bool) -> None:
    forms = {name: Padded(pad, multiple=4) for name, pad in {"*": 0, "labels": -100, "weights": 0.5}.items()}
    found = batches(data, lists=forms, shuffle=shuffle, **worker)
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
    (batch,) = batches(data, batch_size=8, dtypes={"labels": "float32"}, lists={"labels": Padded(float("nan"))})
    assert batch["labels"]["values"].dtype == torch.float32
    assert batch["labels"]["values"][1].isnan().all()


@pytest.mark.parametrize("value", [np.int64(-100), np.int8(-100), np.float32(-100)], ids=repr)
def test_the_padding_may_be_a_number_of_numpy(data: str, value: Any) -> None:
    plain, other = (batches(data, lists={"ids": Padded(each, multiple=8)}) for each in (-100, value))
    for one, two in zip(plain, other, strict=True):
        assert one["ids"]["values"].dtype == two["ids"]["values"].dtype
        assert (one["ids"]["values"] == two["ids"]["values"]).all()


def test_lists_of_only_empty_lists_have_no_width(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([[], []], pa.list_(pa.int8()))}), path)
    (batch,) = batches(path, lists=Padded(multiple=8))
    assert batch["x"]["values"].shape == (2, 0)


def test_columns_have_forms_of_their_own(data: str) -> None:
    """The column's name counts before patterns, and these before types."""
    forms = {"labels": "nested", "i*": {"kind": "padded", "multiple": 4}, "float32": Padded(0.5), "int64": "padded"}
    (batch,) = batches(data, batch_size=8, lists=forms)
    assert batch["ids"]["values"].shape == (6, 8)
    assert [row.tolist() for row in batch["labels"].unbind()] == [row or [] for row in IDS]
    assert batch["weights"]["values"][1].tolist() == [0.5] * 5
    (rest,) = batches(data, batch_size=8, lists={"ids": "padded"})
    assert rest["labels"].keys() == rest["weights"].keys() == {"values", "offsets"}


def test_one_value_is_for_all_columns_and_a_dict_for_those_it_names(data: str) -> None:
    (every,) = batches(data, batch_size=8, lists=Padded(-1))
    assert all((batch["values"][1] == -1).all() for batch in every.values())
    forms = ("padded", Padded(), {"*": {"kind": "padded"}})
    assert len({str(batches(data, lists=form)) for form in forms}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lists": {"label": "padded"}}, r"lists names 'label' \(did you mean 'labels'\?\): expected one of .*'ids'"),
        (
            {"lists": {"*": "padded", "ids": Padded(1)}, "jagged": {"x": ["ids"]}},
            r"lists names 'ids' .*: expected .* jagged does not join. Use lists={'\*': 'padded'}",
        ),
        (
            {"lists": {"ids": Padded(0.5)}},
            r"Padded\(0.5\) for column 'ids': expected a number that fits int32. Use",
        ),
        ({"lists": Padded(2**31, multiple=8)}, r"fits int32. Use lists={'\*': .*, 'ids': Padded\(0, multiple=8\)}"),
        ({"lists": Padded(-1), "dtypes": {"ids": "bool"}}, "fits bool"),
        (
            {"lists": {"value": 0, "multiple": 8}},
            r"lists\['value'\]=0: expected 'ragged', 'nested', 'padded' or",
        ),
        ({"lists": "rectangles"}, r"lists='rectangles': expected 'ragged', 'nested', 'padded' or Padded\(...\), or"),
        ({"lists": {"ids": {"kind": "padded", "value": "x"}}}, "Padded: value='x': expected a number"),
    ],
)
def test_padding_that_cannot_be(data: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        batches(data, **options)


@pytest.mark.parametrize("value", ["0", [0], {"ids": 0}], ids=repr)
def test_what_pads_is_one_number(value: Any) -> None:
    with pytest.raises(OptionError, match=r"Padded: value=.*: expected a number"):
        Padded(value)


@pytest.mark.parametrize("multiple", [0, 1.5, "8", True, 2**21], ids=repr)
def test_a_multiple_is_a_whole_number(multiple: Any) -> None:
    with pytest.raises(OptionError, match=r"Padded: multiple=.*: expected a whole number of at least 1"):
        Padded(multiple=multiple)


def test_joined_lists_are_not_padded(data: str) -> None:
    """What pads the others need not fit them."""
    (batch,) = batches(data, batch_size=8, lists=Padded(0.5), jagged={"x": ["ids"], "y": ["labels"]})
    assert batch["x"]["keys"] == ["ids"]
    assert batch["weights"]["values"][1].tolist() == [0.5] * 5


def test_the_call_that_replaces_the_old_keywords_pads_as_they_did(data: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        batches(data, lists="padded", pad_values={"labels": -100, "weights": 0.5}, pad_multiple=4)
    _, _, text = str(caught.value).partition(" are now ")
    forms = "'*': Padded(multiple=4), 'labels': Padded(-100, multiple=4), 'weights': Padded(0.5, multiple=4)"
    assert text == f"lists={{{forms}}}"
    (batch,) = batches(data, batch_size=8, **eval(f"dict({text})", vars(torch_dataloader_utils)))
    assert [batch[key]["values"][2].tolist()[:2] for key in ("ids", "labels", "weights")] == [
        [4, 0],
        [4, -100],
        [4, 0.5],
    ]
    assert {batch[key]["values"].shape for key in batch} == {(6, 8)}


def test_datasets_of_a_combination_are_padded_alike(data: str) -> None:
    zeros, ones = (StructuredDataset.create_dataloader(data, lists={"ids": Padded(value)})[1] for value in (0, 1))
    with pytest.raises(OptionError, match=r"the key 'ids' has padding None in .* but padding 1, to multiples of 1 in"):
        combine([zeros, ones])
    loader = combine([ones, ones], batch_size=12)
    (batch,) = loader
    assert batch["ids"]["values"][1].tolist() == [1] * 5


def test_labels_are_padded_with_what_losses_leave_out_unless_a_value_says_otherwise(data: str) -> None:
    ids = [[1, 2, 3], [], [4], []]
    (batch, _) = batches(data, lists="padded")
    assert [row[:2] for row in batch["labels"]["values"].tolist()] == [[1, 2], [-100, -100], [4, -100], [-100, -100]]
    assert batch["ids"]["values"][:, 0].tolist() == [row[0] if row else 0 for row in ids]
    (batch, _) = batches(data, lists=Padded(0))
    assert batch["labels"]["values"][1].tolist() == [0, 0, 0]
    (batch, _) = batches(data, lists="padded", dtypes={"labels": "float32"})
    assert batch["labels"]["values"][1].tolist() == [0, 0, 0]
