"""A fitted Preprocess takes rows in many forms: the same form comes back, with the same values."""

from __future__ import annotations

import copy
import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from torch_dataloader_utils.errors import ColumnNotFoundError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Preprocess,
    Standardize,
)

BERLIN = "Europe/Berlin"
MOMENTS = [dt.datetime(2021, 7, 1, 12, tzinfo=dt.UTC), None, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)]
TABLE = pa.table(
    {
        "age": pa.array([20, None, 41], pa.int16()),
        "income": [1.5, math.nan, None],
        "city": ["Oslo", None, "Bergen"],
        "code": pa.array(["a", "b", "a"]).dictionary_encode(),
        "tags": [["x", "y"], None, []],
        "vector": pa.array([[1, 2], [3, 4], None], pa.list_(pa.float32(), 2)),
        "when": pa.array(MOMENTS, pa.timestamp("us", BERLIN)),
        "day": [dt.date(2024, 2, 29), None, dt.date(1960, 1, 1)],
        "flag": [True, None, False],
        "label": [1, 0, 1],
    }
)
SPEC: Any = {
    "age": [Impute("median", indicator=True), Standardize()],
    "income": {"income": Standardize(), "bucket": Bucketize([1, 2])},
    "label": {"kept": Keep()},
    "city": Categorize(),
    ("city", "code"): Cross(Hash(100)),
    "tags": Categorize(),
    "vector": Standardize(),
    "when": DateParts("hour", "weekday"),
    "day": Categorize(),
    "flag": {"id": Categorize(), "filled": Impute(True)},
}


@pytest.fixture(scope="module")
def prep() -> Preprocess:
    return Preprocess(SPEC).fit(TABLE)


def same(found: Any, expected: Any) -> None:
    """Equal, with NaN equal to itself."""
    assert repr(found) == repr(expected)


@pytest.fixture(scope="module")
def expected(prep: Preprocess) -> dict[str, list[Any]]:
    made = prep(TABLE)
    assert isinstance(made, pa.Table)
    found: dict[str, list[Any]] = made.to_pydict()
    assert list(found) == [
        *("age", "age_missing", "income", "bucket", "kept", "city", "city_x_code", "tags", "vector"),
        *("when_hour", "when_weekday", "day", "id", "filled"),
    ]
    same(found["age_missing"], [0.0, 1.0, 0.0])
    same(found["tags"], [[2, 3], [], []])
    same(found["when_hour"], [15, 0, 1])
    return found


def test_arrow(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    batch = TABLE.to_batches()[0]
    made = prep(batch)
    assert isinstance(made, pa.RecordBatch)
    same(made.to_pydict(), expected)
    chunks = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1, 0), TABLE.slice(1)])
    same(prep(chunks).to_pydict(), expected)
    same(prep(TABLE.slice(1)).to_pydict(), {name: values[1:] for name, values in expected.items()})
    other = pa.table({"more": [1, 2, 3], **{name: TABLE[name] for name in reversed(TABLE.column_names)}})
    same(prep(other).to_pydict(), expected)


def test_pandas(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    index = pd.Index(["b", "a", "a"], name="rows")
    frame = TABLE.to_pandas().set_index(index)
    frame["junk"] = [object(), 1, "a"]
    frame["more junk"] = [{1}, {2}, None]
    before = frame.copy(deep=True)
    made = prep(frame)
    assert isinstance(made, pd.DataFrame)
    assert made.index.equals(index)
    assert made.index.name == "rows"
    same({name: made[name].map(plain).tolist() for name in made}, expected)
    assert [made["age"].dtype, made["city"].dtype] == [np.float32, np.int64]
    pd.testing.assert_frame_equal(frame, before)
    made["kept"] = 5
    made.loc[:, "kept"] = 6
    pd.testing.assert_frame_equal(frame, before)


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, np.ndarray) else getattr(value, "item", lambda: value)()


