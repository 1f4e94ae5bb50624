"""Files of a fitted Preprocess: what they hold, and that whatever is wrong with one is a clear error."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import json
import math
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_dataloader_utils as tdu
from tests.preprocess import golden
from torch_dataloader_utils.errors import OptionError, SavedPreprocessError
from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    Preprocess,
    Standardize,
)
from torch_dataloader_utils.preprocess.digest import digest_of
from torch_dataloader_utils.preprocess.loading import Loading
from torch_dataloader_utils.preprocess.saving import checksum_of
from torch_dataloader_utils.storage import Storage

EACH = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
BERLIN = "Europe/Berlin"
TABLE = pa.table({"x": [1.0, 2.5, None], "city": ["Oslo", "Bergen", "Oslo"], "label": [0, 1, 0]})
SPEC: Any = {"x": [Impute("mean"), Standardize()], "city": Categorize(), "label": Keep()}
FEW = [f"user {i}" for i in range(1500)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Preprocess(SPEC).fit(TABLE).save(tmp_path / "prep.json")
    return tmp_path / "prep.json"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """One with a file beside it."""
    Preprocess({"user": Categorize(FEW)}).fit(pa.table({"user": ["a"]})).save(tmp_path / "prep.json")
    return tmp_path / "prep.json"


def beside(path: Path) -> Path:
    (found,) = path.parent.glob("*.parquet")
    return found


def refused(path: Path | str, problem: str) -> None:
    """Check that loading names the problem, the file and a remedy."""
    with pytest.raises(SavedPreprocessError) as found:
        Preprocess.load(path)
    message = str(found.value)
    assert re.search(problem, message), message
    assert os.path.basename(path) in message
    assert re.search("save|Save|Undo|Install|Import|copy|writes one|path of a file", message), message


# What is saved.


@pytest.mark.parametrize("place", ["prep.json", "a folder/prep", "memory://saved/prep.json", "x#y%20z?.json"])
def test_round_trip(tmp_path: Path, place: str) -> None:
    path = place if "://" in place else str(tmp_path / place)
    prep = Preprocess(golden.SPEC).fit(golden.TABLE)
    prep.save(path)
    loaded = Preprocess.load(path)
    assert loaded.digest == prep.digest
    found, expected = loaded(golden.TABLE), prep(golden.TABLE)
    assert found.schema == expected.schema
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN is not equal to itself
    assert golden.made(loaded) == golden.made(prep)
    for name in ("outputs", "inputs", "numeric", "categorical"):
        assert getattr(loaded, name) == getattr(prep, name)
    assert loaded.sizes() == prep.sizes()
    for name in ("text_id", "text_null", "instant_id", "clock_id", "day_id", "bytes_id", "wide", "flag_id", "many"):
        assert loaded.vocabulary(name) == prep.vocabulary(name)
    assert loaded.counts("text_id") == prep.counts("text_id")
    assert loaded.inverse("text_null", np.array([0, 1, 2, 3, 4])) == [None, None, *prep.vocabulary("text_null")]
    for number in (-1, 5, 2.0, "2", None):
        with pytest.raises(OptionError, match="is not an id: expected 0 to 4"):
            loaded.inverse("text_null", [number])
    assert loaded.parameters("standard") == prep.parameters("standard")
    second = f"{path}.2"
    loaded.save(second)
    assert Preprocess.load(second).digest == prep.digest


def test_golden_files_are_read_for_ever() -> None:
    expected = json.loads(golden.MADE.read_text())
    loaded = Preprocess.load(golden.SAVED)
    assert loaded.digest == expected["digest"]
    assert golden.made(loaded) == expected["rows"]
    table = loaded(golden.TABLE).to_pylist()
    own = [golden.plain(row) for row in table]
    assert own == expected["rows"][: len(own)]


def test_the_same_is_fitted_as_ever() -> None:
    assert Preprocess(golden.SPEC).fit(golden.TABLE).digest == json.loads(golden.MADE.read_text())["digest"]


def test_golden_target_encodings_are_read_for_ever() -> None:
    expected = json.loads(golden.TARGETS_MADE.read_text())
    loaded = Preprocess.load(golden.TARGETS)
    fitted = Preprocess(golden.TARGET_SPEC, dtype="float64").fit(golden.many_rows())
    for prep in (loaded, fitted):
        assert (prep.digest, prep.for_training().mark) == (expected["digest"], expected["mark"])
        assert golden.made(prep) == expected["rows"]
        assert [golden.plain(row) for row in prep(golden.TABLE).to_pylist()] == expected["rows"][: len(golden.TABLE)]
        assert golden.trained(prep) == expected["trained"]
        assert prep.class_counts("flag") == {False: 1, True: 4}


VOCABULARIES: dict[str, list[Any]] = {
    "text": [f"ä{i}" for i in range(1200)],
    "bytes": [i.to_bytes(2, "big") for i in range(1200)],
    "ints": list(range(-600, 600)),
    "large": [2**63 + i for i in range(1200)],
    "dates": [dt.date(2000, 1, 1) + dt.timedelta(i) for i in range(1200)],
    "clocks": [dt.datetime(1960, 1, 1) + dt.timedelta(hours=i) for i in range(1200)],
    "bools": [True, False],
}


@pytest.mark.parametrize("kind", [*VOCABULARIES, "instants", "nanoseconds", "seconds"])
@pytest.mark.parametrize("few", [True, False])
def test_types_of_vocabularies(tmp_path: Path, kind: str, few: bool) -> None:
    if kind == "instants":  # of which an hour occurs twice
        first = dt.datetime(2021, 10, 30, 23, 30, tzinfo=dt.UTC)
        values = pa.array([first + dt.timedelta(minutes=i) for i in range(1200)], pa.timestamp("us", BERLIN))
    elif kind == "nanoseconds":
        values = pa.array(range(1200), pa.timestamp("ns"))
    elif kind == "seconds":
        values = pa.array(range(1200), pa.timestamp("s", "UTC"))
    else:
        values = pa.array(VOCABULARIES[kind], pa.uint64() if kind == "large" else None)
    values = values[:5] if few else values
    given_values = Categorize(values.to_pylist()) if kind == "large" else Categorize()  # counted are those of int64
    fit_on = values[:0] if kind == "large" else values
    table = pa.table({"c": pa.concat_arrays([fit_on, pa.nulls(1, values.type)])})
    prep = Preprocess({"c": given_values}).fit(table)
    prep.save(tmp_path / "prep.json")
    assert bool(list(tmp_path.glob("*.parquet"))) == (len(values) > 1000 or kind == "nanoseconds")
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert loaded.digest == prep.digest
    assert loaded.vocabulary("c") == prep.vocabulary("c")
    expected = prep(pa.table({"c": values}))
    assert sorted(expected["c"].to_pylist()) == list(range(2, 2 + len(values)))
    assert loaded(pa.table({"c": values})).equals(expected)
    assert [loaded({"c": value})["c"] for value in values[:5].to_pylist()] == expected["c"].to_pylist()[:5]


def test_large_texts_stand_beside_the_json(tmp_path: Path) -> None:
    texts = [f"{i}" * 100_000 for i in range(3)]
    prep = Preprocess({"c": Categorize(texts)}).fit(pa.table({"c": ["a"]}))
    prep.save(tmp_path / "prep.json")
    assert (tmp_path / "prep.json").stat().st_size < 10_000
    assert Preprocess.load(tmp_path / "prep.json")({"c": texts[2]}) == {"c": 4}


def test_names_that_files_cannot_have(tmp_path: Path) -> None:
    name = "../ä b" * 99
    prep = Preprocess({name: Categorize(FEW)}).fit(pa.table({name: ["a"]}))
    prep.save(tmp_path / "prep.json")
    assert Preprocess.load(tmp_path / "prep.json").digest == prep.digest
    assert len(list(tmp_path.rglob("*"))) == 2


def test_a_folder_is_no_file(tmp_path: Path, saved: Path) -> None:
    prep = Preprocess.load(saved)
    with pytest.raises(OptionError, match=r"expected the path of a file, such as 'prep\.json'"):
        prep.save(f"{tmp_path}/")
    refused(tmp_path, "cannot be read")


def test_home_is_the_same_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    prep = Preprocess.load("~/prep.json")
    prep.save("~/other.json")
    assert Preprocess.load("~/other.json").digest == prep.digest


def test_the_json_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: Path) -> None:
    """A save that ends half-way leaves what was saved before; its vocabulary stays, as someone may just read it."""
    before = Preprocess.load(large)
    other = Preprocess({"user": Categorize(FEW[::-1])}).fit(pa.table({"user": ["a"]}))
    write = Storage.write

    def fails(self: Storage, path: str, data: bytes) -> None:
        if path.endswith(".json"):
            raise OSError("no space left")
        write(self, path, data)

    monkeypatch.setattr(Storage, "write", fails)
    with pytest.raises(OSError, match="no space left"):
        other.save(large)
    assert Preprocess.load(large).digest == before.digest
    monkeypatch.undo()
    other.save(large)
    assert Preprocess.load(large).digest == other.digest
    assert len(list(tmp_path.iterdir())) == 3


def test_infinite_bounds_and_what_has_no_form(tmp_path: Path) -> None:
    prep = Preprocess({"x": Clip(-math.inf, 5)}).fit(TABLE)
    prep.save(tmp_path / "prep.json")
    assert Preprocess.load(tmp_path / "prep.json")({"x": 7.0}) == {"x": 5.0}
    assert "Infinity" not in (tmp_path / "prep.json").read_text()
    zoned = dt.datetime(2021, 10, 31, 2, 30, tzinfo=dt.UTC)
    moments = pa.table({"t": pa.array([zoned, None], pa.timestamp("us", BERLIN))})
    filled = Preprocess({"t": [Impute(zoned), Categorize()]}).fit(moments)
    filled.save(tmp_path / "filled.json")
    assert Preprocess.load(tmp_path / "filled.json")({"t": None}) == {"t": 2}


# What is loaded.


def test_a_loaded_one_is_as_one_that_was_fitted(tmp_path: Path, saved: Path) -> None:
    fitted = Preprocess(SPEC).fit(TABLE)
    loaded = Preprocess.load(saved)
    assert repr(loaded) == repr(fitted)
    assert "3 outputs, fitted on 3 rows, digest" in repr(loaded)
    row = TABLE.to_pylist()[0]
    for other in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded), copy.copy(loaded)):
        assert (other.digest, other(row)) == (fitted.digest, fitted(row))
        assert other(TABLE).equals(fitted(TABLE))
    with pytest.raises(OptionError, match=r"this Preprocess was loaded.*no spec.*Preprocess\(\{\.\.\.\}\)"):
        loaded.fit(TABLE)
    assert repr(Preprocess(SPEC)) == "<Preprocess of 3 keys, not fitted>"


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "worker_mode": "processes"}])
def test_a_loaded_one_is_the_transform_of_a_loader(tmp_path: Path, large: Path, options: dict[str, Any]) -> None:
    users = [FEW[i % 1500] for i in range(0, 3000, 7)]
    folder = tmp_path / "data"
    folder.mkdir()
    for part in range(2):
        pq.write_table(pa.table({"user": users[part::2]}), folder / f"{part}.parquet")
    loader = tdu.stream(folder, transform=Preprocess.load(large), batch_size=50, num_ranks=1, rank=0, **options)
    found = [number for batch in loader for number in batch["user"].tolist()]
    loader.close()
    assert sorted(found) == sorted(2 + FEW.index(user) for user in users)


def test_loading_executes_nothing(tmp_path: Path, saved: Path) -> None:
    """Neither by names of classes that the program has, nor in a Parquet file beside it."""
    for kind in ("Sources", "os.system", "columntransform", "numbertransform", "idtransform", "drop", "preprocess"):
        content = json.loads(saved.read_text())
        content["outputs"][2]["chain"] = [{"kind": kind}]
        saved.write_text(json.dumps(resigned(content)))
        refused(saved, "no transform|does not hold")


# What is wrong with a file.


def resigned(content: dict[str, Any], path: str = "prep.json") -> dict[str, Any]:
    """The content as one who knows the format would edit it: with the digest and the checksum of what it holds now."""
    content = copy.deepcopy(content)
    try:
        content["digest"] = digest_of(Loading(path, {})._outputs(content), content["options"]["dtype"])
    except Exception:  # noqa: BLE001 - what holds nothing has no digest
        content = dict(content)
    content["checksum"] = checksum_of(content)
    return content


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "prep.json", "there is no such file")
    refused("memory://nowhere/prep.json", "there is no such file")
    with pytest.raises(SavedPreprocessError, match="cannot be read"):
        Preprocess.load("a\0b")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"\x80\x04\x95", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"format": NaN}', "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b"5", "not a saved Preprocess"),
        (b"[]", "not a saved Preprocess"),
        (b'{"a": 1}', "not a saved Preprocess"),
        (b'{"format": "torch_dataloader_utils.preprocess"}', "no version"),
        (b'{"format": "torch_dataloader_utils.preprocess", "version": true}', "no version"),
        (b'{"format": "torch_dataloader_utils.preprocess", "version": 2}', "newer .*Install a newer one"),
        (b'{"format": "torch_dataloader_utils.preprocess", "version": 1}', "checksum does not match"),
    ],
)
def test_not_ours(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "prep.json").write_bytes(data)
    refused(tmp_path / "prep.json", problem)


def test_another_layout_is_no_edit(saved: Path) -> None:
    digest = Preprocess.load(saved).digest
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps(dict(reversed(content.items()))))
    assert Preprocess.load(saved).digest == digest


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values, containers too."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def test_every_edit_is_found(saved: Path) -> None:
    text = saved.read_text()
    for path in leaves(json.loads(text)):
        content = json.loads(text)
        holder, key = at(content, path[:-1]), path[-1]
        value = holder[key]
        if isinstance(value, list):
            if len(value) < 2 or value[::-1] == value:
                continue
            holder[key] = value[::-1]
        elif isinstance(value, dict):
            holder[key] = {**value, "more": 1}
        else:
            holder[key] = value + 1 if isinstance(value, (int, float)) else f"{value}x"
        saved.write_text(json.dumps(content))
        refused(saved, "checksum does not match|not a saved|newer|does not hold")


def test_cut_off(saved: Path) -> None:
    data = saved.read_bytes()
    for end in range(0, len(data) - 1, 37):
        saved.write_bytes(data[:end])
        refused(saved, "not JSON")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2**63, -(2**70), 10**400, 1.5, 1e308, -0.0, "", "x", "nan", "\ud800", "../x", "int64"])
    | st.sampled_from(["large_string", "timestamp[us, tz=Mars]", "list<item: " * 30, "hash", "impute", "float64"])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "value", "of", "timestamp", "decimal", "float", "file"]), inner)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the golden file, with the one beside it."""
    return Path(shutil.copytree(golden.DATA, tmp_path_factory.mktemp("golden") / "data")) / golden.SAVED.name


