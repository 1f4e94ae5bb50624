"""`Transform(format="rows")`: transforms of single rows, which are dicts, from files to batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.executors.helpers import DRIVERS
from torch_dataloader_utils import Fill, StructuredDataset, Transform
from torch_dataloader_utils.errors import RowErrors, SchemaMismatchError, TooManyErrors, UnsupportedTypeError

ROWS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("rows")
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    for number in range(2):
        ids = range(number * ROWS // 2, (number + 1) * ROWS // 2)
        images = pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.array([np.full((2, 3), row, np.float32) for row in ids])
        )
        table = pa.table(
            {
                "id": list(ids),
                "text": ["the cat sat"[: 3 + 4 * (row % 3)] for row in ids],
                "age": [None if row % 3 == 0 else row for row in ids],
                "image": images.cast(tensor) if images.type != tensor else images,
            }
        )
        pq.write_table(table, root / f"{number}.parquet", row_group_size=10)
    return str(root)


def loader_of(folder: str, function: Any, columns: Any = ("id", "text"), **options: Any) -> Any:
    rest = {
        name: options.pop(name) for name in ("rows", "schema", "random", "on_error", "max_errors") if name in options
    }
    given = {"columns": list(columns), "batch_size": 7, "num_workers": 0, "num_ranks": 1, "rank": 0, **options}
    return StructuredDataset.create_dataloader(folder, transform=Transform(function, format="rows", **rest), **given)[0]


def words(row: dict[str, Any]) -> dict[str, Any]:
    return {"words": row["text"].split(), "id": row["id"]}


WORDS = pa.schema({"words": pa.list_(pa.string()), "id": pa.int64()})


@pytest.mark.parametrize("driver", ["pool", "threads", "processes"])
def test_rows_become_the_rows_of_a_schema(folder: str, driver: str) -> None:
    loader = loader_of(folder, words, schema=WORDS, output_format="dict", shuffle=True, **DRIVERS[driver])
    found = {row: texts for batch in loader for row, texts in zip(batch["id"], batch["words"], strict=True)}
    loader.close()
    assert found == {row: "the cat sat"[: 3 + 4 * (row % 3)].split() for row in range(ROWS)}


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def upper(row: dict[str, Any]) -> dict[str, Any]:
    assert row["image"].shape == (2, 3)
    return {"image": row["image"] + 1, **row, "text": row["text"].upper(), "age": row["age"] and -row["age"]}


def test_without_a_schema_rows_keep_their_columns_and_types(folder: str) -> None:
    columns = ["id", "text", "age", "image"]
    plain, changed = (
        list(loader_of(folder, function, columns, output_format="arrow", num_workers=None))
        for function in (same, upper)
    )
    for before, after in zip(plain, changed, strict=True):
        assert after.schema.equals(before.schema)
        assert after["text"].to_pylist() == [text.upper() for text in before["text"].to_pylist()]
        assert after["age"].to_pylist() == [age and -age for age in before["age"].to_pylist()]
        assert after["image"].equals(before["image"])


def test_a_list_of_rows_takes_the_place_of_a_row(folder: str) -> None:
    loader = loader_of(folder, lambda row: [row] * (row["id"] % 3), rows="any", shuffle="splits")
    found = sorted(row for batch in loader for row in batch["id"].tolist())
    assert found == [row for row in range(ROWS) for _ in range(row % 3)]
    assert not list(loader_of(folder, lambda row: [], rows="any"))


def noisy(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"id": row["id"], "x": float(rng.normal()[0] + rng.random(2)[0, 1])}


def test_a_row_draws_as_it_does_in_a_block(folder: str) -> None:
    def block(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
        return rows.select(["id"]).append_column("x", pa.array(rng.normal() + rng.random(2)[:, 1]))

    schema = pa.schema({"id": pa.int64(), "x": pa.float64()})
    options: dict[str, Any] = {"columns": ["id"], "num_ranks": 1, "rank": 0, "shuffle": True, "num_workers": 0}
    forms = [Transform(noisy, format="rows", schema=schema, random=True), Transform(block, random=True)]
    found = []
    for transform in forms:
        loader = StructuredDataset.create_dataloader(folder, transform=transform, **options)[0]
        found.append(
            {row: x for batch in loader for row, x in zip(*(batch[k].tolist() for k in ("id", "x")), strict=True)}
        )
    assert found[0] == found[1]


def odd(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] in (3, 41):
        raise ValueError("odd")
    return row


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_that_fails_is_known_without_a_search(folder: str, shuffle: bool) -> None:
    with pytest.raises(RowErrors, match=r"row \d+ of .*\.parquet: ValueError: odd") as caught:
        list(loader_of(folder, odd, shuffle=shuffle))
    assert isinstance(caught.value.__cause__, ValueError)
    loader = loader_of(folder, odd, shuffle=shuffle, on_error=Fill({"id": -1}))
    batches = list(loader)
    assert sorted(row for batch in batches for row in batch["id"].tolist()) == sorted(
        [-1, -1, *(row for row in range(ROWS) if row not in (3, 41))]
    )
    assert sum(int((~batch["valid"]).sum()) for batch in batches) == 2
    with pytest.raises(TooManyErrors):
        list(loader_of(folder, odd, on_error="skip", max_errors=1))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda row: None, UnsupportedTypeError, "returned NoneType for a row: expected a dict"),
        (lambda row: {"id": 1}, SchemaMismatchError, r"columns \['id'\], and expected are \['id', 'text'\]"),
        (lambda row: {**row, "n": 1}, SchemaMismatchError, r"pass Transform\(schema=\)"),
        (lambda row: {**row, "id": "x"}, SchemaMismatchError, "column 'id' with values that do not fit int64"),
        (lambda row: {**row, "id": 1.5}, SchemaMismatchError, "column 'id' with values that do not fit int64"),
        (lambda row: [row, row], SchemaMismatchError, r"returned 60 rows for 30\. .*rows='any', format='rows'"),
    ],
)
def test_what_is_no_row_is_an_error(folder: str, function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(loader_of(folder, function))
