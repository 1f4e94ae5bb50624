"""One row has the bits of a table of it: every transform, chain, kind of column and sign of a missing value."""

from __future__ import annotations

import datetime as dt
import math
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from torch_dataloader_utils.errors import ColumnNotFoundError, UnknownValueError, UnsupportedTypeError
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
from torch_dataloader_utils.preprocess.zones import offsets, zone_named

EACH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BERLIN = "Europe/Berlin"


def bits(value: Any) -> Any:
    """Floats by their bits; NaN has one."""
    if isinstance(value, list):
        return [bits(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return type(value), value


def agree(prep: Preprocess, row: dict[str, Any], types: dict[str, pa.DataType]) -> None:
    """Check that the row becomes what a table of it becomes, or that both raise the same kind of error."""
    table = pa.table({name: pa.array([row[name]], type_, from_pandas=True) for name, type_ in types.items()})
    try:
        expected: Any = prep(table).to_pylist()[0]
    except (UnsupportedTypeError, UnknownValueError) as error:
        with pytest.raises(type(error)):
            prep(row)
        return
    found = prep(row)
    assert list(found) == list(expected)
    assert {name: bits(value) for name, value in found.items()} == {
        name: bits(value) for name, value in expected.items()
    }


NUMBERS = [
    [Standardize()],
    [Standardize(center=False, ddof=1)],
    [MinMax()],
    [MinMax(-2, 3, clip=True)],
    [Robust()],
    [Robust(0.1, 0.6)],
    [Log1p()],
    [Log1p(signed=True)],
    [Clip(-1, 2.5)],
    [Clip(0, None)],
    [Clip(quantiles=(0.1, 0.9))],
    [Impute("mean"), Standardize()],
    [Impute("median", indicator=True), Clip(0, 10), Log1p()],
    [Standardize(), Impute(0.5, indicator=True)],
    [Impute("most_frequent"), MinMax()],
    [Log1p(), Impute("mean", indicator=True)],
    [Clip(quantiles=(0.01, 0.99)), Log1p(signed=True), Standardize()],
    [Standardize(), Clip(0, 1), Log1p(signed=True), MinMax(-1, 1)],
    [Bucketize([-1.5, 0, 12])],
    [Bucketize(quantiles=3)],
    [Log1p(signed=True), Bucketize(quantiles=4)],
    [Impute(-7), Bucketize([-7, 7])],
]
EXTREMES = [
    *(0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1.7976931348623157e308, -1.7976931348623157e308),
    *(math.inf, -math.inf, math.nan, 3.4028235677973366e38, 1e-46, -1.0, -1.0000000000000002, 0.1, 2.0**53 + 2),
]
FLOATS = st.sampled_from(EXTREMES) | st.floats() | st.floats(-20, 20)


@EACH
@given(st.data(), st.sampled_from(["float32", "float64"]))
def test_numbers(data: st.DataObject, dtype: Any) -> None:
    seen = data.draw(st.lists(st.none() | FLOATS, min_size=1, max_size=12))
    rows = data.draw(st.lists(st.none() | FLOATS, min_size=1, max_size=6))
    table = pa.table({"x": pa.array([None, *seen], pa.float64())})
    prep = Preprocess({"x": {str(i): chain for i, chain in enumerate(NUMBERS)}}, dtype=dtype).fit(table)
    for value in rows:
        agree(prep, {"x": value}, {"x": pa.float64()})


@EACH
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), min_size=1, max_size=9), st.data())
def test_whole_numbers(seen: list[int], data: st.DataObject) -> None:
    chains = {
        "standard": [Standardize()],
        "bucket": [Bucketize(quantiles=2)],
        "known": Categorize(),
        "three": Categorize(unknown_ids=3, min_count=2, order="value"),
        "null": Categorize(nulls="category", max_size=2),
        "hash": Hash(100, seed=3),
        "filled": [Impute("most_frequent", indicator=True), Categorize()],
        "kept": [Impute(5)],
    }
    prep = Preprocess({"x": chains}).fit(pa.table({"x": pa.array([None, *seen], pa.int64())}))
    value = data.draw(st.none() | st.sampled_from(seen) | st.integers(-(2**63), 2**63 - 1))
    agree(prep, {"x": value}, {"x": pa.int64()})
    for scalar in (np.int64, np.array, torch.tensor):
        if value is not None:
            assert prep({"x": scalar(value)}) == prep({"x": value})