@pytest.mark.parametrize("age", ["Int64", "Float32", "float64", "object", "int64[pyarrow]", "category"])
@pytest.mark.parametrize("city", ["string", "object", "category", "string[pyarrow]"])
def test_dtypes_of_pandas(prep: Preprocess, expected: dict[str, list[Any]], age: str, city: str) -> None:
    ages = pd.Series([20, None, 41], dtype="Int64").astype(age)
    frame = TABLE.to_pandas().assign(age=ages, city=pd.Series(["Oslo", None, "Bergen"]).astype(city))
    made = prep(frame)
    same([made["age"].tolist(), made["city"].tolist()], [expected["age"], expected["city"]])
    frame["flag"] = pd.array([True, None, False], dtype="boolean")
    frame["income"] = pd.array([1.5, None, None], dtype="Float64")
    made = prep(frame)
    same([made["id"].tolist(), made["income"].tolist()], [expected["id"], expected["income"]])


def test_kept_columns_come_back_as_they_were_given(prep: Preprocess) -> None:
    frame = TABLE.to_pandas()
    labels: list[Any] = [object(), {"a": 1}, None]
    assert prep(frame.assign(label=labels))["kept"].tolist() == labels
    kept = pd.Series(["u", None, "v"], dtype="category")
    assert prep(frame.assign(label=kept))["kept"].dtype == kept.dtype
    assert prep({**TABLE.to_pydict(), "label": labels})["kept"] is labels
    objects = pl.DataFrame(TABLE.drop(["label"])).with_columns(pl.Series("label", labels, dtype=pl.Object))
    assert prep(objects)["kept"].to_list() == labels
    assert prep(TABLE.set_column(9, "label", pa.array(["a", None, "b"])))["kept"].to_pylist() == ["a", None, "b"]


