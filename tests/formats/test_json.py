import bz2
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from torch_dataloader_utils.errors import FileReadError, SchemaMismatchError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.formats.registry import format_named

from .contract import FormatContract
from .test_jsonl import TYPED, TYPES, Opened, as_lines, opener

FORM = format_named("json")


class TestArrayContract(FormatContract):
    form = FORM
    types = TYPES
    counted = False
    suffix = ".json"
    wrong = (b"no such format at all", b"PAR1" * 5, b'[{"a":1},', b"[1]", b'[{"a":1}] x', b"\xff[]", b'[{"a":"\xff"}]')

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_text(json.dumps(table.to_pylist(), indent=1, ensure_ascii=False), encoding="utf-8")


class TestDocumentsContract(TestArrayContract):
    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_text("\n".join(json.dumps(row, indent=1) for row in table.to_pylist()))


class TestLinesContract(TestArrayContract):
    form = replace(FORM, range_bytes=150)

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(as_lines(table))


class TestCompressedContract(TestArrayContract):
    suffix = ".json.bz2"
    wrong = (b'[{"a":1}]', bz2.compress(b"[1]"), bz2.compress(b'[{"a":1}]')[:-1])

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(bz2.compress(json.dumps(table.to_pylist()).encode()))


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    return opener(tmp_path, "json")


@pytest.mark.parametrize(
    ("content", "segments"),
    [
        (b'[{"a":1},\n {"a":2}]', 1),
        (b'\xef\xbb\xbf \n[{"a":1},{"a":2}]\n', 1),
        (b'{"a":1}{"a":2}', 1),
        (b'{"a":1}\n{\n"a":2}', 1),
        (b'{\n "a":1\n}\n{\n "a":2\n}\n', 1),
        (b'{"a":1}\n\n{"a":2}\n', 4),
    ],
)
def test_what_a_file_holds_is_seen_in_its_head(opened, content: bytes, segments: int) -> None:
    file = opened(content, step=5)
    assert len(file.layout.segments) == segments
    assert file.read() == {"a": [1, 2]}


def test_one_document_is_one_row(opened) -> None:
    assert opened(b'{"a":1,"b":[{"c":2}]}').read() == {"a": [1], "b": [[{"c": 2}]]}
    assert opened(b'{"a":1,\n"b":[{"c":2}]}').read() == {"a": [1], "b": [[{"c": 2}]]}


@pytest.mark.parametrize("content", [b"", b" \n", b"[]", b" [ ]\n", b"\xef\xbb\xbf[]"])
def test_a_file_without_rows_has_no_segments(opened, content: bytes) -> None:
    assert opened(content).layout.segments == ()


def test_null_elements_are_rows_of_nulls(opened) -> None:
    assert opened(b'[null,{"a":1},{},{"a":null}]').read() == {"a": [None, 1, None, None]}


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_much_larger_than_the_head(opened, indent: int | None) -> None:
    rows = [{"a": i, "b": "é" * (i % 50)} for i in range(60_000)]
    content = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    assert len(content) > 2**21
    assert opened(content).read() == {"a": list(range(60_000)), "b": [row["b"] for row in rows]}


def test_a_first_element_larger_than_the_head(opened) -> None:
    long = "x" * 3_000_000
    assert opened(json.dumps([{"a": long}, {"a": "y"}]).encode()).read() == {"a": [long, "y"]}
    assert opened(json.dumps({"a": long}).encode()).read() == {"a": [long]}


def test_values_of_different_kinds_become_strings(opened) -> None:
    assert opened(b'[{"a":1.10,"b":1},{"a":"x","b":2}]').read() == {"a": ["1.10", "x"], "b": [1, 2]}
    assert opened(b'{"a":1.10,"b":1}\n{"a":"x",\n"b":2}').read() == {"a": ["1.10", "x"], "b": [1, 2]}


FORMS = {
    "array": lambda rows: b"[" + b"\n,".join(rows) + b"]",
    "documents": lambda rows: b"\n".join(row.replace(b":", b":\n", 1) for row in rows),
}


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (b'{"a":"x"}', SchemaMismatchError, "column 'a': '\"x\"' cannot be read as int64"),
        (b"3", FileReadError, "expected an object, got '3'"),
        (b'{"a":}', FileReadError, "is not JSON: Expecting value"),
        (b'{"b":"\xff"}', FileReadError, "not UTF-8"),
    ],
)
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("at", [1, 700])
def test_a_bad_object_is_an_error_that_names_file_and_line(
    opened, bad: bytes, kind: type[Exception], message: str, form: str, at: int
) -> None:
    rows = [b'{"a":%d}' % i for i in range(1000)]
    if bad == b"3" and form == "documents" and at == 1:
        message = "(is not JSON objects): the file begins with"
    rows[at - 1] = bad
    line = at if form == "array" else 2 * at - 1
    line += message.startswith("is not JSON") and form == "documents"  # where it is seen
    line += message.startswith("not") and form == "documents"
    with pytest.raises(kind, match=rf"f, line {line}[,:].*{message}"):
        opened(FORMS[form](rows), schema=TYPED).read()


@pytest.mark.parametrize("form", list(FORMS))
def test_objects_that_do_not_fit_are_skipped(opened, form: str) -> None:
    rows = [b'{"a":"x"}' if i % 7 == 0 else b'{"a":%d}' % i for i in range(1, 100)]
    file = opened(FORMS[form](rows), schema=TYPED, on_bad_lines="skip")
    with recording() as noted:
        assert file.read()["a"] == [i for i in range(1, 100) if i % 7]
    assert noted.work().skipped_lines == 14


def test_json_that_breaks_off_after_the_head_is_an_error_though_bad_lines_are_skipped(opened) -> None:
    rows = [b'{"a":%d, "b":"some longer text"}' % i for i in range(50_000)]
    rows[40_000] = b'{"a":'
    with pytest.raises(FileReadError, match=r"f, line 4000\d: is not JSON"):
        opened(FORMS["array"](rows), on_bad_lines="skip").read()