OF_ONE_NUMBER = [5, 5.0, True, Decimal(5), np.int8(5), np.uint64(5), np.float32(5), np.float16(5), np.array(5)]
MISSING = [None, math.nan, np.nan, np.float32("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("nan")]


def test_scalars_of_all_libraries() -> None:
    table = pa.table({"x": [5, 5, 1, None], "y": [1.5, 2.5, None, 5.0]})
    spec: Any = {"x": {"id": Categorize(), "hash": Hash(50)}, "y": [Impute("mean", indicator=True), Standardize()]}
    prep = Preprocess(spec).fit(table)
    five, missing = prep({"x": 5, "y": 5.0}), prep({"x": None, "y": None})
    assert [five["id"], missing["id"], missing["hash"], missing["y_missing"]] == [2, 0, 0, 1.0]
    for value in [*OF_ONE_NUMBER, torch.tensor(5), torch.tensor(5.0)]:
        expected = prep({"x": 1, "y": 1.0}) if value is True else five
        assert prep({"x": value, "y": value}) == expected
    for value in MISSING:
        assert prep({"x": value, "y": value}) == missing
    assert prep({"x": 1, "y": 10**400})["y"] == math.inf


@pytest.mark.parametrize(
    "value", ["5", b"5", [5], np.array([5]), dt.date(2020, 1, 1), {"a": 1}, object(), 1j, dt.timedelta(1)]
)
def test_other_values_than_numbers(value: Any) -> None:
    table = pa.table({"one": [1, 2], "x": [1, 2], "y": [1.0, 2.0]})
    for column, chain in (("x", Categorize()), ("x", Hash(9)), ("y", Standardize()), ("y", Impute(1.0))):
        prep = Preprocess({"one": Keep(), column: chain}).fit(table)
        with pytest.raises(UnsupportedTypeError, match=f"column '{column}' holds"):
            prep({"one": 1, column: value})


TEXTS = st.text(max_size=4) | st.sampled_from(["", "Zürich", "\0", "a" * 300])


@EACH
@given(st.lists(st.none() | TEXTS, min_size=1, max_size=9), st.none() | TEXTS)
def test_text_and_bytes(seen: list[str | None], value: str | None) -> None:
    spec: Any = {
        "c": {
            "known": Categorize(),
            "two": Categorize(unknown_ids=2, min_count=2),
            "null": Categorize(nulls="category"),
            "strict": Categorize(unknown="error"),
            "hash": Hash(2**31),
            "filled": [Impute("most_frequent", indicator=True), Hash(100)],
            "text": Impute("nothing"),
        }
    }
    if not any(text is not None for text in seen):
        del spec["c"]["filled"]
    for text in (True, False):
        type_ = pa.string() if text else pa.binary()
        if not text:
            del spec["c"]["text"]
        of = [item if item is None or text else item.encode() for item in (*seen, value)]
        prep = Preprocess(spec).fit(pa.table({"c": pa.array(of[:-1], type_)}))
        for item in dict.fromkeys(of):
            agree(prep, {"c": item}, {"c": type_})


def test_text_is_no_bytes() -> None:
    prep = Preprocess({"c": Categorize(), "b": Hash(9)}).fit(pa.table({"c": ["a"], "b": [b"a"]}))
    row = {"c": np.str_("a"), "b": np.bytes_(b"a")}
    assert prep(row) == prep({"c": "a", "b": b"a"}) == prep({"c": "a", "b": bytearray(b"a")})
    for wrong in ({"c": b"a"}, {"b": "a"}, {"c": 1}, {"b": 1.5}, {"b": ["a"]}, {"c": "\ud800"}):
        with pytest.raises(UnsupportedTypeError, match="this Preprocess was fitted on"):
            prep({"one": 1, **row, **wrong})


WALL_CLOCKS = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
DATES = st.dates(dt.date(1700, 1, 1), dt.date(2300, 1, 1))


@EACH
@given(st.lists(st.none() | DATES, min_size=1, max_size=6), st.none() | DATES)
def test_dates(seen: list[dt.date | None], value: dt.date | None) -> None:
    parts = DateParts("hour", "weekday", "month", "day", "dayofyear", "year")
    spec = {"d": {"parts": parts, "known": Categorize(), "hash": Hash(99), "cyclic": DateParts("month", cyclic=True)}}
    prep = Preprocess(spec).fit(pa.table({"d": pa.array(seen, pa.date32())}))
    for day in (value, *seen):
        agree(prep, {"d": day}, {"d": pa.date32()})
        if day is not None:
            assert prep({"d": np.datetime64(day)}) == prep({"d": day})
            with pytest.raises(UnsupportedTypeError, match="fitted on date"):
                prep({"d": dt.datetime(day.year, day.month, day.day)})


TIMES = DateParts("hour", "minute", "second", "weekday", "month", "day", "dayofyear", "year")


@EACH
@example([], dt.datetime(1969, 12, 31, 23, 59, 59, 999999), "float32")
@given(st.lists(st.none() | WALL_CLOCKS, max_size=5), st.none() | WALL_CLOCKS, st.sampled_from(["float32", "float64"]))
def test_wall_clock(seen: list[dt.datetime | None], value: dt.datetime | None, dtype: Any) -> None:
    cyclic = DateParts("hour", "dayofyear", cyclic=True)
    spec = {"t": {"parts": TIMES, "cyclic": cyclic, "known": Categorize(), "hash": Hash(99)}}
    prep = Preprocess(spec, dtype=dtype).fit(pa.table({"t": pa.array([None, *seen], pa.timestamp("us"))}))
    for each in (value, *seen):
        agree(prep, {"t": each}, {"t": pa.timestamp("us")})
        if each is not None:
            moment = pd.Timestamp(each) if 1700 < each.year < 2200 else each
            assert prep({"t": np.datetime64(each)}) == prep({"t": moment}) == prep({"t": each})
            with pytest.raises(UnsupportedTypeError, match="fitted on timestamp"):
                prep({"t": each.replace(tzinfo=dt.UTC)})


ZONES = [BERLIN, "America/New_York", "Australia/Lord_Howe", "+05:30", "UTC", "Africa/Casablanca"]
INSTANTS = WALL_CLOCKS | st.sampled_from(
    [dt.datetime(2021, 10, 31, 0, 30), dt.datetime(2021, 10, 31, 1, 30), dt.datetime(2099, 7, 1)]
)


@EACH
@given(st.data())
def test_instants(data: st.DataObject) -> None:
    zone, other = data.draw(st.sampled_from(ZONES)), data.draw(st.sampled_from(ZONES))
    seen = [moment.replace(tzinfo=dt.UTC) for moment in data.draw(st.lists(INSTANTS, max_size=5))]
    value = data.draw(INSTANTS).replace(tzinfo=dt.UTC)
    chains: dict[str, Any] = {"own": TIMES, "there": DateParts("hour", "weekday", zone=BERLIN)}
    spec = {"t": {**chains, "known": Categorize(), "hash": Hash(99)}}
    prep = Preprocess(spec).fit(pa.table({"t": pa.array([None, *seen], pa.timestamp("us", zone))}))
    for each in (value, *seen):
        for name in (zone, other):  # the same instant, whatever the zone in which it is given
            agree(prep, {"t": each.astimezone(zone_named(name))}, {"t": pa.timestamp("us", name)})
        with pytest.raises(UnsupportedTypeError, match="fitted on zoned"):
            prep({"t": each.replace(tzinfo=None)})
    assert prep({"t": value})["own_hour"] == value.astimezone(zone_named(zone)).hour + 1


def test_an_hour_that_occurs_twice() -> None:
    """Python says that 2:30 before and after clocks are turned back are equal; as ids they are not."""
    first = dt.datetime(2021, 10, 31, 2, 30, tzinfo=ZoneInfo(BERLIN))
    second = first.replace(fold=1)
    assert first == second
    prep = Preprocess({"t": Categorize(order="value")})
    prep.fit(pa.table({"t": pa.array([first, second], pa.timestamp("us", BERLIN))}))
    assert [prep({"t": first}), prep({"t": second})] == [{"t": 2}, {"t": 3}]
    assert prep(pa.table({"t": pa.array([first, second])})).to_pydict() == {"t": [2, 3]}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_units_of_time(unit: Any) -> None:
    moments = pa.array([0, 1, 10**9 + 7, None], pa.timestamp(unit))
    prep = Preprocess({"t": {"known": Categorize(), "hash": Hash(9999)}}).fit(pa.table({"t": moments}))
    expected = prep(pa.table({"t": moments})).to_pylist()
    assert sorted(row["known"] for row in expected) == [0, 2, 3, 4]
    for number, row in zip([0, 1, 10**9 + 7], expected, strict=False):
        assert prep({"t": np.datetime64(number, unit)}) == row
        assert prep({"t": pd.Timestamp(number, unit=unit)}) == row
    unknown = np.datetime64(10**18 + 1, "ns")
    assert prep({"t": unknown}) == prep(pa.table({"t": np.array([unknown])})).to_pylist()[0]


@EACH
@given(st.lists(st.none() | st.lists(st.none() | FLOATS, max_size=3), max_size=4), st.data())
def test_lists(seen: list[list[float | None] | None], data: st.DataObject) -> None:
    texts = st.lists(st.none() | st.sampled_from("abc"), max_size=3)
    tags = [["a", None], *data.draw(st.lists(st.none() | texts, max_size=3))]
    table = pa.table({"x": pa.array([*seen, [1.0]], pa.list_(pa.float64()))})
    prep = Preprocess({"x": {"y": [Impute("mean"), Standardize()], "z": Bucketize([0, 1])}}).fit(table)
    given_tags = Preprocess({"t": {"id": Categorize(), "hash": Hash(50)}})
    given_tags.fit(pa.table({"t": pa.array(tags, pa.list_(pa.string()))}))
    for value in (None, math.nan, pd.NA, [], [None], *seen, data.draw(st.lists(FLOATS, max_size=3))):
        row = None if not isinstance(value, list) else value
        agree(prep, {"x": row}, {"x": pa.list_(pa.float64())})
        assert repr(prep({"x": value})) == repr(prep({"x": row}))
        if row:
            assert repr(prep({"x": np.array(row, np.float64)})) == repr(prep({"x": row}))
            assert repr(prep({"x": tuple(row)})) == repr(prep({"x": row}))
    for value in (None, ["d", "a"], *tags):
        agree(given_tags, {"t": value}, {"t": pa.list_(pa.string())})


def test_lists_of_one_size() -> None:
    type_ = pa.list_(pa.float32(), 2)
    table = pa.table({"v": pa.array([[1, 2], [3, None], None], type_)})
    prep = Preprocess({"v": [Impute("mean"), Standardize()]}).fit(table)
    for value in ([1.0, 2.0], [None, 5.0], None):
        agree(prep, {"v": value}, {"v": type_})
    for value in ([1.0], [1.0, 2.0, 3.0], 5.0, "ab", {"a": 1}):
        with pytest.raises(UnsupportedTypeError, match="column 'v' holds"):
            prep({"v": value})


@EACH
@given(
    st.lists(st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(0, 3)), min_size=1, max_size=8),
    st.tuples(st.none() | st.sampled_from("abcd"), st.none() | st.integers(0, 4)),
)
def test_crosses(seen: list[tuple[str | None, int | None]], value: tuple[str | None, int | None]) -> None:
    types: dict[str, pa.DataType] = {"a": pa.string(), "b": pa.int32()}
    columns = {name: pa.array([row[i] for row in seen], type_) for i, (name, type_) in enumerate(types.items())}
    for of in (Hash(1000), Categorize(), Categorize(unknown_ids=5, min_count=2)):
        prep = Preprocess({("a", "b"): Cross(of)}).fit(pa.table(columns))
        for a, b in (value, *seen):
            agree(prep, {"a": a, "b": b}, types)


def test_bools_and_numbers_beyond_int64() -> None:
    prep = Preprocess({"b": {"id": Categorize(), "x": Standardize()}}).fit(pa.table({"b": [True, True, False, None]}))
    for value in (True, False, None):
        agree(prep, {"b": value}, {"b": pa.bool_()})
    large = 2**63 + 2**11
    prep = Preprocess({"u": Categorize([1, large])}).fit(pa.table({"u": pa.array([1], pa.uint64())}))
    for number in (1, large, 2**63, None):
        agree(prep, {"u": number}, {"u": pa.uint64()})
    for whole in (1.0, float(large), -1.0):
        agree(prep, {"u": whole}, {"u": pa.float64()})
    agree(prep, {"u": -1}, {"u": pa.int64()})


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Africa/Casablanca", "Asia/Kathmandu", "-03:30"])
def test_offsets_are_those_of_zoneinfo(name: str) -> None:
    rng = np.random.default_rng(0)
    seconds = np.concatenate([rng.integers(-4 * 10**9, 8 * 10**9, 2000), [-62_135_500_000, 253_402_200_000]])
    zone = zone_named(name)
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    moments = [(epoch + dt.timedelta(seconds=int(each))).astimezone(zone) for each in seconds]
    expected = [int((moment.utcoffset() or dt.timedelta()).total_seconds()) for moment in moments]
    assert offsets(seconds, name).tolist() == expected


def test_missing_columns_are_all_named_and_kept_ones_may_be_absent() -> None:
    table = pa.table({"a": [1.0], "b": [2.0], "c": ["x"], "label": [1]})
    prep = Preprocess({"a": Standardize(), "b": Standardize(), "c": Categorize(), "label": Keep()}).fit(table)
    with pytest.raises(ColumnNotFoundError, match=r"no columns \['a', 'c'\]"):
        prep({"b": 1.0})
    row = {"a": 1.0, "b": 2.0, "c": "x"}
    assert list(prep(row)) == ["a", "b", "c"]
    kept = object()
    assert prep({**row, "label": kept})["label"] is kept
    assert row == {"a": 1.0, "b": 2.0, "c": "x"}


def wide() -> tuple[Preprocess, dict[str, Any]]:
    """10 numbers of 2 or 3 links and 10 categories, and a row of them."""
    rng = np.random.default_rng(0)
    numbers = {f"n{i}": rng.normal(size=200) for i in range(10)}
    texts = {f"c{i}": rng.choice(["a", "b", "c", "d"], 200) for i in range(10)}
    chains: list[Any] = [
        [Impute("median"), Standardize()],
        [Clip(quantiles=(0.01, 0.99)), Log1p(signed=True), MinMax()],
    ]
    spec: dict[str, Any] = {name: chains[i % 2] for i, name in enumerate(numbers)}
    prep = Preprocess({**spec, **{name: Categorize() for name in texts}}).fit(pa.table({**numbers, **texts}))
    return prep, {name: values[0].item() for name, values in {**numbers, **texts}.items()}


def test_one_row_needs_numpy_alone(tmp_path: Path) -> None:
    prep, row = wide()
    now = dt.datetime(2024, 2, 3, 4, tzinfo=dt.UTC)
    others: Any = {"when": DateParts("hour", zone=BERLIN), ("c0", "c1"): Cross(Hash(50)), "tags": Categorize()}
    table = pa.table({"when": [now], "tags": [["x"]], "c0": ["a"], "c1": ["b"]})
    other = Preprocess(others).fit(table)
    prep.save(tmp_path / "prep.json")
    other.save(tmp_path / "other.json")
    code = f"""
import datetime, sys
from torch_dataloader_utils.preprocess import Preprocess
one = Preprocess.load({str(tmp_path / "prep.json")!r})({row!r})
two = Preprocess.load({str(tmp_path / "other.json")!r})({{"c0": "a", "c1": "b", "tags": ["x"], "when": {now!r}}})
assert not {{"pyarrow", "torch", "pandas", "fsspec", "polars"}} & set(sys.modules), sorted(sys.modules)
print(one, two)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    expected = other({"c0": "a", "c1": "b", "tags": ["x"], "when": now})
    assert done.stdout == f"{prep(row)} {expected}\n"