GOLDEN = json.loads(golden.SAVED.read_text())
PATHS = list(leaves(GOLDEN))


@EACH
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES, st.sampled_from("=-+~")), min_size=1, max_size=3))
def test_any_edit_is_refused_or_harmless(copied: Path, edits: list[tuple[tuple[Any, ...], Any, str]]) -> None:
    """Also one that signs what it makes: what is loaded, if anything is, works on rows."""
    content = json.loads(json.dumps(GOLDEN))
    for path, value, how in edits:
        try:
            holder = at(content, path[:-1])
            if how == "=":
                holder[path[-1]] = value
            elif how == "-":
                del holder[path[-1]]
            elif how == "+":
                holder["more"] = value
            else:
                other = random.Random(0).choice(PATHS)
                holder[path[-1]] = at(GOLDEN, other)
        except (LookupError, TypeError):
            continue
    for signed in (content, resigned(content, str(copied))):
        copied.write_text(json.dumps(signed))
        loaded = loaded_or_error(copied)
        if isinstance(loaded, Preprocess):
            usable(loaded)
        else:
            assert copied.name in loaded


def loaded_or_error(path: str | Path) -> Preprocess | str:
    """What is loaded, or the message of why it is not; any other error is raised."""
    try:
        return Preprocess.load(path)
    except SavedPreprocessError as error:
        return str(error)


