"""`Transform(format=)`: transforms in numpy, torch, pandas and polars, from files to batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tests.executors.helpers import DRIVERS
from torch_dataloader_utils import Fill, MissingExtraError, Processes, StructuredDataset, Transform
from torch_dataloader_utils.errors import CountsRequiredError, NullValueError, OptionError, SchemaMismatchError

FORMATS = ("numpy", "torch", "pandas", "polars")
ROWS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("formats")
    for number in range(2):
        ids = range(number * ROWS // 2, (number + 1) * ROWS // 2)
        table = pa.table(
            {
                "id": list(ids),
                "x": np.array(ids, np.float32),
                "age": [None if row % 3 == 0 else row for row in ids],
                "text": ["the cat sat"[: 3 + 4 * (row % 3)] for row in ids],
                "image": [np.full((3, 4, 5), row, np.uint8).tobytes() for row in ids],
            }
        )
        pq.write_table(table, root / f"{number}.parquet", row_group_size=10)
    return str(root)


def loader_of(folder: str, name: str, transform: Any, **options: Any) -> Any:
    if name in ("pandas", "polars"):
        pytest.importorskip(name)
    options = {"columns": ["id", "x"], "batch_size": 7, "num_workers": 0} | options
    rest = {field: options.pop(field) for field in ("rows", "schema") if field in options}
    return StructuredDataset.create_dataloader(folder, transform=Transform(transform, format=name, **rest), **options)[
        0
    ]


def arrow_doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("y", pc.multiply(rows["x"], pa.scalar(2, pa.float32())))


def doubled(rows: Any) -> Any:
    """Of columns by name, whatever they are."""
    columns = {"id": rows["id"], "x": rows["x"], "y": rows["x"] * 2}
    return columns if isinstance(rows, dict) else type(rows)(columns)


def plain(batch: Any) -> Any:
    rows = batch.to_pydict() if isinstance(batch, pa.RecordBatch) else batch
    return {key: list(values) for key, values in rows.items()}


@pytest.mark.parametrize(
    ("name", "driver"),
    [(name, driver) for name in FORMATS for driver in ("pool", "threads")]
    + [(name, "processes") for name in ("numpy", "torch", "pandas")]
    + [pytest.param("polars", "processes", marks=pytest.mark.slow)],  # starts a fork server
)
def test_batches_are_those_of_the_arrow_transform(folder: str, name: str, driver: str) -> None:
    options: dict[str, Any] = {"filters": [("id", ">=", 5)], "shuffle": True, **DRIVERS[driver]}
    if driver == "processes" and name == "polars":  # its threads do not survive a fork
        options["worker_mode"] = Processes(context="forkserver")
    expected = list(loader_of(folder, "arrow", arrow_doubled, **options))
    got = list(loader_of(folder, name, doubled, **options))
    assert sum(len(batch["id"]) for batch in got) == ROWS - 5
    for batch, other in zip(got, expected, strict=True):
        assert list(batch) == ["id", "x", "y"]
        assert {key: values.dtype for key, values in batch.items()} == {k: v.dtype for k, v in other.items()}
        assert plain(batch) == plain(other)


@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_output_format_can_follow(folder: str, name: str, output_format: str) -> None:
    expected = loader_of(folder, "arrow", arrow_doubled, output_format=output_format)
    got = loader_of(folder, name, doubled, output_format=output_format)
    assert [plain(batch) for batch in got] == [plain(batch) for batch in expected]


@pytest.mark.parametrize("name", FORMATS)
def test_a_pass_resumes_where_it_was(folder: str, name: str) -> None:
    options = {"shuffle": True, "filters": [("id", "!=", 8)]}
    batches = iter(loader := loader_of(folder, name, doubled, **options))
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = [plain(batch) for batch in batches]
    loader = loader_of(folder, name, doubled, **options)
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == rest


@pytest.mark.parametrize("name", FORMATS)
def test_rows_can_be_left_out(folder: str, name: str) -> None:
    def thirds(rows: Any) -> Any:
        if name == "polars":
            return rows.filter(rows["id"] % 3 == 0)
        if name == "pandas":
            return rows[rows["id"] % 3 == 0]
        return {key: column[rows["id"] % 3 == 0] for key, column in rows.items()}

    loader = loader_of(folder, name, thirds, rows="any")
    assert [row for batch in loader for row in batch["id"].tolist()] == list(range(0, ROWS, 3))
    with pytest.raises(
        SchemaMismatchError,
        match=rf"Use transform=Transform\(thirds, rows='any', format='{name}'\)",
    ):
        list(loader_of(folder, name, thirds))


def test_what_needs_counts_names_a_remedy_that_works(folder: str) -> None:
    def same(rows: Any) -> Any:
        return rows

    for options in ({"even": "drop"}, {"even": "pad"}, {"last_batch": "wrap"}, {"canonical_ranks": 2}):
        with pytest.raises(CountsRequiredError, match="transform may change the number of rows") as caught:
            loader_of(folder, "numpy", same, rows="any", **options)
        assert "count_rows" not in str(caught.value)  # which rows="any" refuses
    assert len(list(loader_of(folder, "numpy", same, rows="any", steps_per_epoch=3))) == 3
    with pytest.raises(TypeError, match="transform may change the number of rows") as unknown:
        len(loader_of(folder, "numpy", same, rows="any"))
    assert "count_rows" not in str(unknown.value)


@pytest.mark.parametrize("name", ["numpy", "pandas", "polars"])
def test_ints_with_nulls_stay_ints(folder: str, name: str) -> None:
    loader = loader_of(folder, name, lambda rows: rows, columns=["age"], nulls="mask")
    batches = list(loader)
    assert {batch["age"].dtype for batch in batches} == {torch.int64}
    assert torch.cat([batch["age_valid"] for batch in batches]).tolist() == [row % 3 != 0 for row in range(ROWS)]


# ------------------------------------------------------------------------------------------------------------- tasks

WORDS = {"the": 1, "cat": 2, "sat": 3}


def tokenize(texts: list[str], length: int | None = None) -> Any:
    """As tokenizers do: ragged lists, or a matrix of int64 padded with 0."""
    ids = [[WORDS[word] for word in text.split()] for text in texts]
    if length is None:
        return ids
    return torch.tensor([row + [0] * (length - len(row)) for row in ids], dtype=torch.int64).reshape(-1, length)


def test_strings_become_padded_token_ids(folder: str) -> None:
    loader = loader_of(folder, "torch", lambda rows: {"ids": tokenize(rows["text"], 4)}, columns=["text"])
    batch = next(iter(loader))
    assert batch["ids"].dtype == torch.int64
    assert batch["ids"][:3].tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0]]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_strings_become_ragged_token_ids_that_batches_pad(folder: str, name: str) -> None:
    loader = loader_of(
        folder, name, lambda rows: {"ids": tokenize(rows["text"])}, columns=["text"], lists="padded",
        schema=pa.schema({"ids": pa.list_(pa.int64())}),
    )  # fmt: skip
    ids = next(iter(loader))["ids"]
    assert ids["lengths"][:3].tolist() == [1, 2, 3]
    assert ids["values"][:3].tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_images_in_bytes_become_tensors(folder: str, name: str) -> None:
    def decoded(rows: Any) -> Any:
        images = np.array([np.frombuffer(image, np.uint8) for image in rows["image"]], np.uint8).reshape(-1, 3, 4, 5)
        return {"image": torch.from_numpy(images) if name == "torch" else images, "id": rows["id"]}

    for batch in loader_of(folder, name, decoded, columns=["image", "id"]):
        assert batch["image"].dtype == torch.uint8
        assert torch.equal(batch["image"], batch["id"].to(torch.uint8)[:, None, None, None].expand(-1, 3, 4, 5))


# ------------------------------------------------------------------------------------------------------------ errors


def test_the_error_of_a_transform_names_file_and_rows(folder: str) -> None:
    def fails(rows: Any) -> Any:
        if 45 in rows["id"]:
            raise ZeroDivisionError("row 45")
        return rows

    with pytest.raises(ZeroDivisionError) as caught:
        list(loader_of(folder, "numpy", fails, split_rows=10))
    assert any("1.parquet" in note and "while transforming row " in note for note in caught.value.__notes__)


def test_types_that_depend_on_the_rows_are_refused_with_column_file_and_remedy(folder: str) -> None:
    def lengths(rows: Any) -> Any:
        return {"n": np.array([len(text) for text in rows["text"]])}

    message = r"n: int64 where .* 0 rows.* said n: double.*Transform\(schema=\)"
    with pytest.raises(SchemaMismatchError, match=message) as caught:
        list(loader_of(folder, "numpy", lengths, columns=["text"]))
    assert any("0.parquet" in note and "row group" in note for note in caught.value.__notes__)


def test_a_null_that_no_tensor_holds_names_column_and_file(folder: str) -> None:
    with pytest.raises(NullValueError, match=r"'age' has a null before transform.*nulls=\{'age': 'drop'\}") as caught:
        list(loader_of(folder, "torch", lambda rows: rows, columns=["age"]))
    assert any("0.parquet" in note for note in caught.value.__notes__)
    loader = loader_of(folder, "torch", lambda rows: rows, columns=["age"], nulls="drop")
    assert sum(len(batch["age"]) for batch in loader) == ROWS - ROWS // 3


def test_a_transform_that_cannot_take_0_rows_hears_of_the_schema(folder: str) -> None:
    def stacked(rows: Any) -> Any:
        return {"x": torch.stack(list(rows["x"]))}

    with pytest.raises(RuntimeError) as caught:
        loader_of(folder, "torch", stacked)
    assert "Transform(schema=)" in caught.value.__notes__[-1]
    loader = loader_of(folder, "torch", stacked, schema=pa.schema({"x": pa.float32()}))
    assert torch.cat([batch["x"] for batch in loader]).tolist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": {"function": doubled, "format": "jax"}}, "Transform: format='jax': expected one of 'arrow'"),
        ({"transform": "doubled"}, "expected a function, a list of functions"),
        ({"transform": [doubled, "doubled"]}, "expected a function of rows, or a list of such functions"),
        ({"transform": []}, "expected a function of rows, or a list of such functions"),
        ({"transform": Transform(doubled, schema={"x": "int64"})}, "expected a pyarrow.Schema"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StructuredDataset.create_dataloader(folder, **options)


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_library_is_named_with_its_extra(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as import has it where it is not installed
    with pytest.raises(MissingExtraError, match=rf"Transform\(format='{name}'\) needs {name}.*\[{name}\]"):
        StructuredDataset.create_dataloader(folder, transform=Transform(doubled, format=name))


@pytest.mark.parametrize("rows", ["same", "any"])
@pytest.mark.parametrize("name", ["arrow", "numpy"])
def test_it_is_not_called_for_blocks_of_which_a_filter_leaves_no_row(name: str, rows: str, folder: str) -> None:
    def refused(given: Any) -> Any:
        if not len(given["id"]):
            raise ValueError("no rows")
        return given

    loader = loader_of(
        folder,
        name,
        refused,
        columns=["id"],
        rows=rows,
        schema=pa.schema({"id": pa.int64()}),
        filters=pc.starts_with(pc.field("text"), "dog"),  # statistics do not rule it out
    )
    assert list(loader) == []


@pytest.mark.parametrize("output", ["torch", "arrow"])
@pytest.mark.parametrize("name", ["arrow", *FORMATS])
def test_columns_may_be_declared_to_have_no_nulls(name: str, output: str, folder: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    options = {"columns": ["id"], "schema": schema, "output_format": output}
    batches = list(loader_of(folder, name, lambda rows: rows, **options))
    assert [row for batch in batches for row in batch["id"].tolist()] == list(range(ROWS))
    assert output == "torch" or batches[0].schema == schema


@pytest.mark.parametrize("name", FORMATS)
def test_nulls_of_floats_are_filled_and_masked_behind_a_transform(name: str, tmp_path: Path) -> None:
    vectors = pa.array([[1, 2], None, [3, None]], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": pa.array([0.5, None, 2.5]), "v": vectors}), tmp_path / "x.parquet")
    options = {"columns": ["x", "v"], "nulls": Fill({"x": -1, "v": -1})}
    (batch,) = loader_of(str(tmp_path), name, lambda rows: rows, **options)
    assert batch["x"].tolist() == [0.5, -1, 2.5]
    assert batch["v"].tolist() == [[1, 2], [-1, -1], [3, -1]]
    options = {"columns": ["x", "v"], "nulls": {"x": "mask", "v": "mask"}}
    (batch,) = loader_of(str(tmp_path), name, lambda rows: rows, **options)
    assert batch["x_valid"].tolist() == batch["v_valid"].tolist() == [True, False, True]
