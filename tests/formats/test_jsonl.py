import datetime
import gzip
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, OptionError, SchemaMismatchError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage

from .contract import FormatContract

# pyarrow 17 makes halves of nothing but numpy's.
MODERN = int(pa.__version__.split(".")[0]) >= 21

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
TYPES = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.float32(), st.sampled_from([0.0, 1.5, -2.0])),
    *([(pa.float16(), st.sampled_from([0.0, 1.5, -2.0]))] if MODERN else []),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    (pa.list_(pa.float32(), 2), st.lists(st.sampled_from([0.0, 1.5]), min_size=2, max_size=2)),
    (pa.struct({"x": pa.int32()}), st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)})),
    (
        pa.list_(pa.struct({"x": pa.string(), "y": pa.list_(pa.int64())})),
        st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"x": st.none() | TEXTS, "y": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2)}
            ),
            max_size=3,
        ),
    ),
]


def as_lines(table: pa.Table) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in table.to_pylist())


class TestJsonLinesContract(FormatContract):
    form = replace(format_named("jsonl"), range_bytes=50)
    types = TYPES
    counted = False
    wrong = (b"no such format at all", b'{"a":1}\n{"a":"\xff"}', b"PAR1" * 5, b'[{"a":1}]')
    cut_shows = True

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(as_lines(table))


class TestGzippedContract(TestJsonLinesContract):
    suffix = ".jsonl.gz"
    wrong = (b'{"a":1}', gzip.compress(b"no such format"), gzip.compress(b'{"a":1}')[:-1])

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(gzip.compress(as_lines(table)))


class Opened:
    """A file of this content, laid out and opened."""

    def __init__(
        self, folder: Path, content: bytes, form: str, schema: pa.Schema | None, step: int | None, options: dict
    ) -> None:
        self.path = folder / "f"
        self.path.write_bytes(content)
        found = format_named(form)
        found = found if step is None else replace(found, range_bytes=step)
        info = DataFileInfo(str(self.path), len(content))
        self.layout, self.found = found.layout(info, Storage(), options)
        self.reader = found.open(info, self.layout, Storage(), options, self.found if schema is None else schema)

    def read(self) -> dict[str, list[Any]]:
        names = self.reader.schema.names
        arrays = self.reader.read([segment.number for segment in self.layout.segments], names)
        assert [array.type for array in arrays] == self.reader.schema.types
        return {name: array.to_pylist() for name, array in zip(names, arrays, strict=True)}


def opener(folder: Path, form: str) -> Callable[..., Opened]:
    def opened(content: bytes, *, schema: pa.Schema | None = None, step: int | None = None, **options: Any) -> Opened:
        return Opened(folder, content, form, schema, step, options)

    return opened


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    return opener(tmp_path, "jsonl")


@pytest.mark.parametrize("step", [None, 1, 10])
def test_fields_are_those_of_the_head_and_missing_ones_are_null(opened, step: int | None) -> None:
    file = opened(b'\xef\xbb\xbf{"a":1}\r\n\r\n{"b":"\xc3\xa9"}\n   \n{"a":3,"n":{"x":[1,2]}}', step=step)
    assert file.found == pa.schema({"a": pa.int64(), "b": pa.string(), "n": pa.struct({"x": pa.list_(pa.int64())})})
    assert file.read() == {"a": [1, None, 3], "b": [None, "é", None], "n": [None, None, {"x": [1, 2]}]}


def test_fields_that_are_not_wanted_are_ignored_and_others_null(opened) -> None:
    wanted = pa.schema({"b": pa.int8(), "z": pa.string(), "s": pa.struct({"y": pa.int8()})})
    file = opened(b'{"a":1,"b":2,"s":{"x":1,"y":2}}\n{"b":3,"q":[1]}\n', schema=wanted)
    assert file.read() == {"b": [2, 3], "z": [None, None], "s": [{"y": 2}, None]}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "9007199254740993", 2**53 + 1),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.float64(), "3", 3.0),
        (pa.decimal128(25, 2), "12345678901234567890123.45", Decimal("12345678901234567890123.45")),
        (pa.timestamp("us"), '"2020-01-01T00:00:00.000001"', datetime.datetime(2020, 1, 1, 0, 0, 0, 1)),
        (pa.date32(), '"2020-01-31"', datetime.date(2020, 1, 31)),
        (pa.dictionary(pa.int8(), pa.string()), '"x"', "x"),
        (pa.large_list(pa.int8()), "[1,2]", [1, 2]),
        (pa.struct({"d": pa.list_(pa.date32())}), '{"d":["2020-01-31"]}', {"d": [datetime.date(2020, 1, 31)]}),
    ],
    ids=str,
)
def test_types_are_those_wanted_and_exact(opened, kind: pa.DataType, text: str, value: Any) -> None:
    content = b'{"a":%s}\n{"a":null}\n{}\n' % text.encode()
    assert opened(content, schema=pa.schema({"a": kind})).read() == {"a": [value, None, None]}


def test_rows_can_be_counted_though_no_column_is_wanted(opened) -> None:
    (values,) = opened(b'{"a":1}\n{}\n{"b":2}', schema=pa.schema([])).read().values()
    assert values == [None] * 3


