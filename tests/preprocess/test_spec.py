"""What specs mean: keys, types, precedence, order, names, and every error."""

from typing import Any

import pyarrow as pa
import pytest

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Drop,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
)

TABLE = pa.table({
    "age": [1.0, 2.0, None],
    "x_1": [1.0, 2.0, 3.0],
    "x_2": pa.array([1, 2, 3], pa.int32()),
    "city": ["a", "b", "a"],
    "country": pa.array(["n", None, "s"]).dictionary_encode(),
    "when": pa.array([0, 1, 2], pa.timestamp("s")),
    "user": pa.array([{"id": 5, "home": {"zip": "1"}}, None, {"id": 7, "home": None}]),
})  # fmt: skip


def fitted(spec: Any, **options: Any) -> Preprocess:
    return Preprocess(spec, **options).fit(TABLE)


def test_a_name_counts_before_patterns_and_these_before_types() -> None:
    prep = fitted({"float64": Standardize(), "x_*": MinMax(), "x_1": Log1p(), "string": Hash(9)})
    chains = {each.output.name: type(each.last) for each in prep._fitted.outputs}
    assert chains == {"age": Standardize, "x_2": MinMax, "x_1": Log1p, "city": Hash, "country": Hash}
    assert prep.outputs == ["age", "x_2", "x_1", "city", "country"]  # the order of the spec, then of the columns


def test_the_longest_pattern_counts() -> None:
    prep = fitted({"*": Drop(), "x*": Standardize(), "x_2*": Keep()})
    assert prep.outputs == ["x_1", "x_2"]
    assert fitted({"*": Keep(), "x_*": Drop()}).outputs == ["age", "city", "country", "when", "user"]


def test_several_outputs_of_a_column() -> None:
    prep = fitted({"age": {"age": Standardize(), "age_log": [Log1p(), MinMax()]}, "x_1": {"x": Keep()}})
    assert prep.outputs == ["age", "age_log", "x"]
    assert prep.inputs == ["age", "x_1"]
    swapped = fitted({"x_1": {"x_2": Keep()}, "x_2": {"x_1": Keep()}})
    assert swapped(TABLE).to_pydict() == {"x_2": [1, 2, 3], "x_1": [1, 2, 3]}


def test_names_of_outputs() -> None:
    spec = {
        "age": Impute("mean", indicator=True),
        "when": DateParts("hour", "year"),
        ("city", "country"): Cross(Hash(9)),
    }
    assert fitted(spec).outputs == ["age", "age_missing", "when_hour", "when_year", "city_x_country"]
    assert fitted({"when": {"w": DateParts("day", cyclic=True)}}).outputs == ["w_day_sin", "w_day_cos"]


def test_others() -> None:
    spec: Any = {"age": Standardize(), "x_*": Drop(), ("city", "country"): Cross(Hash(9))}
    assert fitted(spec).outputs == ["age", "city_x_country"]
    assert fitted(spec, others="keep").outputs == ["age", "city_x_country", "when", "user"]
    with pytest.raises(OptionError, match="others"):
        Preprocess(spec, others="what")  # type: ignore[arg-type]


def test_cross_in_both_spellings() -> None:
    python = fitted({("city", "country"): {"both": Cross(Hash(99))}})
    config = fitted({"both": {"kind": "cross", "columns": ["city", "country"], "of": {"kind": "hash", "n": 99}}})
    assert python.digest == config.digest
    two = fitted({"h": Cross(Hash(99), columns=["city", "x_2"]), "c": Cross(Categorize(), columns=["city", "x_2"])})
    assert two.outputs == ["h", "c"]


def test_a_config() -> None:
    config = {
        "age": [{"kind": "impute", "strategy": "median"}, {"kind": "standardize"}],
        "x_1": {"kind": "clip", "quantiles": [0.1, 0.9]},
        "city": {"kind": "categorize", "max_size": 5},
        "x_2": {"a": {"kind": "bucketize", "bounds": [1, 2]}, "b": {"kind": "keep"}},
        "when": {"kind": "dateparts", "parts": ["hour"]},
    }
    python = {
        "age": [Impute("median"), Standardize()],
        "x_1": Clip(quantiles=(0.1, 0.9)),
        "city": Categorize(max_size=5),
        "x_2": {"a": Bucketize([1, 2]), "b": Keep()},
        "when": DateParts("hour"),
    }
    assert fitted(config).digest == fitted(python).digest


def test_classes_without_arguments() -> None:
    assert fitted({"age": [Impute("mean"), Standardize], "city": Categorize}).outputs == ["age", "city"]