def usable(loaded: Preprocess) -> None:
    """Check that it makes something of rows, or raises an error of ours."""
    assert loaded.digest in repr(loaded)
    for rows in (golden.TABLE, golden.TABLE.to_pylist()[0]):
        with contextlib.suppress(tdu.DataLoaderUtilsError):
            loaded(rows)


@EACH
@given(st.data())
def test_damaged_bytes(copied: Path, data: st.DataObject) -> None:
    text = bytearray(golden.SAVED.read_bytes())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(min_size=1, max_size=3))
    copied.write_bytes(text)
    loaded = loaded_or_error(copied)
    if isinstance(loaded, Preprocess):
        assert loaded.digest == GOLDEN["digest"]  # a change of spaces
    else:
        assert copied.name in loaded


def edited_link(saved: Path, **changes: Any) -> None:
    content = json.loads(saved.read_text())
    content["outputs"][0]["chain"][0].update(changes)
    saved.write_text(json.dumps(resigned(content)))


def test_a_transform_that_the_program_does_not_have(saved: Path) -> None:
    edited_link(saved, kind="mine")
    refused(saved, "no transform 'mine'.*Import the module that defines it")


def test_an_option_that_no_constructor_takes(saved: Path) -> None:
    edited_link(saved, strategy=None, value=None)
    refused(saved, "does not hold what was saved")