@pytest.mark.parametrize("content", [b"", b"\n  \n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_has_no_segments(opened, content: bytes) -> None:
    assert opened(content).layout.segments == ()
    assert len(opened(content).found) == 0


def test_values_of_different_kinds_become_strings_as_they_are_written(opened) -> None:
    content = b'{"a":1.10,"b":1}\n{"a":"x","b":2}\n{"a":[1,"e",2.5],"b":3}\n{"a":true}\nnull\n{"a":9007199254740993}'
    file = opened(content)
    assert file.found == pa.schema({"a": pa.string(), "b": pa.int64()})
    assert file.read() == {
        "a": ["1.10", "x", '[1, "e", 2.5]', "true", None, "9007199254740993"],
        "b": [1, 2, 3, None, None, None],
    }


@pytest.mark.parametrize(
    "content", [b"null", b"null\nnull\n", b'null\n{"a":1}\n', b'{"a":1}\nnull\n', b"\n\n\nnull\n{}"]
)
@pytest.mark.parametrize("step", [None, 1])
def test_a_null_is_a_row_of_nulls(opened, content: bytes, step: int | None) -> None:
    expected = [(json.loads(line) or {}).get("a") for line in content.split(b"\n") if line]
    assert opened(content, step=step, schema=pa.schema({"a": pa.int64()})).read() == {"a": expected}


def test_a_range_is_decoded_to_one_chunk_of_memory_that_may_be_written(opened) -> None:
    file = opened(b"".join(b'{"a":%d,"b":"x%d"}\n' % (i, i) for i in range(50_000)), step=2**18)
    arrays = file.reader.read([0, 1], ["a", "b"])
    assert [array.num_chunks for array in arrays] == [1, 1]
    assert all(buffer.is_mutable for array in arrays for buffer in array.chunk(0).buffers() if buffer)


# ---------------------------------------------------------------------------------------------------------- bad lines

TYPED = pa.schema({"a": pa.int64(), "b": pa.string()})
BAD = [
    (b"{'a':1}", FileReadError, "is not JSON: Expecting property name"),
    (b'{"a":', FileReadError, "is not JSON: Expecting value at character 6.*format='json'"),
    (b"[1]", FileReadError, r"expected an object, got '\[1\]'"),
    (b'{"a":"x"}', SchemaMismatchError, "column 'a': '\"x\"' cannot be read as int64.*schema="),
    (b'{"a":1.5}', SchemaMismatchError, "column 'a': '1.5' cannot be read as int64"),
    (b'{"a":1,"b":"x","a":2}', FileReadError, "column 'a': the name 'a' is repeated.*Keep one of its values"),
    (b'{"b":"\xff"}', FileReadError, "byte 7 of it is not UTF-8"),
]


def with_line(line: bytes, at: int) -> bytes:
    """2000 objects, of which the one on line `at` (from 1) is another line."""
    lines = [b'{"a":%d,"b":"name %d"}' % (i, i) for i in range(2000)]
    lines[at - 1] = line
    return b"\n".join(lines)


@pytest.mark.parametrize("step", [None, 2000, 9])
@pytest.mark.parametrize(("line", "kind", "message"), BAD)
@pytest.mark.parametrize("at", [1, 1500, 2000])
def test_a_bad_line_is_an_error_that_names_file_line_and_column(
    opened, step: int | None, line: bytes, kind: type[DataLoaderUtilsError], message: str, at: int
) -> None:
    with pytest.raises(kind, match=rf"f, line {at}[,:].*{message}"):
        opened(with_line(line, at), step=step, schema=TYPED).read()


@pytest.mark.parametrize("step", [None, 2000])
@pytest.mark.parametrize("line", [line for line, _, _ in BAD])
@pytest.mark.parametrize("at", [1, 1500, 2000])
def test_a_bad_line_that_is_skipped_takes_no_other_along(
    opened, caplog: pytest.LogCaptureFixture, step: int | None, line: bytes, at: int
) -> None:
    file = opened(with_line(line, at), step=step, schema=TYPED, on_bad_lines="skip")
    expected = [i for i in range(2000) if i != at - 1]
    with caplog.at_level(logging.WARNING), recording() as noted:
        assert file.read() == {"a": expected, "b": [f"name {i}" for i in expected]}
        assert file.read()["a"] == expected
    assert noted.work().skipped_lines == 2
    (record,) = caplog.records
    assert f"left out 1 bad lines, the first is line {at};" in record.getMessage()


def test_a_bad_line_of_the_head_is_left_out_of_its_types(opened) -> None:
    content = b'{"a":1}\n{"a\n{"a":2}\n'
    with pytest.raises(FileReadError, match="f, line 2: is not JSON"):
        opened(content)
    assert opened(content, on_bad_lines="skip").read() == {"a": [1, 2]}


@given(bad=st.sets(st.integers(0, 59)), step=st.integers(1, 300))
def test_exactly_the_bad_lines_are_skipped(tmp_path_factory: pytest.TempPathFactory, bad: set[int], step: int) -> None:
    lines = [BAD[i % len(BAD)][0] if i in bad else b'{"a":%d,"b":"y"}' % i for i in range(60)]
    opened = opener(tmp_path_factory.getbasetemp(), "jsonl")
    file = opened(b"\n".join(lines), schema=TYPED, step=step, on_bad_lines="skip")
    with recording() as noted:
        assert file.read()["a"] == [i for i in range(60) if i not in bad]
    assert noted.work().skipped_lines == len(bad)


def test_an_object_over_several_lines_is_an_error(opened) -> None:
    with pytest.raises(FileReadError, match=r"line 2: is not JSON.*format='json'"):
        opened(b'{"a":1}\n{"a":\n2}\n')
    late = b'{"a":1,"b":"y"}\n' * 100_000 + b'{"a":\n2}\n'
    with pytest.raises(FileReadError, match=r"line 100001: is not JSON.*format='json'"):
        opened(late, schema=TYPED).read()


def test_options_are_checked(opened) -> None:
    with pytest.raises(OptionError, match="'error' or 'skip'"):
        opened(b"{}", on_bad_lines="warn")
