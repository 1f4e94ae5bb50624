"""`tdu stats` and `tdu fit`: figures, the page, the spec, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.preprocess import Preprocess
from torch_dataloader_utils.preprocess.statistics import statistics


def test_stats_are_those_of_the_rows_that_are_read(tdu):
    rows = ("--filters", '[["id", ">=", 100]]', "--columns", "id,age,city")
    found = tdu.json("stats", "data", *rows)
    expected = statistics("data", filters=[("id", ">=", 100)], columns=["id", "age", "city"])
    assert found["rows"] == 700
    assert found == {**expected.to_dict(), "name": "data"} | {"name": found["name"]}
    shown = tdu("stats", "data", *rows)
    assert "700 rows, 3 columns" in shown
    assert "Lima (50%)" in shown
    assert "Preprocess({" in shown


def test_stats_write_a_page_and_a_spec_that_fit_takes(tdu):
    tdu("stats", "data", "--html", "stats.html", "--spec", "spec.yaml")
    assert "wrote stats.html" in tdu.done.stderr
    assert "tdu fit --spec spec.yaml" in tdu.done.stderr
    assert Path("stats.html").read_text().startswith("<!doctype html>")
    made = tdu.json("fit", "data", "--spec", "spec.yaml", "-o", "prep.json")
    prep = Preprocess.load("prep.json")
    assert (made["digest"], made["outputs"]) == (prep.digest, prep.outputs)
    assert prep.digest == Preprocess(statistics("data").spec).fit("data").digest
    assert prep.digest in tdu("fit", "data", "--spec", "spec.yaml", "-o", "prep.json")
    assert tdu.json("fit", "data", "--spec", "spec.yaml", "-o", "b.json", "--dtype", "float64")["digest"] != prep.digest
    assert tdu.json("fit", "data", "--spec", "spec.yaml", "-o", "c.json", "--set", "limit=5")["digest"] != prep.digest
    assert made["quantile_errors"] == prep.quantile_errors()
    Path("robust.yaml").write_text("age: {kind: robust}")
    exact = tdu.json("fit", "data", "--spec", "robust.yaml", "-o", "d.json", "--quantiles", "exact")
    assert exact["quantile_errors"] == {"age": 0.0}


def test_stats_of_footers_read_no_rows(tdu):
    found = {column["name"]: column for column in tdu.json("stats", "data", "--footers")["columns"]}
    assert (found["id"]["min"], found["id"]["max"], found["age"]["missing"]) == (0, 799, 80)
    assert found["x"]["max"] is None
    shown = tdu("stats", "data", "--footers")
    assert "say nothing of NaN" in shown
    assert "distinct" not in shown
    assert "footers" in tdu.error("stats", "data", "--footers", "--filters", '[["id", ">=", 100]]')
    assert "--footers" in tdu.error("stats", "data", "--footers", "--spec", "spec.yaml")


def test_remarks_have_columns_as_they_are_called(tdu):
    pq.write_table(pa.table({"one": [1] * 9, "two": [2] * 9, "id": range(9)}), "constants.parquet")
    shown = tdu("stats", "constants.parquet")
    assert "! Constant (one, two)" in shown + tdu.done.stderr


def test_what_is_wrong_is_said_before_rows_are_read(tdu):
    Path("spec.yaml").write_text("age: {kind: standardize}\n")
    Path("list.yaml").write_text("- 1\n")
    Path("nope.yaml").write_text("age: {kind: standardise}\n")
    Path("gone.yaml").write_text("ages: {kind: standardize}\n")
    assert "in a folder that exists" in tdu.error("fit", "data", "--spec", "spec.yaml", "-o", "no/prep.json")
    assert "expected columns" in tdu.error("fit", "data", "--spec", "list.yaml", "-o", "prep.json")
    assert "standardise" in tdu.error("fit", "data", "--spec", "nope.yaml", "-o", "prep.json")
    assert "ages" in tdu.error("fit", "data", "--spec", "gone.yaml", "-o", "prep.json")
    assert "float32" in tdu.error("fit", "data", "--spec", "spec.yaml", "-o", "prep.json", "--dtype", "int8")
    assert "expected 'exact'" in tdu.error("fit", "data", "--spec", "spec.yaml", "-o", "p.json", "--quantiles", "often")
    assert "there is no folder" in tdu.error("stats", "data", "--html", "no/stats.html")
    assert "there is no folder" in tdu.error("stats", "data", "--spec", "no/spec.yaml")


def test_fit_updates_a_saved_one(tdu):
    Path("spec.yaml").write_text("age: {kind: standardize}\ncity: {kind: categorize}\n")
    fit = ("fit", "data", "--spec", "spec.yaml", "-o", "prep.json")
    tdu(*fit)
    before = Preprocess.load("prep.json")
    more = pa.table({"age": [50, None, 99], "city": ["Rome", "Oslo", "Rome"]})
    pq.write_table(more, "more.parquet")
    shown = tdu("fit", "more.parquet", "--update", "prep.json", "-o", "prep2.json")
    after = Preprocess.load("prep2.json")
    assert after.digest == before.fit("more.parquet", update=True).digest
    assert after.digest in shown + tdu.done.stderr
    assert "city has 1 more id" in shown + tdu.done.stderr
    found = tdu.json("fit", "more.parquet", "--update", "prep.json", "--only-ids", "-o", "prep3.json")
    assert (found["generation"], found["grown"]) == (1, {"city": 1})
    assert Preprocess.load("prep3.json").parameters("age") == Preprocess.load("prep.json").parameters("age")
    tdu("fit", "more.parquet", "--update", "prep2.json", "-o", "prep2.json")
    assert Preprocess.load("prep2.json").generation == 2
    for options, problem in {
        (): "expected --spec FILE",
        ("--spec", "spec.yaml", "--update", "prep.json"): "expected --spec FILE",
        ("--update", "none.json"): "there is no such file",
        ("--update", "prep.json", "--dtype", "float32"): "--dtype",
        ("--spec", "spec.yaml", "--only-ids"): "--only-ids",
    }.items():
        assert problem in tdu.error("fit", "more.parquet", *options, "-o", "prep4.json")
    assert not Path("prep4.json").exists()