def test_polars(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    frame = pl.DataFrame(TABLE).with_columns(pl.Series("junk", [object(), object(), object()]))
    made = prep(frame)
    assert isinstance(made, pl.DataFrame)
    same({name: made[name].to_list() for name in made.columns}, expected)
    others = frame.with_columns(pl.col("city").cast(pl.Categorical), pl.col("age").cast(pl.Float64))
    same(prep(others)["city"].to_list(), expected["city"])
    assert prep(pl.DataFrame(TABLE).clear()).height == 0


def test_dict_of_lists(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    rows = TABLE.to_pydict()
    before = copy.deepcopy(rows)
    same(prep(rows), expected)
    same(rows, before)
    of_tuples = {name: tuple(values) for name, values in rows.items() if name != "label"}
    same(prep(of_tuples | {"label": rows["label"], "junk": 5}), expected)
    arrow = prep({name: TABLE[name] for name in TABLE.column_names})
    same({name: column.to_pylist() for name, column in arrow.items()}, expected)
    series = prep({name: TABLE.to_pandas()[name] for name in TABLE.column_names})
    same([series["age"].tolist(), series["city"].tolist()], [expected["age"], expected["city"]])
    columns = pl.DataFrame(TABLE)
    same(prep({name: columns[name] for name in columns.columns})["tags"].tolist()[0].tolist(), expected["tags"][0])


def arrays() -> dict[str, Any]:
    """As NumPy arrays, where these can hold what is missing."""
    rows: dict[str, Any] = TABLE.to_pydict()
    return rows | {
        "age": np.array([20, np.nan, 41], ">f4"),
        "income": np.ma.array([1.5, 2.5, 3.5], mask=[False, True, True]),
        "city": np.array(["Oslo", None, "Bergen"], object),
        "vector": np.array([[1, 2], [3, 4], [np.nan, np.nan]]),
        "day": np.array(["2024-02-29", "NaT", "1960-01-01"], "datetime64[D]"),
        "label": np.array([1, 0, 1], np.int8),
    }


def test_dict_of_arrays(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    rows = arrays()
    made = prep(rows)
    of_arrays = ("age", "age_missing", "income", "bucket", "kept", "city", "city_x_code", "vector", "day")
    for name, values in made.items():
        assert isinstance(values, np.ndarray if name in of_arrays else list), name
        same(np.asarray(values).tolist() if name in of_arrays else values, expected[name])
    assert made["vector"].shape == (3, 2)
    assert made["vector"].dtype == np.float32
    made["age"][:] = 0  # it has memory of its own
    made["city"][:] = 0
    same(rows["age"].tolist(), [20.0, math.nan, 41.0])


def test_dict_of_tensors(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    rows = TABLE.to_pydict() | {
        "age": torch.tensor([20, math.nan, 41], requires_grad=True),
        "income": torch.tensor([1.5, math.nan, math.nan], dtype=torch.bfloat16),
        "vector": torch.tensor([[1, 2], [3, 4], [math.nan, math.nan]]),
    }
    made = prep(rows)
    for name in ("age", "age_missing", "income", "bucket", "vector"):
        assert isinstance(made[name], torch.Tensor)
        same(made[name].tolist(), expected[name])
    assert made["vector"].shape == (3, 2)
    assert [made["age"].dtype, made["bucket"].dtype] == [torch.float32, torch.int64]
    same(made["city"], expected["city"])


def test_one_row(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    for place, row in enumerate(TABLE.to_pylist()):
        before = copy.deepcopy(row)
        same(prep(row), {name: values[place] for name, values in expected.items()})
        same(row, before)
        as_arrays = row | {"age": np.array(row["age"], object), "tags": np.array(row["tags"] or [], object)}
        same(prep(as_arrays)["age"], expected["age"][place])
    nothing = prep(dict.fromkeys(TABLE.column_names))
    same(nothing["city"], 0)
    assert prep({"age": None, **{name: TABLE[name][0].as_py() for name in TABLE.column_names[1:]}})["age_missing"] == 1


def test_one_row_or_several() -> None:
    """What a list is to a column of lists is told by what it holds."""
    prep = Preprocess({"t": Categorize()}).fit(pa.table({"t": [["a", "b"], None]}))
    assert prep({"t": ["a", None]}) == {"t": [2, 0]}
    assert prep({"t": [None, ["a"]]}) == {"t": [[], [2]]}
    assert prep({"t": np.array(["a"], object)}) == {"t": [2]}
    assert prep({"t": []}) == {"t": []}
    of_vectors = Preprocess({"v": Standardize()}).fit(
        pa.table({"v": pa.array([[1.0], [3.0]], pa.list_(pa.float64(), 1))})
    )
    assert of_vectors({"v": np.empty((0, 1))})["v"].shape == (0, 1)
    assert of_vectors({"v": np.array([1.0])}) == {"v": [-1.0]}


def test_no_rows(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    nothing: dict[str, list[Any]] = {name: [] for name in expected}
    assert prep(TABLE.slice(0, 0)).to_pydict() == nothing
    assert prep(TABLE.slice(0, 0)).schema == prep(TABLE).schema
    assert prep({name: [] for name in TABLE.column_names}) == nothing
    frame = prep(TABLE.to_pandas().iloc[:0])
    assert [list(frame.columns), len(frame), frame["age"].dtype] == [list(expected), 0, np.float32]


def test_missing_columns_are_all_named(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    less = TABLE.drop(["age", "when"])
    for rows in (less, less.to_pandas(), pl.DataFrame(less), less.to_pydict(), less.to_pylist()[0]):
        with pytest.raises(ColumnNotFoundError, match=r"no columns \['age', 'when'\].*there are \[?'income', 'city'"):
            prep(rows)
    unlabelled = TABLE.drop(["label"])
    for rows in (unlabelled, unlabelled.to_pandas(), pl.DataFrame(unlabelled), unlabelled.to_pydict()):
        made = prep(rows)
        names = made.to_pydict() if isinstance(made, pa.Table) else made if isinstance(made, dict) else made.columns
        assert list(names) == [name for name in expected if name != "kept"]


def test_only_kept_columns() -> None:
    prep = Preprocess({"label": Keep()}).fit(pa.table({"label": [1]}))
    frame = pd.DataFrame({"other": [1, 2]}, index=[7, 8])
    assert prep(frame).index.tolist() == [7, 8]
    assert prep(frame).columns.tolist() == []
    assert prep({"label": [1, 2]}) == {"label": [1, 2]}
    assert prep({}) == {}


WRONG: list[tuple[str, Any]] = [
    ("age", ["20", "30", None]),
    ("age", [dt.date(2020, 1, 1)] * 3),
    ("age", [[1], [2], None]),
    ("income", [b"a", None, b"b"]),
    ("city", [1, 2, 3]),
    ("city", [b"Oslo", None, None]),
    ("code", [1.5, 2.5, None]),
    ("tags", [[1], [2], [3]]),
    ("vector", [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
    ("vector", [["a", "b"], ["a", "b"], None]),
    ("when", [dt.datetime(2020, 1, 1)] * 3),
    ("day", [dt.datetime(2020, 1, 1)] * 3),
    ("flag", ["true", "false", None]),
]


@pytest.mark.parametrize(("column", "values"), WRONG)
def test_a_column_of_another_kind(prep: Preprocess, column: str, values: list[Any]) -> None:
    array = pa.array(values)
    table = TABLE.set_column(TABLE.column_names.index(column), column, array)
    rows = table.to_pydict()
    message = rf"column '{column}' holds .* fitted on "
    for form in (table, table.to_pandas(date_as_object=True), pl.DataFrame(table), rows):
        if isinstance(form, pd.DataFrame) and column == "day":
            continue  # pandas has datetimes for dates
        with pytest.raises(UnsupportedTypeError, match=message):
            prep(form)
    if column != "age" or not isinstance(values[0], list):  # the first column says whether it is one row
        with pytest.raises(UnsupportedTypeError, match=message):
            prep(TABLE.to_pylist()[0] | {column: values[0]})


def test_a_column_without_values_has_the_type_that_was_fitted(prep: Preprocess, expected: dict[str, list[Any]]) -> None:
    columns = {name: [None] * 3 for name in TABLE.column_names}
    made = prep(pa.table(columns))
    assert made.drop(["kept"]).schema == prep(TABLE).drop(["kept"]).schema
    same(prep(columns)["city"], [0, 0, 0])
    same(prep(pd.DataFrame(columns))["id"].tolist(), [0, 0, 0])


def test_rows_in_no_form(prep: Preprocess) -> None:
    frame = TABLE.to_pandas()
    for rows in (5, "train/", [1], TABLE.to_pylist(), frame["age"], frame.iloc[0], pl.DataFrame(TABLE).lazy(), None):
        with pytest.raises(UnsupportedTypeError, match=rf"rows are a {type(rows).__name__}: expected a pyarrow"):
            prep(rows)


def test_columns_that_fit_no_table(prep: Preprocess) -> None:
    rows = TABLE.to_pydict()
    with pytest.raises(SchemaMismatchError, match="different numbers of values"):
        prep(rows | {"age": [1]})
    for values in (["Oslo", 5, object()], "Oslo", 5, {"a": 1}, np.zeros((3, 2, 2)), np.array([1j, 2, 3]), [10**30] * 3):
        with pytest.raises(UnsupportedTypeError, match=r"column 'city' (is|holds)|column 'city': "):
            prep(rows | {"city": values})
    twice = pa.Table.from_arrays([TABLE["age"], *TABLE.columns], ["age", *TABLE.column_names])
    frame = TABLE.to_pandas()
    for double in (twice, twice.to_batches()[0], pd.concat([frame, frame[["age"]]], axis=1)):
        with pytest.raises(SchemaMismatchError, match=r"columns \['age'\] are there twice"):
            prep(double)


def test_whole_numbers_of_64_bits_in_a_list() -> None:
    prep = Preprocess({"id": {"id": Categorize(), "x": Standardize()}}).fit(pa.table({"id": [1, 2]}))
    assert prep({"id": [2**63, 1]})["id"] == [1, 2]
    assert prep({"id": 2**63})["id"] == 1


def test_lists_of_one_size_and_of_any() -> None:
    """A frame, which knows lists alone, and a matrix are as good as what was fitted."""
    fixed = pa.array([[1.0, 2.0], [3.0, 5.0]], pa.list_(pa.float64(), 2))
    of_fixed, of_lists = (Preprocess({"v": Standardize()}).fit(pa.table({"v": v})) for v in (fixed, fixed.to_pylist()))
    matrix = np.array(fixed.to_pylist())
    expected = of_fixed(pa.table({"v": fixed})).to_pydict()["v"]
    for prep in (of_fixed, of_lists):
        for rows in (pa.table({"v": fixed}), pa.table({"v": fixed.to_pylist()})):
            assert prep(rows).to_pydict()["v"] == expected
        assert np.array(prep({"v": matrix})["v"].tolist()).tolist() == expected
        assert [list(row) for row in prep(pd.DataFrame({"v": list(matrix)}))["v"]] == expected
