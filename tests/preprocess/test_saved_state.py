"""What an update goes on from, in files: left out, of earlier versions, missing, exchanged, damaged, contradicting."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.preprocess import golden
from tests.preprocess.test_saved import at, leaves, resigned
from tests.preprocess.test_update import Longest, numbers, same
from torch_dataloader_utils.errors import DataLoaderUtilsError, OptionError, SavedPreprocessError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    Impute,
    Preprocess,
    Robust,
    Standardize,
)
from torch_dataloader_utils.preprocess.saving import digest_of_bytes

EACH = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
ROWS = pa.table({
    "x": pa.array(np.random.default_rng(0).normal(size=99)),
    "text": pa.array([*("a" * 50), *map(str, range(48)), None]),
    "n": pa.array([*range(90), *[7] * 8, None]),
})  # fmt: skip
SPEC: dict[Any, Any] = {
    "x": {"x": [Impute("mean"), Standardize()], "robust": Robust(), "clipped": Clip(quantiles=(0.1, 0.9))},
    "text": {"text": Categorize(min_count=3), "longest": Longest()},
    "n": {"n": [Impute("most_frequent"), Categorize(max_size=3)], "filled": Impute("most_frequent")},
    ("text", "n"): Cross(Categorize(min_count=2)),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Preprocess(SPEC).fit(ROWS).save(tmp_path / "prep.json")
    return tmp_path / "prep.json"


def state_of(path: Path) -> Path:
    (found,) = path.parent.glob("*.state.*.parquet")
    return found


def updated(path: Path) -> Preprocess:
    return Preprocess.load(path).fit(ROWS, update=True)


def refused(path: Path, problem: str) -> None:
    """Check that loading, or else the update, names the problem, the file and a remedy."""
    with pytest.raises(SavedPreprocessError) as caught:
        updated(path)
    message = str(caught.value)
    assert re.search(problem, message), message
    assert path.name in message
    assert re.search("save|Save|copy|Load it from where it was saved", message), message


# What is saved, and what is not.


def test_what_an_update_needs_is_saved(saved: Path) -> None:
    content = json.loads(saved.read_text())
    counted = {each["name"]: each.get("counted") for each in content["outputs"]}
    assert set(counted["x"]["numbers"]) == {"missing", "below", "above", "finite", "sums"}
    assert re.fullmatch("-?[0-9a-f]+p[0-9]+", counted["x"]["numbers"]["sums"]["total"])
    assert counted["robust"]["numbers"]["grid"] == {"shift": 0, "cells": 99}
    assert counted["text"]["values"] == {"type": "large_string", "by_bits": False, "missing": 1, "rare": 48}
    assert counted["longest"] == {"first": 0, "own": [{"longest": 2}]}
    assert (content["generation"], content["parents"]) == (0, [])
    assert content["state"] == {"file": state_of(saved).name}
    same(updated(saved), Preprocess(SPEC).fit(ROWS).fit(ROWS, update=True))
    assert numbers(updated(saved)) == numbers(Preprocess(SPEC).fit([ROWS, ROWS]))


def test_one_fit_has_one_file(saved: Path, tmp_path: Path) -> None:
    """Of any order and cut of the rows: its name, which has its digest, is the same."""
    order = np.random.default_rng(1).permutation(len(ROWS))
    scan = Preprocess(SPEC).scan(ROWS.schema)
    for rows in (ROWS.take(pa.array(order)).slice(0, 40), ROWS.take(pa.array(order)).slice(40)):
        part = scan.part()
        part.add(rows)
        scan.merge(part)
    assert scan.finish() is None
    other = tmp_path / "other" / "prep.json"
    other.parent.mkdir()
    Preprocess(SPEC).learned(scan).save(other)
    assert state_of(other).name == state_of(saved).name
    assert other.read_bytes() == saved.read_bytes()


def test_it_can_be_left_out(saved: Path) -> None:
    prep = Preprocess.load(saved)
    before = saved.read_bytes()
    state_of(saved).unlink()
    prep_of_rows = Preprocess(SPEC).fit(ROWS)
    prep_of_rows.save(saved, state=False)
    assert not list(saved.parent.glob("*.state.*"))
    assert len(saved.read_bytes()) < len(before)
    loaded = Preprocess.load(saved)
    assert loaded.digest == prep.digest
    for update in (True, "ids"):
        with pytest.raises(OptionError, match=r"saved with state=False\. Load one that does, or fit all rows anew"):
            loaded.fit(ROWS, update=update)
    loaded.save(saved.parent / "again.json")
    with pytest.raises(OptionError, match=r"saved with state=False"):
        updated(saved.parent / "again.json")
    prep_of_rows.fit(ROWS, update=True)  # it has all itself
    with pytest.raises(OptionError, match="state"):
        prep_of_rows.save(saved, state="no")  # type: ignore[arg-type]


def test_files_of_earlier_versions_have_none_of_it() -> None:
    loaded = Preprocess.load(golden.SAVED)
    assert (loaded.generation, loaded.parents) == (0, [])
    with pytest.raises(OptionError, match="the version of torch-dataloader-utils that saved it kept none of it"):
        loaded.fit(golden.TABLE, update=True)


def test_golden_states_are_read_for_ever() -> None:
    """They go on as they did when they were written."""
    expected = json.loads(golden.GROWN_MADE.read_text())
    loaded = Preprocess.load(golden.GROWN)
    assert (loaded.digest, loaded.generation, loaded.parents) == (expected["digest"], 1, expected["parents"])
    loaded.fit(golden.MORE, update=True)
    assert loaded.digest == expected["updated"]
    assert golden.grown().fit(golden.MORE, update=True).digest == expected["updated"]
    assert {name: loaded.counts(name) for name in expected["counts"]} == expected["counts"]


def test_who_applies_reads_none_of_it(saved: Path, tmp_path: Path) -> None:
    """The file may be missing, and its reader is not even imported: nor is pyarrow, for one row."""
    state_of(saved).unlink()
    code = (
        "import sys\n"
        "from torch_dataloader_utils.preprocess import Preprocess, Standardize\n"
        f"print(Preprocess.load({str(tmp_path / 'numbers.json')!r})({{'x': 2.0, 'c': 'a'}}))\n"
        "assert 'torch_dataloader_utils.preprocess.state_file' not in sys.modules\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    rows = pa.table({"x": [1.0, 3.0], "c": ["a", "b"]})
    Preprocess({"x": Robust(), "c": Categorize(min_count=2)}).fit(rows).save(tmp_path / "numbers.json")
    for file in tmp_path.glob("numbers.*.parquet"):
        file.unlink()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "{'x': 0.0, 'c': 1}\n", done.stderr
    assert Preprocess.load(saved)(ROWS).num_rows == 99


def test_what_is_saved_again_is_as_it_was(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "name.json"
    other.parent.mkdir()
    Preprocess.load(saved).save(other)
    assert state_of(other).read_bytes() == state_of(saved).read_bytes()
    same(updated(other), updated(saved))
    state_of(saved).unlink()
    with pytest.raises(SavedPreprocessError, match="is missing beside it"):
        Preprocess.load(saved).save(other)
    Preprocess.load(saved).save(other, state=False)


def test_through_fsspec(caplog: pytest.LogCaptureFixture) -> None:
    memory = fsspec.filesystem("memory")
    Preprocess(SPEC).fit(ROWS).save("memory://states/prep.json")
    same(
        Preprocess.load("memory://states/prep.json").fit(ROWS, update=True),
        Preprocess(SPEC).fit(ROWS).fit(ROWS, update=True),
    )
    (file,) = memory.glob("/states/*.state.*.parquet")
    memory.rm_file(file)
    with pytest.raises(SavedPreprocessError, match="is missing beside it"):
        Preprocess.load("memory://states/prep.json").fit(ROWS, update=True)


def test_credentials_are_not_pickled(tmp_path: Path, saved: Path) -> None:
    import pickle

    prep = Preprocess.load(saved.as_uri(), storage_options={"anything": "hidden-secret"})
    assert b"hidden-secret" not in pickle.dumps(prep)
    assert "hidden-secret" not in repr(vars(prep))
    assert pickle.loads(pickle.dumps(prep)).fit(ROWS, update=True).generation == 1


# What is wrong with it.


def test_a_missing_or_exchanged_file(saved: Path) -> None:
    file = state_of(saved)
    data = file.read_bytes()
    for other in (data[:-1], data + b"x", data[:100] + b"?" + data[101:], b""):
        file.write_bytes(other)
        refused(saved, "not the one that was saved with it")
        assert Preprocess.load(saved)(ROWS.slice(0, 1)).num_rows == 1
    file.unlink()
    refused(saved, "is missing beside it: copy it there, too, or save it again")


def signed(saved: Path, data: bytes) -> None:
    """Put another file there, as one who knows the format would."""
    state_of(saved).write_bytes(data)
    content = json.loads(saved.read_text())
    content["files"][state_of(saved).name] = [len(data), digest_of_bytes(data)]
    saved.write_text(json.dumps(resigned(content, str(saved))))


def test_a_file_that_is_another(saved: Path) -> None:
    table = pq.read_table(state_of(saved))
    rewritten = saved.parent / "rewritten"

    def written(table: pa.Table) -> bytes:
        pq.write_table(table, rewritten)
        return rewritten.read_bytes()

    for data in (b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", state_of(saved).read_bytes()[:-9]):
        signed(saved, data)
        refused(saved, "what was counted is damaged")
    for other, problem in (
        (table, "other numbers of them"),  # in one row group
        (table.slice(0, 5), "other numbers of them"),
        (table.rename_columns(["a", "b", "c", "d", "e"]), "other columns"),
        (table.select(["number"]), "other columns"),
    ):
        signed(saved, written(other))
        refused(saved, f"what was counted is damaged.*{problem}")


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("count", 0, "counts are below 1|the count 0"),
        ("count", -5, "counts are below 1|the count -5"),
        ("count", None, "null|NaN|nan|None|int|float"),
        ("count", 2, "another number of values|alone|two ends"),
        ("least", float("nan"), "not finite|ascending"),
        ("least", 1e300, "above the greatest|ascending|outside"),
        ("greatest", -1e300, "above the greatest|outside"),
        ("bytes", b"a", "more than once|rare and has an id"),
        ("bytes", b"\xff", "UTF8|utf-8"),
        ("bytes", None, "null"),
        ("number", 7, "more than once|rare and has an id"),
        ("number", None, "null"),
    ],
)
def test_cells_and_values_that_were_never_counted(saved: Path, column: str, value: Any, problem: str) -> None:
    """One of each table that has the column."""
    source = pq.ParquetFile(state_of(saved))
    groups = [source.read_row_group(number) for number in range(source.num_row_groups)]
    source.close()
    tried = 0
    for place, group in enumerate(groups[: -1 if column == "number" else None]):  # any number may be a crossed hash
        own = {"bytes": "bytes", "number": "number", "least": "least", "greatest": "least", "count": "count"}[column]
        if group[own].null_count == len(group):
            continue
        changed = [value, *group[column].to_pylist()[1:]]
        at_column = group.schema.names.index(column)
        other = group.set_column(at_column, column, pa.array(changed, group.schema.types[at_column]))
        if other.equals(group) or (column == "count" and value == 2 and group["least"].null_count):
            continue  # rare values may be there twice
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, group.schema) as writer:
            for number, each in enumerate(groups):
                writer.write_table(other if number == place else each)
        signed(saved, sink.getvalue().to_pybytes())
        refused(saved, f"what was counted is damaged.*({problem})")
        tried += 1
    assert tried


@pytest.mark.parametrize(
    ("output", "change", "problem"),
    [
        (0, {"first": 1}, "are there|no link"),
        (0, {"first": 2}, "no link"),
        (0, {"first": -1}, "expected a whole number"),
        (0, {"numbers": None}, "NoneType"),
        (0, {"values": {"type": "int64", "by_bits": False, "missing": 0, "rare": 0}}, "are there"),
        (0, {"own": [1]}, "are there"),
        (
            3,
            {"values": {"type": "large_string", "by_bits": True, "missing": 1, "rare": 48}},
            "in another way",
        ),
        (3, {"values": {"type": "int64", "by_bits": False, "missing": 1, "rare": 48}}, "."),
        (3, {"values": {"type": "string", "by_bits": False, "missing": 1, "rare": 48}}, "counted as string"),
        (3, {"values": {"type": "large_string", "by_bits": 0, "missing": 1, "rare": 48}}, "counted as"),
        (3, {"values": {"type": "large_string", "by_bits": False, "missing": 1, "rare": 47}}, "other numbers of them"),
        (3, {"values": {"type": "large_string", "by_bits": False, "missing": -1, "rare": 48}}, "whole number"),
        (4, {"own": [1, 2]}, "are there"),
        (6, {"values": {"type": "int64", "by_bits": True, "missing": 1, "rare": 90}}, "in another way"),
        (5, {"values": {"type": "int64", "by_bits": False, "missing": 10**6, "rare": 87}}, "stands for more"),
    ],
)
def test_plain_values_that_contradict(saved: Path, output: int, change: dict[str, Any], problem: str) -> None:
    content = json.loads(saved.read_text())
    content["outputs"][output]["counted"].update(change)
    saved.write_text(json.dumps(resigned(content, str(saved))))
    refused(saved, f"what was counted is damaged.*{problem}")


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"generation": 1.5},
        {"generation": True},
        {"parents": "x"},
        {"parents": ["0" * 32]},
        {"generation": 1, "parents": ["x"]},
        {"generation": 1, "parents": [5]},
        {"state": None},
        {"state": {}},
        {"state": {"absent": "nothing"}},
        {"state": {"absent": []}},
        {"state": {"file": "../prep.json"}},
        {"state": {"file": ["x"]}},
    ],
)
def test_histories_that_no_update_makes(saved: Path, change: dict[str, Any]) -> None:
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps(resigned({**content, **change}, str(saved))))
    refused(saved, "does not hold what was saved")


def test_of_an_output_nothing_may_be_kept(saved: Path) -> None:
    content = json.loads(saved.read_text())
    del content["outputs"][0]["counted"]
    saved.write_text(json.dumps(resigned(content, str(saved))))
    with pytest.raises(OptionError, match="Fit all rows anew"):
        updated(saved)


def test_no_file_is_expected_where_there_is_nothing_for_it(tmp_path: Path) -> None:
    prep = Preprocess({"x": Standardize(), "text": Categorize()}).fit(ROWS)
    prep.save(tmp_path / "prep.json")
    assert [path.name for path in tmp_path.iterdir()] == ["prep.json"]
    assert Preprocess.load(tmp_path / "prep.json").fit(ROWS, update=True).counts("text") == [
        2 * count for count in prep.counts("text")
    ]


def test_tables_of_nothing_are_none(tmp_path: Path) -> None:
    """Of a column without numbers, there are no cells; of one without rare values, none of these."""
    rows = pa.table({"a": pa.nulls(3, pa.float64()), "b": [1.0, 2.0, 3.0], "c": ["x", "y", "x"]})
    spec: Any = {"a": Robust(), "b": {"b": Robust(), "c": Bucketize(quantiles=2)}, "c": Categorize(min_count=2)}
    fitted = Preprocess({**spec, "c": {"all": Categorize(max_size=9), "some": Categorize(min_count=2)}}).fit(rows)
    fitted.save(tmp_path / "prep.json")
    same(Preprocess.load(tmp_path / "prep.json").fit(rows, update=True), fitted.fit(rows, update=True))


@pytest.mark.parametrize(
    "type_",
    [
        pa.date32(),
        pa.date64(),
        pa.timestamp("s"),
        pa.timestamp("ns", "Asia/Tokyo"),
        pa.bool_(),
        pa.uint64(),
        pa.float32(),
        pa.decimal128(19),
    ],
)
def test_types_of_rare_values(tmp_path: Path, type_: pa.DataType) -> None:
    seen = [0, 0, 0, 1] if type_ != pa.bool_() else [False, False, True]
    values = (
        pa.array(seen).cast(type_)
        if not pa.types.is_date(type_)
        else pa.array([86_400_000 * each for each in seen]).cast(pa.timestamp("ms")).cast(type_)
    )
    rows = pa.table({"c": values})
    spec: Any = {"c": {"rare": Categorize(min_count=2), "most": Impute("most_frequent")}}
    fitted = Preprocess(spec).fit(rows)
    fitted.save(tmp_path / "prep.json")
    loaded = Preprocess.load(tmp_path / "prep.json").fit(rows, update=True)
    same(loaded, fitted.fit(rows, update=True))
    assert len(loaded.vocabulary("rare")) == 2
    assert numbers(loaded) == numbers(Preprocess(spec).fit(rows))


VALUES = st.none() | st.booleans() | st.sampled_from([0, -1, 1, 2**63, 10**400, 1.5, "", "int64", "5p9999", [], {}])


@EACH
@given(st.data())
def test_any_signed_edit_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "edited"
    if not folder.exists():
        folder.mkdir()
        Preprocess(SPEC).fit(ROWS).save(folder / "original.json")
    text = (folder / "original.json").read_text()
    content = json.loads(text)
    paths = [path for path in leaves(content) if {"counted", "state", "generation", "parents", "files"} & set(path)]
    # What an `OwnTransform` has counted is checked by nobody but itself.
    path = data.draw(st.sampled_from([path for path in paths if "own" not in path[:-1]]))
    at(content, path[:-1])[path[-1]] = data.draw(VALUES)
    edited = folder / "prep.json"
    edited.write_text(json.dumps(resigned(content, str(edited))))
    error = ""
    try:
        assert updated(edited)(ROWS).num_rows == 99
    except DataLoaderUtilsError as found:
        error = str(found)
    assert not error or "prep.json" in error or "anew" in error


def test_a_rank_that_has_a_part_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch_dataloader_utils.preprocess.scan import FitScan

    finish = FitScan.finish

    def of_another_rank(scan: FitScan) -> FitScan | None:
        for output in scan.outputs:
            output.is_whole = False
        return finish(scan)

    monkeypatch.setattr(FitScan, "finish", of_another_rank)
    prep = Preprocess(SPEC).fit(ROWS)
    monkeypatch.undo()
    with pytest.raises(OptionError, match="the first of them holds the counts of rare values"):
        prep.fit(ROWS, update=True)
    with caplog.at_level(logging.WARNING):
        prep.save(tmp_path / "prep.json")
    assert "Let the first rank of the fit save it" in caplog.text
    caplog.clear()
    prep.save(tmp_path / "quiet.json", state=False)
    assert not caplog.messages
    with pytest.raises(OptionError, match="the rank that saved it had a part of it"):
        updated(tmp_path / "prep.json")
