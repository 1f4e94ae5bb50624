"""`strings="codes"`, from files to batches: one vocabulary over files whose dictionaries differ."""

from __future__ import annotations

import tempfile
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

from torch_dataloader_utils import Codes, Fill, Processes, StructuredDataset
from torch_dataloader_utils.errors import ColumnNotFoundError, NullValueError, UnknownValueError

ODD = pc.bit_wise_and(pc.field("id"), 1) == 1


def write(folder: Path, files: list[list[str | None]], encode: bool = False) -> list[str | None]:
    """Files with a text `city`, as bytes `raw`, and as a field `at.city` of a struct; row groups of 4 rows."""
    at = 0
    for number, values in enumerate(files):
        city = pa.array(values, pa.string())
        table = pa.table(
            {
                "id": np.arange(at, at + len(values)),
                "city": city.dictionary_encode() if encode else city,
                "raw": city.cast(pa.binary()),
                "at": pa.StructArray.from_arrays([city], ["city"]),
            }
        )
        at += len(values)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=4)
    return [value for values in files for value in values]


CITIES = st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9), min_size=1, max_size=4)


@settings(max_examples=40)
@given(files=CITIES, encode=st.booleans(), odd=st.booleans(), data=st.data())
def test_codes_are_places_in_the_sorted_values(
    files: list[list[str | None]], encode: bool, odd: bool, data: st.DataObject
) -> None:
    workers = data.draw(st.sampled_from([None, 0, 2]))
    with tempfile.TemporaryDirectory() as name:
        rows = list(enumerate(write(Path(name), files, encode)))
        loader, dataset = StructuredDataset.create_dataloader(
            name, strings="codes", batch_size=data.draw(st.integers(1, 9)), num_workers=workers,
            filters=ODD if odd else None, count_rows=data.draw(st.booleans()), shuffle=data.draw(st.booleans()),
        )  # fmt: skip
        live = dict(rows[1::2] if odd else rows)
        wanted = sorted(set(live.values()))
        if not live:
            assert list(loader) == []
            return
        assert dataset.vocabulary("city") == dataset.vocabulary("at.city") == wanted
        assert dataset.vocabulary("raw") == [value.encode() for value in wanted]
        seen = {}
        for batch in loader:
            assert all(batch[key].dtype == torch.int64 for key in ("city", "raw", "at.city"))
            assert torch.equal(batch["city"], batch["raw"])
            assert torch.equal(batch["city"], batch["at.city"])
            seen |= dict(zip(batch["id"].tolist(), batch["city"].tolist(), strict=True))
    assert {row: wanted[code] for row, code in seen.items()} == live


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write(tmp_path, [["Oslo", "Rome", None, "Rome", "Bern"], ["Lima", "Oslo"]])
    return str(tmp_path)


def one_batch(folder: str, **options: Any) -> dict[str, Any]:
    """All rows of the columns `id` and `city` as one batch."""
    options = {"columns": ["id", "city"], "batch_size": 100, "strings": {"city": "codes"}, **options}
    loader, _ = StructuredDataset.create_dataloader(folder, **options)
    (batch,) = list(loader)
    return dict(batch)


def test_nulls(folder: str) -> None:
    with pytest.raises(NullValueError, match=r"column 'city' has a null in .*0.parquet"):
        one_batch(folder)
    batch = one_batch(folder, nulls="mask")
    assert batch["city_valid"].tolist() == [True, True, False, True, True, True, True]
    assert batch["city"][batch["city_valid"]].tolist() == [2, 3, 3, 0, 1, 2]
    assert one_batch(folder, nulls="drop")["city"].tolist() == [2, 3, 3, 0, 1, 2]
    filled = one_batch(folder, nulls=Fill({"city": "nowhere"}))
    assert filled["city"].tolist() == [2, 3, 4, 3, 0, 1, 2]
    assert one_batch(folder, nulls=Fill({"city": -1}))["city"].tolist() == [2, 3, -1, 3, 0, 1, 2]


def test_dropped_rows_have_no_values(folder: str) -> None:
    _, dataset = StructuredDataset.create_dataloader(
        folder, columns=["city"], strings="codes", nulls="drop", filters=[("city", "!=", "Bern")]
    )
    assert dataset.vocabulary("city") == ["Lima", "Oslo", "Rome"]