# Files beside it.


def test_a_missing_file_beside_it(large: Path) -> None:
    beside(large).unlink()
    refused(large, "is missing beside it: copy it there, too, or save it again")


def test_an_exchanged_file_beside_it(large: Path) -> None:
    file = beside(large)
    data = file.read_bytes()
    pq.write_table(pa.table({"value": FEW[::-1], "id": np.arange(1500)}), file)
    refused(large, "not the one that was saved with it")
    for other in (data[:-1], data + b"x", data[:100] + b"?" + data[101:], b""):
        file.write_bytes(other)
        refused(large, "not the one that was saved with it")
    file.write_bytes(data)
    Preprocess.load(large)


def test_a_link_is_followed_to_the_file_that_was_saved(large: Path, tmp_path: Path) -> None:
    """Stores of data sets, such as that of Hugging Face, are made of links; size and digest say what is read."""
    file = beside(large)
    blob = tmp_path / "blob"
    file.rename(blob)
    file.symlink_to(blob)
    Preprocess.load(large)
    blob.write_bytes(b"another")
    refused(large, "not the one that was saved with it")
    file.unlink()
    file.symlink_to(file)
    refused(large, "cannot be read")


@pytest.mark.parametrize("name", ["../{}", "./{}", "/{}", "{}/../{}", "a\\{}", "C:{}", "..", ".", "", "\0", "{}/"])
def test_a_name_that_is_a_path(large: Path, name: str) -> None:
    own = beside(large).name
    wrong = name.replace("{}", own)
    content = json.loads(large.read_text())
    content["outputs"][0]["fitted"][0]["vocabulary"]["file"] = wrong
    content["files"] = {wrong: content["files"][own]}
    large.write_text(json.dumps(resigned(content, str(large))))
    refused(large, "no name of a file beside it")


