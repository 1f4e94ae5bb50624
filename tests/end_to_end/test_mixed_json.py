"""JSON whose fields are of different kinds: these become text as written, at any depth; all others keep their types."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DamagedFileError, EmptyDatasetError, SchemaMismatchError

FORMS: dict[str, Any] = {
    "jsonl": lambda rows: "".join(f"{row}\n" for row in rows),
    "json": lambda rows: "[" + ",\n".join(rows) + "]",
    "documents.json": lambda rows: "\n".join(row.replace("{", "{\n", 1) for row in rows),
}


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    loader, _ = StructuredDataset.create_dataloader(str(path), batch_size=100, output_format="arrow", **options)
    return [row for batch in loader for row in batch.to_pylist()]


CASES = {
    "a field of an object": (
        ['{"m": {"x": 1, "y": 2}}', '{"m": {"x": "t", "y": 3}}'],
        [{"m": {"x": "1", "y": 2}}, {"m": {"x": "t", "y": 3}}],
    ),
    "content as text or list": (
        ['{"ms": [{"r": "u", "c": "hi"}, {"r": "a", "c": [{"t": 1.10}]}]}', '{"ms": [{"r": "u", "c": null}]}'],
        [{"ms": [{"r": "u", "c": "hi"}, {"r": "a", "c": '[{"t": 1.10}]'}]}, {"ms": [{"r": "u", "c": None}]}],
    ),
    "arguments as object or text": (
        ['{"f": {"name": "a", "args": {"q": [1, "é"]}}}', '{"f": {"name": "b", "args": "{}"}}'],
        [{"f": {"name": "a", "args": '{"q": [1, "é"]}'}}, {"f": {"name": "b", "args": "{}"}}],
    ),
    "coordinates": (
        ['{"g": {"type": "Point", "at": [1.5, 2]}}', '{"g": {"type": "Line", "at": [[1, 2], [3, 4]]}}'],
        [{"g": {"type": "Point", "at": "[1.5, 2]"}}, {"g": {"type": "Line", "at": "[[1, 2], [3, 4]]"}}],
    ),
    "items of lists": (
        ['{"a": [1, 2], "b": ["x"]}', '{"a": ["x"], "b": []}', '{"a": [1, "x"], "b": null}'],
        [{"a": "[1, 2]", "b": ["x"]}, {"a": '["x"]', "b": []}, {"a": '[1, "x"]', "b": None}],
    ),
    "beside other types": (
        ['{"t": "2024-05-01", "m": {"x": true}, "n": 1}', '{"t": "2024-05-02", "m": {"x": 0.50}, "n": 2.5}'],
        [
            {"t": datetime.datetime(2024, 5, 1), "m": {"x": "true"}, "n": 1.0},
            {"t": datetime.datetime(2024, 5, 2), "m": {"x": "0.50"}, "n": 2.5},
        ],
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_field_of_different_kinds_is_text_as_written(tmp_path: Path, form: str, case: str) -> None:
    rows, expected = CASES[case]
    (tmp_path / f"a.{form}").write_text(FORMS[form](rows), encoding="utf-8")
    assert read(tmp_path) == expected


@pytest.mark.parametrize("case", CASES)
def test_kinds_that_differ_between_files_are_text_too(tmp_path: Path, case: str) -> None:
    rows, expected = CASES[case]
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.jsonl").write_text(f"{row}\n", encoding="utf-8")
    assert read(tmp_path) == expected


def test_a_kind_that_appears_after_the_inferred_rows_is_an_error_unless_it_is_declared(tmp_path: Path) -> None:
    rows = ['{"m": {"x": 1}, "id": "%s"}' % ("y" * 100)] * 12_000 + ['{"m": {"x": "t"}, "id": "z"}']
    (tmp_path / "a.jsonl").write_text(FORMS["jsonl"](rows))
    with pytest.raises(SchemaMismatchError, match=r"line 12001, column 'm'"):
        read(tmp_path)
    found = read(tmp_path, schema=pa.schema({"m": pa.struct({"x": pa.string()})}))
    assert [found[0], found[-1], len(found)] == [{"m": {"x": "1"}}, {"m": {"x": "t"}}, 12_001]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", ['{"a": 1, "a": 2}', '{"a": "x", "a": "y"}', '{"a": {"b": 1, "b": "x"}}'])
def test_a_name_that_an_object_repeats_is_an_error_or_skipped(tmp_path: Path, form: str, bad: str) -> None:
    good = '{"a": {"b": 1}}' if "b" in bad else '{"a": 5}'
    (tmp_path / f"a.{form}").write_text(FORMS[form]([good, bad, '{"a": "text"}']))
    with pytest.raises(DamagedFileError, match=r"the name '[ab]' is repeated"):
        read(tmp_path)
    with pytest.raises(DamagedFileError, match=r"the name '[ab]' is repeated"):
        read(tmp_path, schema=pa.schema({"a": pa.string()}))
    found = read(tmp_path, format_options={"on_bad_lines": "skip"})
    assert [row["a"] for row in found] == ['{"b": 1}' if "b" in bad else "5", "text"]


@pytest.mark.parametrize("form", FORMS)
def test_objects_without_any_field_are_an_error(tmp_path: Path, form: str) -> None:
    (tmp_path / f"a.{form}").write_text(FORMS[form](["{}"] * 3))
    with pytest.raises(EmptyDatasetError, match="no columns"):
        read(tmp_path)
    (tmp_path / f"b.{form}").write_text(FORMS[form](['{"x": 1}']))
    assert read(tmp_path) == [{"x": None}] * 3 + [{"x": 1}]


PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from([0.5, "t", "", "2024-05-01", "é\n"])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


def matches(found: Any, value: Any) -> bool:
    """Whether what was read is the value, or its text, at each depth; absent fields are null."""
    if isinstance(found, str) and not isinstance(value, str):
        return bool(json.loads(found) == value)
    if isinstance(found, datetime.datetime):
        return found == datetime.datetime.fromisoformat(value)
    if isinstance(found, dict) and isinstance(value, dict):
        return all(matches(found[name], value.get(name)) for name in found) and value.keys() <= found.keys()
    if isinstance(found, list) and isinstance(value, list):
        return len(found) == len(value) and all(map(matches, found, value))
    return bool(found == value)


@given(values=st.lists(VALUES, min_size=1, max_size=5), form=st.sampled_from(list(FORMS)))
def test_any_json_is_read_as_it_is_or_as_its_text(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], form: str
) -> None:
    path = tmp_path_factory.mktemp("json") / f"a.{form}"
    path.write_text(FORMS[form]([json.dumps({"v": value, "id": 1}) for value in values]), encoding="utf-8")
    found = [row["v"] for row in read(path)]
    assert len(found) == len(values)
    for one, value in zip(found, values, strict=True):
        assert matches(one, value), (one, value)
