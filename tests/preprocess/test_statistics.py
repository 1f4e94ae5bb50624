"""Statistics of columns: right, the same for any cut of the rows, and with a spec that fits."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_dataloader_utils as tdu
from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError
from torch_dataloader_utils.preprocess import Preprocess, Robust, Standardize
from torch_dataloader_utils.preprocess.grid import Grid
from torch_dataloader_utils.preprocess.statistics import StatisticsScan, statistics, statistics_of

NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, 2.0])
WORDS = st.none() | st.sampled_from(["", "a", "b", "é", "\U0001f600", "a" * 300])
INTS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


def varied(rows: int = 1000) -> pa.Table:
    """A column of each kind, and of each kind of remark."""
    rng = np.random.default_rng(0)
    mask = rng.random(rows) < 0.2
    text = rng.choice(["Oslo", "Lima", "Bern"], rows, p=[0.6, 0.3, 0.1])
    return pa.table(
        {
            "age": pa.array(rng.normal(40, 10, rows), mask=mask),
            "income": rng.lognormal(10, 1, rows),
            "debt": rng.lognormal(10, 1, rows) - 1000,
            "endless": np.where(mask, np.inf, rng.normal(size=rows)),
            "city": pa.array(text, mask=mask),
            "encoded": pa.array(text, mask=mask).dictionary_encode(),
            "hour": rng.integers(0, 24, rows),
            "kind": pa.array(rng.integers(0, 5, rows).astype(float), mask=mask),
            "uuid": pa.array([f"u{i}" for i in range(rows)]),
            "user_id": rng.integers(0, rows // 3, rows),
            "huge": pa.array(rng.integers(0, 2**63, rows).astype(np.uint64) * 2),
            "raw": pa.array([b"\xff", b"a"] * (rows // 2)),
            "one": pa.array([1] * rows),
            "gone": pa.array([None] * rows, pa.float32()),
            "rare": pa.array([None] * (rows - 2) + [1.5, 2.5]),
            "flag": pa.array(rng.random(rows) < 0.3),
            "doubt": pa.array(rng.random(rows) < 0.3, mask=mask),
            "day": pa.array(rng.integers(0, 20_000, rows).astype(np.int32), pa.date32()),
            "when": pa.array(rng.integers(0, 2**31, rows), pa.timestamp("s")),
            "zoned": pa.array(rng.integers(0, 2**31, rows), pa.timestamp("us", "Europe/Oslo")),
            "nano": pa.array(rng.integers(0, 2**61, rows), pa.timestamp("ns")),
            "clock": pa.array(rng.integers(0, 86_400, rows), pa.time64("us")),
            "price": pa.array([i / 4 for i in range(rows)]).cast(pa.decimal128(12, 2)),
            "tags": pa.array([["p", "q"][: i % 3] if i % 5 else None for i in range(rows)]),
            "seen": pa.array([[i % 3, None] for i in range(rows)]),
            "waves": pa.array([[i / 7] * (i % 3) for i in range(rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=4 * rows)), 4),
            "inner": pa.array([{"a": 1}] * rows),
            "'\"*?[x]\n": pa.array(rng.normal(size=rows)),
            "label": rng.integers(0, 2, rows),
        }
    )


@pytest.fixture(scope="module")
def found():
    return statistics(varied())


def test_figures_are_those_that_a_fit_learns(found):
    table = varied()
    for name in ("age", "income", "hour", "endless"):
        prep = Preprocess({name: {"s": Standardize(), "r": Robust()}}).fit(table)
        column, robust = found[name], prep.parameters("r")
        assert {"mean": column.mean, "std": column.std} == prep.parameters("s")
        assert column.quantiles[0.5] == robust["median"]
        assert column.quantiles[0.75] - column.quantiles[0.25] == robust["range"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NUMBERS, WORDS, INTS)), st.integers(1, 4), st.randoms())
def test_any_cut_order_and_merge_gives_the_same_and_right_figures(rows, parts, random):
    schema = pa.schema([("x", pa.float64()), ("w", pa.string()), ("i", pa.int64())])
    expected = {item.name: [row[place] for row in rows] for place, item in enumerate(schema)}
    whole = StatisticsScan(schema)
    whole.add(pa.table(expected, schema))
    scans = [StatisticsScan(schema) for _ in range(parts)]
    random.shuffle(rows)
    for row in rows:
        one = {item.name: [row[place]] for place, item in enumerate(schema)}
        random.choice(scans).add(pa.table(one, schema))
    merged = StatisticsScan(schema)
    for scan in scans:
        merged.merge(pickle.loads(pickle.dumps(scan)))
    made = statistics_of(merged, "")
    assert made.to_dict() == statistics_of(whole, "").to_dict()
    _check_numbers(made["x"], expected["x"])
    _check_counts(made["w"], [value for value in expected["w"] if value is not None])
    ints = [value for value in expected["i"] if value is not None]
    assert (made["i"].min, made["i"].max) == (min(ints, default=None), max(ints, default=None))
    assert (made["i"].distinct, made["i"].distinct_exact) == (len(set(ints)), True)


def _check_numbers(column, values):
    there = [value for value in values if value is not None and not math.isnan(value)]
    finite = [value for value in there if math.isfinite(value)]
    assert column.missing == len(values) - len(there)
    assert column.infinite == len(there) - len(finite)
    assert (column.min, column.max) == (min(finite, default=None), max(finite, default=None))
    assert column.distinct == len(set(there))
    assert sum(column.histogram.counts) == len(finite) if finite else column.histogram is None
    _check_counts(column, there)


def _check_counts(column, there):
    order = sorted(Counter(there).items(), key=lambda item: (-item[1], _bytes(item[0])))
    assert list(column.top or ()) == order[:10]


def _bytes(value):
    return value.encode() if isinstance(value, str) else value


def test_values_of_each_kind_have_their_ends(found):
    table = varied()
    for name in ("city", "encoded", "hour", "huge", "raw", "flag", "day", "when", "clock", "age", "zoned"):
        values = [value for value in table[name].to_pylist() if value is not None]
        assert (found[name].min, found[name].max) == (min(values), max(values)), name
        assert (found[name].distinct, found[name].nulls) == (len(set(values)), table[name].null_count), name
    assert isinstance(found["when"].quantiles[0.5], dt.datetime)
    assert found["encoded"].top == found["city"].top
    assert (found["tags"].missing, found["tags"].lengths) == (200, (0, 0.99875, 2))
    assert found["vector"].values == 4000
    assert found["inner"].distinct is None


def test_many_values_are_estimated_in_any_order():
    many, few = Grid.limit + 1000, Grid.limit
    rng = np.random.default_rng(0)
    for count in (many, few):
        places = rng.permutation(np.repeat(np.arange(count), 2))
        table = pa.table({"t": pa.array(places).cast(pa.string()), "x": places / 7, "i": places})
        made, turned = statistics(table), statistics(table.take(np.arange(len(table))[::-1]))
        assert made.to_dict() == turned.to_dict()
        for column in made.columns:
            assert column.distinct_exact == (count == few)
            assert abs(column.distinct / count - 1) < 0.06 * (count == many) + 1e-12
            assert (column.top is None) == (count == many)


def test_remarks(found):
    said = {column.name: " ".join(column.remarks) for column in found.columns if column.remarks}
    expected = {
        "income": "skewed", "debt": "skewed", "endless": "infinite", "kind": "stored as floats", "uuid": "an id",
        "huge": "an id", "one": "constant", "gone": "all missing", "rare": "100% missing", "seen": "missing values",
        "inner": "not counted",
    }  # fmt: skip
    assert set(said) == set(expected)
    for name, words in expected.items():
        assert words in said[name], name


def test_the_spec_fits_as_python_and_as_yaml(found):
    names: dict[str, object] = {}
    exec(found.spec_text, names)
    prep = names["prep"].fit(varied())  # type: ignore[attr-defined]
    assert prep.digest == Preprocess(found.spec).fit(varied()).digest
    assert prep.digest == Preprocess(yaml.safe_load(found.spec_yaml)).fit(varied()).digest
    made = prep(varied())
    assert not any(made[name].null_count for name in prep.numeric + prep.categorical)
    assert np.isfinite(made["endless"].to_numpy()).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NUMBERS, WORDS, INTS), min_size=1, max_size=300))
def test_the_spec_of_any_rows_fits_them(rows):
    columns = [list(column) for column in zip(*rows, strict=True)]
    types = (pa.float64(), pa.string(), pa.int64())
    arrays = {name: pa.array(column, type_) for name, column, type_ in zip("xwi", columns, types, strict=True)}
    table = pa.table({**arrays, "lists": pa.array([[value] for value in columns[0]], pa.list_(pa.float64()))})
    Preprocess(statistics(table).spec).fit(table)(table)


def test_all_is_json_and_prints_what_the_data_hold_without_obeying_it(found):
    json.dumps(found.to_dict(), allow_nan=False)
    text = str(found)
    share = varied()["city"].to_pylist().count("Oslo") / 1000
    assert f"Oslo ({share:.0%})" in text
    assert "█" in text
    risky = statistics(pa.table({"<b>\x1b[31m": ["<script>alert(1)</script>\x1b[2J"] * 3}))
    assert "\x1b" not in str(risky)
    for page in (risky.to_html(), risky._repr_html_()):
        assert "\x1b" not in page
        assert "<script>alert" not in page
        assert "<b>\\" not in page


def test_a_loader_counts_the_rows_that_it_reads(tmp_path):
    table = varied().select(["age", "city", "hour"])
    for number in range(4):
        pq.write_table(table.slice(250 * number, 250), tmp_path / f"{number}.parquet", row_group_size=100)
    loader = tdu.stream(
        str(tmp_path), filters=[("hour", ">", 5)], batch_size=7, nulls="mask", shuffle=True, num_ranks=2, rank=1
    )
    rows = table.filter(pa.compute.greater(table["hour"], 5))
    made = loader.statistics()
    assert {**made.to_dict(), "name": ""} == statistics(rows).to_dict()
    assert made.name == str(tmp_path)
    assert [column.name for column in loader.dataset.statistics(["city"]).columns] == ["city"]
    limited = statistics(str(tmp_path), limit=300)
    assert {**limited.to_dict(), "name": ""} == statistics(table.slice(0, 300)).to_dict()
    with pytest.raises(ColumnNotFoundError, match=r"\['no', 'none'\]"):
        loader.statistics(["no", "city", "none"])
    with pytest.raises(EmptyDatasetError):
        statistics(table.slice(0, 0))
    with pytest.raises(OptionError, match=r"statistics\(\.\.\., limit=\)"):
        statistics(table, limit=3)


def test_footers_say_what_they_know_and_no_more(tmp_path):
    table = varied().select(["age", "city", "hour", "when", "tags"])
    pq.write_table(table.slice(0, 500), tmp_path / "a.parquet", row_group_size=100)
    pq.write_table(table.slice(500), tmp_path / "b.parquet")
    whole, made = statistics(str(tmp_path)), statistics(str(tmp_path), footers=True)
    assert (made.rows, made.spec) == (1000, {})
    for name in ("hour", "when"):
        for known in ("min", "max", "missing"):
            assert getattr(made[name], known) == getattr(whole[name], known)
    assert (made["city"].missing, made["city"].min, made["city"].distinct) == (whole["city"].missing, None, None)
    assert (made["age"].nulls, made["age"].missing) == (whole["age"].nulls, None)
    assert made["tags"].missing is None
    assert "say nothing" in str(made)
    assert "say nothing" in made.to_html()
    for options in ({"filters": [("age", ">", 3)]}, {"limit": 10}, {"fraction": 0.5}):
        with pytest.raises(OptionError, match="footers"):
            statistics(str(tmp_path), footers=True, **options)
    with pytest.raises(OptionError, match="no footers"):
        statistics(table, footers=True)


def test_rows_in_memory_are_counted_without_a_source():
    frame = pd.DataFrame({"x": [1.0, None, 3.0], "t": ["a", None, "a"]})
    made = statistics(frame)
    assert (made["x"].missing, made["x"].mean, made["t"].top) == (1, 2.0, (("a", 2),))


def test_several_sources_and_fields_of_structs_are_counted(tmp_path):
    table = pa.table({"x": [1, 2], "s": [{"a": 5}, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    made = statistics([table, str(tmp_path), table.to_pandas()], columns=["x", "s.a"])
    assert (made.rows, made["x"].top, made["s.a"].nulls) == (6, ((1, 3), (2, 3)), 3)
    assert statistics(table, columns=["s.a"])["s.a"].mean == 5.0
    with pytest.raises(OptionError, match="lists of sources"):
        statistics([table, table], footers=True)


def test_a_loader_imports_the_feature_when_it_is_asked():
    code = "import sys, torch_dataloader_utils.loader.loader; print('torch_dataloader_utils.preprocess' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