@pytest.mark.parametrize(
    "columns",
    [
        {"value": FEW[:-1] + FEW[:1]},
        {"value": [None, *FEW[1:]]},
        {"value": list(range(1500))},
        {"id": list(range(1499, -1, -1))},
        {"id": ["a"] * 1500},
        {"count": [-1] * 1500},
        {"count": ["a"] * 1500},
        {"value": None},
        {"id": None},
    ],
)
def test_a_file_beside_it_that_was_made_by_another(large: Path, columns: dict[str, Any]) -> None:
    file = beside(large)
    table = {"value": pa.array(FEW, pa.large_string()), "id": list(range(1500)), **columns}
    pq.write_table(pa.table({name: values for name, values in table.items() if values is not None}), file)
    sign_beside(large, file.read_bytes())
    refused(large, "does not hold what was saved")


def test_a_file_beside_it_that_is_no_parquet(large: Path) -> None:
    for data in (b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", beside(large).read_bytes()[:-9]):
        beside(large).write_bytes(data)
        sign_beside(large, data)
        refused(large, "does not hold what was saved")


def sign_beside(large: Path, data: bytes) -> None:
    from torch_dataloader_utils.preprocess.saving import digest_of_bytes

    content = json.loads(large.read_text())
    content["files"] = {beside(large).name: [len(data), digest_of_bytes(data)]}
    large.write_text(json.dumps(resigned(content, str(large))))


def test_sizes_that_no_memory_has(large: Path) -> None:
    for size in (-1, 10**30, 2**62, 1.5, "x", None, True):
        content = json.loads(large.read_text())
        content["files"] = {beside(large).name: [size, content["files"][beside(large).name][1]]}
        large.write_text(json.dumps(resigned(content, str(large))))
        refused(large, "does not hold what was saved|not the one that was saved")


def test_through_fsspec_a_file_is_missing_or_exchanged() -> None:
    Preprocess({"user": Categorize(FEW)}).fit(pa.table({"user": ["a"]})).save("memory://deep/down/prep.json")
    memory = fsspec.filesystem("memory")
    (file,) = memory.glob("/deep/down/*.parquet")
    assert Preprocess.load("memory://deep/down/prep.json")({"user": FEW[3]}) == {"user": 5}
    memory.pipe_file(file, b"another")
    refused("memory://deep/down/prep.json", "not the one that was saved")
    memory.rm_file(file)
    refused("memory://deep/down/prep.json", "is missing beside it")


# The digest.


def digest(spec: Any, table: pa.Table = TABLE, **options: Any) -> str:
    return Preprocess(spec, **options).fit(table).digest


def test_equal_outputs_have_one_digest() -> None:
    assert digest({"x": Clip(1.0, 2)}) == digest({"x": Clip(1, 2.0)})
    assert digest({"x": Clip(quantiles=(0, 1))}) == digest({"x": Clip(1, 2.5)})
    assert digest({"x": Bucketize([1.75])}) == digest({"x": Bucketize(quantiles=2)})
    assert digest({"city": Categorize()}) == digest({"city": Categorize(["Oslo", "Bergen"])})
    assert digest({"city": Categorize()}) == digest({"city": Categorize(min_count=1, max_size=5)})
    wide = TABLE.set_column(1, "city", TABLE["city"].cast(pa.large_string()).dictionary_encode())
    assert digest(SPEC, wide.set_column(0, "x", TABLE["x"].cast(pa.float32()))) == digest(SPEC)
    moment = dt.datetime(2021, 10, 31, 1, 30, tzinfo=dt.UTC)
    moments = [pa.table({"t": pa.array([moment], pa.timestamp(unit, BERLIN))}) for unit in ("s", "us")]
    assert digest({"t": Categorize()}, moments[0]) == digest({"t": Categorize()}, moments[1])


def test_other_outputs_have_other_digests() -> None:
    moment = dt.datetime(2021, 10, 31, 1, 30, tzinfo=dt.UTC)
    berlin, utc = (pa.table({"t": pa.array([moment], pa.timestamp("us", zone))}) for zone in (BERLIN, "UTC"))
    parts: Any = {"t": tdu.preprocess.DateParts("hour")}
    unsigned = pa.table({"u": pa.array([2**64 - 1], pa.uint64())})
    two: Any = {"a": Categorize(["p", "q"]), "b": Categorize(["r"])}
    moved: Any = {"a": Categorize(["p"]), "b": Categorize(["q", "r"])}
    texts = pa.table({"a": ["p"], "b": ["r"]})
    fixed = [pa.table({"v": pa.array([[1.0] * n], pa.list_(pa.float64(), n))}) for n in (1, 2)]
    found = [
        digest(SPEC),
        digest(SPEC, dtype="float64"),
        digest({**SPEC, "x": Standardize()}),
        digest({**SPEC, "x": Impute("mean")}),
        digest({**SPEC, "x": Impute(1.75)}),  # keeps the type
        digest({**SPEC, "x": {"y": [Impute("mean"), Standardize()]}}),
        digest(dict(reversed(SPEC.items()))),
        digest(SPEC, TABLE.slice(0, 2)),
        digest({"city": Categorize(unknown_ids=2)}),
        digest({"city": Categorize(unknown="error")}),
        digest({"city": Categorize(order="value")}),
        digest({"city": Hash(10)}),
        digest({"city": Hash(10, seed=1)}),
        digest({("city", "label"): Cross(Hash(10))}),
        digest({("label", "city"): Cross(Hash(10))}),
        *(digest(parts, table) for table in (berlin, utc)),
        digest({"t": Categorize()}, berlin),
        digest({"u": Categorize([2**64 - 1])}, unsigned),
        digest({"u": Categorize([-1])}, pa.table({"u": [1]})),
        *(digest(spec, texts) for spec in (two, moved)),
        *(digest({"v": Clip(0, 1)}, table) for table in fixed),
    ]
    assert len(set(found)) == len(found)


CHAINS = st.sampled_from(
    [
        *(Standardize(), Standardize(ddof=1), Clip(0, 2), Clip(quantiles=(0, 1)), Impute(7), Impute("mean")),
        *(Bucketize([1.5]), Bucketize(quantiles=2), Categorize(), Categorize(nulls="category"), Hash(5), Hash(7)),
        *(Categorize(order="value"), Categorize(unknown_ids=2), Categorize(max_size=1), Impute("most_frequent")),
    ]
)
COLUMNS = st.lists(st.none() | st.integers(-2, 4), min_size=1, max_size=5)


@EACH
@given(st.tuples(CHAINS, COLUMNS), st.tuples(CHAINS, COLUMNS))
def test_one_digest_is_one_function(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    fits = [Preprocess({"x": chain}).fit(pa.table({"x": pa.array(seen, pa.int64())})) for chain, seen in (one, other)]
    probe = pa.table({"x": pa.array([None, *range(-4, 7), 2**60], pa.int64())})
    first, second = (repr(fit(probe).to_pydict()) for fit in fits)
    if fits[0].digest == fits[1].digest:
        assert first == second
    if one == other:
        assert fits[0].digest == fits[1].digest


def test_the_digest_is_the_same_in_other_processes(saved: Path) -> None:
    code = f"from torch_dataloader_utils.preprocess import Preprocess; print(Preprocess.load({str(saved)!r}).digest)"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        assert done.stdout.strip() == digest(SPEC), done.stderr


def test_a_column_of_nulls_has_a_type_for_each_output(tmp_path: Path) -> None:
    rows = pa.table({"n": pa.nulls(3), "x": [1, 2, 3]})
    spec = {"n": {"ids": Categorize(), "number": [Impute("mean"), Standardize()], "when": DateParts("hour")}}
    prep = Preprocess(spec).fit(rows)
    prep.save(tmp_path / "prep.json")
    loaded = Preprocess.load(tmp_path / "prep.json")
    assert loaded.digest == prep.digest
    assert loaded(rows).equals(prep(rows))