def test_fields_of_structs() -> None:
    prep = fitted({"user.id": Standardize(), "user.home.zip": Categorize()})
    found = prep(TABLE).to_pydict()
    assert found["user.home.zip"] == [2, 0, 0]
    assert found["user.id"][::2] == [-1, 1]
    flat = pa.table({"user.id": [5, 7], "user.home.zip": ["1", "2"]})
    assert prep(flat)["user.id"].to_pylist() == [-1, 1]
    with pytest.raises(ColumnNotFoundError, match=r"user\.name"):
        fitted({"user.name": Keep()})


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(ColumnNotFoundError) as error:
        fitted({"nope": Keep(), "city": Categorize(), ("city", "gone"): Cross(Hash(9)), "lost": Standardize()})
    assert all(f"'{name}'" in str(error.value) for name in ("nope", "gone", "lost", "age"))
    prep = fitted({"age": Standardize(), ("city", "x_2"): Cross(Hash(9)), "when": Keep()})
    for rows in (TABLE.select(["x_2"]), {"x_2": [1]}, {"x_2": 1}):
        with pytest.raises(ColumnNotFoundError, match=r"'age', 'city'"):
            prep(rows)
    assert prep(TABLE.drop_columns("when")).column_names == ["age", "city_x_x_2"]  # a kept one may be missing


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "dict"),
        ([Standardize()], "dict"),
        ({"age": 1}, "'age'"),
        ({"age": []}, "Keep"),
        ({"age": {}}, "output"),
        ({"age": "standardize"}, "'age'"),
        ({"age": {"kind": "what"}}, "what"),
        ({1: Keep()}, "name of a column"),
        ({"": Keep()}, "name of a column"),
        ({"age": [Categorize(), Standardize()]}, "ends a chain"),
        ({"age": [Keep(), Standardize()]}, "ends a chain"),
        ({"age": [Log1p(), Keep()]}, "stands alone"),
        ({"age": [Log1p(), Drop()]}, "stands alone"),
        ({"when": [Impute("most_frequent"), DateParts("hour")]}, "stands alone"),
        ({"age": [Impute("mean", indicator=True), Impute(1, indicator=True)]}, "indicator"),
        ({"age": Cross(Hash(9))}, "tuple"),
        ({("age",): Cross(Hash(9))}, "several columns"),
        ({("age", "city"): Hash(9)}, "several columns"),
        ({("age", "city"): [Log1p(), Cross(Hash(9))]}, "several columns"),
        ({("age", "city"): Cross(Hash(9), columns=["age", "city"])}, "columns="),
        ({("city", "x_2"): Cross(Hash(9)), "city_x_x_2": Cross(Hash(8), columns=["city", "x_2"])}, "city_x_x_2"),
        ({"age": {"x_1": Keep()}, "x_1": Keep()}, "x_1"),
        ({"x_*": {"x": Keep()}}, "'x'"),
        ({"age": Drop()}, "no output"),
        ({"y_*": Keep()}, r"y_\*"),
        ({"binary": Keep()}, "binary"),
    ],
    ids=str,
)
def test_specs_that_mean_nothing(spec: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        fitted(spec)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinMax(1, 1),
        lambda: MinMax(-1.7e308, 1.7e308),
        lambda: Robust(0.5, 0.5),
        lambda: Robust(0, 2),
        lambda: Clip(),
        lambda: Clip(2, 1),
        lambda: Clip(1, 2, quantiles=(0, 1)),
        lambda: Clip(quantiles=(0.9, 0.1)),
        lambda: Impute(),
        lambda: Impute("mean", value=1),
        lambda: Impute(float("nan")),
        lambda: Bucketize(),
        lambda: Bucketize([2, 1]),
        lambda: Bucketize([1], quantiles=3),
        lambda: Bucketize(quantiles=1),
        lambda: Categorize("abc"),
        lambda: Categorize(["a", "a"]),
        lambda: Categorize([None]),
        lambda: Categorize(min_count=0),
        lambda: Hash(1),
        lambda: Hash(2**31 + 1),
        lambda: Cross(Standardize()),  # type: ignore[arg-type]
        lambda: Cross(Categorize(["a"])),
        lambda: Cross(Categorize(nulls="category")),
        lambda: Cross(Hash(9), columns="ab"),
        lambda: Cross(Hash(9), columns=["a", "a"]),
        lambda: DateParts(),
        lambda: DateParts("hours"),
        lambda: DateParts("hour", "hour"),
        lambda: Standardize(ddof=2),
    ],
)
def test_transforms_that_cannot_be(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"city": Standardize()}, "Categorize"),
        ({"when": [Impute("mean"), Log1p()]}, "DateParts"),
        ({"age": DateParts("hour")}, "dates and times"),
        ({"user": Categorize()}, "other"),
    ],
)
def test_types_are_checked_before_rows_are_read(spec: Any, words: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=words):
        Preprocess(spec).scan(TABLE.schema)


def test_a_word_as_a_value() -> None:
    table = pa.table({"x": ["a", None]})
    assert Preprocess({"x": Impute(value="median")}).fit(table)(table)["x"].to_pylist() == ["a", "median"]