def test_a_filter_that_only_plain_text_allows(folder: str) -> None:
    assert one_batch(folder, filters=pc.starts_with(pc.field("city"), "R"))["city"].tolist() == [0, 0]


def test_a_given_vocabulary(folder: str) -> None:
    order = ["Rome", "Paris", "Oslo", "Lima", "Bern"]
    batch = one_batch(folder, nulls="mask", strings=Codes({"city": order}))
    assert batch["city"][batch["city_valid"]].tolist() == [2, 0, 0, 4, 3, 2]
    with pytest.raises(UnknownValueError, match=r"'city' has the value 'Lima' in .*1.parquet, row group 0"):
        one_batch(folder, nulls="mask", strings=Codes({"city": ["Rome", "Oslo", "Bern"]}))


def test_files_of_other_types(tmp_path: Path) -> None:
    """A column that is text here, a dictionary there, large text, absent, and numbers that are declared to be text."""
    kinds: list[Any] = [pa.string(), pa.dictionary(pa.int8(), pa.string()), pa.large_string()]
    for number, kind in enumerate(kinds):
        city = pa.array(["x", f"y{number}"], pa.string())
        pq.write_table(pa.table({"id": [number] * 2, "city": city.cast(kind)}), tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"id": [3]}), tmp_path / "3.parquet")
    batch = one_batch(str(tmp_path), nulls="mask")
    assert batch["city"].tolist() == [0, 1, 0, 2, 0, 3, 0]
    pq.write_table(pa.table({"id": [4], "city": [7]}), tmp_path / "4.parquet")
    batch = one_batch(str(tmp_path), nulls="mask", schema=pa.schema({"id": pa.int64(), "city": pa.string()}))
    assert batch["city"].tolist() == [1, 2, 1, 3, 1, 4, 0, 0]


def test_partition_columns_and_column_names_with_dots(tmp_path: Path) -> None:
    for color in ("red", "blue"):
        (tmp_path / f"color={color}").mkdir()
        table = pa.table({"a.b": ["u", "v"], "a": [{"c": color}, {"c": "z"}]})
        pq.write_table(table, tmp_path / f"color={color}" / "x.parquet")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), strings="codes", batch_size=10)
    assert dataset.vocabulary("color") == ["blue", "red"]
    assert dataset.vocabularies()["color"] == ["blue", "red"]
    assert dataset.vocabulary("a.c") == ["blue", "red", "z"]
    (batch,) = list(loader)
    assert {key: codes.tolist() for key, codes in batch.items()} == {
        "a.b": [0, 1, 0, 1], "a.c": [0, 2, 1, 2], "color": [0, 0, 1, 1],
    }  # fmt: skip


def test_large_vocabularies_are_read_plain_and_the_same(tmp_path: Path) -> None:
    names = [f"name {i:05d}" for i in range(40_000)]
    pq.write_table(pa.table({"name": names[::-1]}), tmp_path / "x.parquet", row_group_size=15_000)
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), strings="codes", batch_size=40_000)
    (batch,) = list(loader)
    assert batch["name"].tolist() == list(range(40_000))[::-1]
    assert dataset.vocabulary("name") == names


@pytest.mark.parametrize("form", ["arrow", "dict"])
def test_unconverted_outputs_keep_the_values(folder: str, form: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, columns=["city"], strings="codes", output_format=form, batch_size=100
    )
    (batch,) = list(loader)
    values = batch["city"] if form == "dict" else batch["city"].to_pylist()
    assert values == ["Oslo", "Rome", None, "Rome", "Bern", "Lima", "Oslo"]
    with pytest.raises(ColumnNotFoundError):
        dataset.vocabulary("city")


def test_the_schema_tells_what_the_files_hold(folder: str) -> None:
    _, dataset = StructuredDataset.create_dataloader(folder, strings="codes", nulls="mask")
    assert dataset.schema.field("city").type == pa.string()


def test_codes_and_counts_in_processes(folder: str) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, columns=["city"], strings="codes", nulls="drop", count_rows=True, batch_size=2,
        num_workers=2, worker_mode=Processes(persistent=False),
    )  # fmt: skip
    assert len(loader) == 3
    codes = [code for batch in loader for code in batch["city"].tolist()]
    assert sorted(dataset.vocabulary("city")[code] for code in codes) == [
        "Bern",
        "Lima",
        "Oslo",
        "Oslo",
        "Rome",
        "Rome",
    ]
