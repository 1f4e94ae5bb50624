import bz2
import csv
import datetime
import gzip
import io
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import peak_memory, restart_peak
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, OptionError, SchemaMismatchError
from torch_dataloader_utils.events import recording
from torch_dataloader_utils.formats import possessive
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.formats.text.csv_dialect import CsvOptions, Dialect
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage

from .contract import FormatContract

FORM = format_named("csv")

# pyarrow 17 makes halves of nothing but numpy's.
MODERN = int(pa.__version__.split(".")[0]) >= 21

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\\\r\n"), max_size=5)
TYPES = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.sampled_from([0.0, 1.5, -2.0])),
    *([(pa.float16(), st.sampled_from([0.0, 1.5, -2.0]))] if MODERN else []),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))),
    (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
]


def as_csv(table: pa.Table) -> bytes:
    r"""The table with nulls as \N."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(table.column_names)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    writer.writerows([r"\N" if value is None else value for value in row] for row in rows)
    return sink.getvalue().encode()


class TestCsvContract(FormatContract):
    form = replace(FORM, range_bytes=100)
    types = TYPES
    counted = False
    options = {"null_values": [r"\N"]}  # noqa: RUF012
    wrong = (b"a,b\n1,\xff\n\xff,2\n", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    cut_shows = False

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(as_csv(table))


class TestGzippedContract(TestCsvContract):
    suffix = ".csv.gz"
    wrong = (b"a,b\n1,2\n", gzip.compress(b"a\n\xff\n"), gzip.compress(b"a\n1\n")[:-1])
    cut_shows = True

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        path.write_bytes(gzip.compress(as_csv(table)))


class Opened:
    """A file of this content, laid out and opened."""

    def __init__(
        self,
        folder: Path,
        content: bytes,
        *,
        name: str = "f.csv",
        schema: pa.Schema | None = None,
        step: int | None = None,
        **options: Any,
    ) -> None:
        self.path = folder / name
        self.path.write_bytes(content)
        form = FORM if step is None else replace(FORM, range_bytes=step)
        info = DataFileInfo(str(self.path), len(content))
        self.layout, self.found = form.layout(info, Storage(), options)
        self.reader = form.open(info, self.layout, Storage(), options, self.found if schema is None else schema)

    def read(self) -> dict[str, list[Any]]:
        names = self.reader.schema.names
        arrays = self.reader.read([segment.number for segment in self.layout.segments], names)
        return {name: array.to_pylist() for name, array in zip(names, arrays, strict=True)}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    return lambda content, **given: Opened(tmp_path, content, **given)


# -------------------------------------------------------------------------------------------------------- the header


def test_names_and_types_are_those_of_the_head(opened) -> None:
    file = opened(b'a,"b, c",d,e,f\n1,x,1.5,2020-01-31,true\n2,,nan,,false\n')
    assert file.found == pa.schema(
        {"a": pa.int64(), "b, c": pa.string(), "d": pa.float64(), "e": pa.date32(), "f": pa.bool_()}
    )
    assert file.read()["e"] == [datetime.date(2020, 1, 31), None]
    assert file.read()["b, c"] == ["x", ""]


@pytest.mark.parametrize(
    ("given", "names", "rows"),
    [
        ({}, ["1", "2"], 1),
        ({"header": False}, ["f0", "f1"], 2),
        ({"header": False, "column_names": ["x", "y"]}, ["x", "y"], 2),
        ({"column_names": ["x", "y"]}, ["x", "y"], 1),
    ],
)
def test_names_come_from_the_header_or_are_given(opened, given: dict, names: list[str], rows: int) -> None:
    file = opened(b"1,2\n3,4\n", step=1, **given)
    assert file.found.names == names
    assert [len(values) for values in file.read().values()] == [rows, rows]


@pytest.mark.parametrize("content", [b"", b"\n\r\n", b"a,b", b"a,b\n", b"\xef\xbb\xbfa,b\r\n\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_without_rows_has_no_segments(opened, content: bytes, compressed: bool) -> None:
    file = opened(gzip.compress(content) if compressed else content, name="f.csv.gz" if compressed else "f.csv")
    assert file.layout.segments == ()
    assert file.found.names == (["a", "b"] if b"a" in content else [])
    assert file.reader.read([], file.found.names) == [pa.chunked_array([], pa.null())] * len(file.found)


def test_duplicate_names_are_an_error_that_tells_the_line(opened) -> None:
    with pytest.raises(SchemaMismatchError, match=r"f.csv, line 3: more than one column is called 'a'.*column_names"):
        opened(b"\n\na,b,a\n1,2,3\n")
    assert opened(b"a,b,a\n1,2,3\n", column_names=["a", "b", "c"]).read() == {"a": [1], "b": [2], "c": [3]}


@pytest.mark.skipif(sys.version_info < (3, 11, 5), reason="groups that try again remember where")
def test_a_million_names_take_no_memory_for_columns(opened) -> None:
    before = restart_peak()
    with pytest.raises(SchemaMismatchError, match="more than one column is called ''"):
        opened(b"," * 1_000_000 + b"\n1\n")
    assert peak_memory() - before < 150 * 2**20


@pytest.mark.parametrize("row", [b"a,b c,", b'a,"b,"",c",d', b"a,b\\,c,d", b"x", b'"x"'])
@pytest.mark.parametrize("escape", ["", "\\"])
def test_names_are_those_that_pyarrow_reads(row: bytes, escape: str) -> None:
    dialect = Dialect("f.csv", CsvOptions(escape_char=escape))
    parse = pacsv.ParseOptions(escape_char=escape or False)
    assert dialect.names(row) == pacsv.read_csv(io.BytesIO(row + b"\n"), parse_options=parse).column_names


def test_a_number_of_names_that_differs_is_an_error(opened) -> None:
    with pytest.raises(OptionError, match=r"line 1: has 2 fields, but column_names has 3 names"):
        opened(b"1,2\n", header=False, column_names=["a", "b", "c"])


def test_columns_that_the_file_lacks_are_not_given(opened) -> None:
    wanted = pa.schema({"z": pa.int8(), "b": pa.string()})
    assert opened(b"a,b\n1,2\n", schema=wanted).reader.schema == pa.schema({"b": pa.string()})


def test_rows_can_be_counted_though_no_column_is_wanted(opened) -> None:
    file = opened(b"a,b\nx,2\n\xff,3\n", schema=pa.schema({"z": pa.int8()}))
    assert file.read() == {"a": [b"x", b"\xff"]}


def test_a_header_longer_than_the_head_is_read_whole(opened) -> None:
    names = [f"column {i:0600}" for i in range(2000)]
    file = opened((",".join(names) + "\n" + ",".join("1" * 2000) + "\n").encode())
    assert file.found.names == names
    assert file.reader.read([0], names[-1:])[0].to_pylist() == [1]


def test_rows_longer_than_the_head_are_read_to_tell_their_types(opened) -> None:
    long = b"x" * 3_000_000
    assert opened(b"a,b\n1," + long + b"\n2,y\n", step=100).read() == {"a": [1, 2], "b": [long.decode(), "y"]}
    long = b"x\n" * 1_000_000
    assert opened(b'a,b\n1,"' + long + b'"\n2,y\n', newlines_in_values=True).read()["b"] == [long.decode(), "y"]
    many = b'1,"x\ny"\n' * 200_000
    assert opened(b"a,b\n" + many, newlines_in_values=True).read()["a"] == [1] * 200_000


# ------------------------------------------------------------------------------------------------------------ values


def test_types_are_those_wanted_and_exact(opened) -> None:
    wanted = {
        "i": pa.int64(),
        "u": pa.uint64(),
        "d": pa.decimal128(30, 2),
        "t": pa.timestamp("us", "UTC"),
        "s": pa.string(),
        "c": pa.dictionary(pa.int32(), pa.string()),
        "f": pa.float32(),
    }
    content = b"i,u,d,t,s,c,f\n9007199254740993,18446744073709551615,12345678901234567890123456.78,"
    file = opened(content + b"2020-01-01T00:00:00.000001Z,007,x,1\n", schema=pa.schema(wanted))
    arrays = file.reader.read([0], list(wanted))
    assert [array.type for array in arrays] == list(wanted.values())
    assert [array[0].as_py() for array in arrays] == [
        2**53 + 1,
        2**64 - 1,
        Decimal("12345678901234567890123456.78"),
        datetime.datetime(2020, 1, 1, 0, 0, 0, 1, datetime.UTC),
        "007",
        "x",
        1.0,
    ]


def test_nulls_are_those_of_pyarrow_or_those_given(opened) -> None:
    content = b"a,s\n1,x\nNULL,NULL\n,\n"
    assert opened(content).read() == {"a": [1, None, None], "s": ["x", "NULL", ""]}
    assert opened(content, null_values=["NULL", ""]).read() == {"a": [1, None, None], "s": ["x", None, None]}


def test_dialects(opened) -> None:
    assert opened(b"a\tb\n1\tx,y\n", name="f.tsv").read() == {"a": [1], "b": ["x,y"]}
    assert opened(gzip.compress(b"a\tb\n1\tx,y\n"), name="f.tsv.gz").read() == {"a": [1], "b": ["x,y"]}
    assert opened(b"a|b\n1|'x|''y'\n", delimiter="|", quote_char="'").read() == {"a": [1], "b": ["x|'y"]}
    assert opened(b'a,b\n"1,x"\n', quote_char="").read() == {"a": ['"1'], "b": ['x"']}
    assert opened(b'a,b\n1,"x\\"y"\n2,p\\,q\n', escape_char="\\").read() == {"a": [1, 2], "b": ['x"y', "p,q"]}
    assert opened(b"a;b\n1,5;2\n", delimiter=";", decimal_point=",").read() == {"a": [1.5], "b": [2]}


@pytest.mark.parametrize(
    ("content", "name", "mark", "fields"),
    [
        (b"a;b\n1;2\n3;4\n", "f.csv", ";", 2),
        (b"a;b;c\n1,5;2,5;x\n", "f.csv", ";", 3),  # decimal commas: also the rows' number of fields would be wrong
        (b"a\tb\n1\t2\n", "f.csv", "\\t", 2),
        (b'a|"b|c"\n1|"x\ty|z"\n', "f.csv", "|", 2),
        (b"a,b\n1,2\n", "f.tsv", ",", 2),
        (gzip.compress(b"a;b\n1;2\n", mtime=0), "f.csv.gz", ";", 2),
    ],
)
def test_another_delimiter_is_an_error_that_names_it_and_the_file(
    opened, content: bytes, name: str, mark: str, fields: int
) -> None:
    with pytest.raises(OptionError) as raised:
        opened(content, name=name)
    text = str(raised.value)
    assert f"{name}: one column, " in text
    assert f"{mark}' separates the header and the rows after it into {fields} fields" in text
    assert f"Use format_options={{'delimiter': '{mark}'}}" in text


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (b"a\n1\n2\n", {}),
        (b"text\none; two\nthree; four\n", {}),  # only the rows have the mark
        (b"speed | m/s\n3.5\n2.5\n", {}),  # only the header has it
        (b"a;b\n1;2\n3\n", {}),  # not every row has as many
        (b'"a;b"\n"1;2"\n', {}),  # quoted: it separates nothing
        (b"a;b\n", {}),  # no row
        (b'a;"b\n1;2\n', {}),  # a quote that does not begin the field
        (b'a;b\n1;"2\n', {}),
        (b"a;b\n1;2\n", {"delimiter": ","}),
        (b"a;b\n1;2\n", {"column_names": ["pair"]}),
        (b"a;b\n1;2\n", {"header": False}),
    ],
)
def test_a_file_of_one_column_may_contain_other_delimiters(opened, content: bytes, given: dict) -> None:
    assert len(opened(content, **given).found) == 1


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings_are_one_sequence_of_segments(opened, encoding: str) -> None:
    rows = "".join(f"{i};ü\n" for i in range(1000))
    file = opened(("ä;b\n" + rows).encode(encoding), step=10, encoding=encoding, delimiter=";")
    assert file.layout.sequential
    assert len(file.layout.segments) > 100
    assert file.read() == {"ä": list(range(1000)), "b": ["ü"] * 1000}
    assert file.read()["b"] == ["ü"] * 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delimiter": "ab"}, "one ASCII character"),
        ({"delimiter": ""}, "one ASCII character"),
        ({"quote_char": "é"}, 'one ASCII character or ""'),
        ({"column_names": "abc"}, "a list of strings"),
        ({"column_names": ["a", "b", "a"]}, "names that differ, but 'a' is there again"),
        ({"null_values": [1]}, "a list of strings"),
        ({"on_bad_lines": "warn"}, "'error' or 'skip'"),
        ({"encoding": "latin-99"}, "Python has no such encoding"),
    ],
)
def test_options_are_checked(opened, given: dict, message: str) -> None:
    checked_options(FORM, given)
    with pytest.raises(OptionError, match=message):
        opened(b"a\n1\n", **given)


def test_a_range_is_decoded_to_one_chunk_of_memory_that_may_be_written(opened) -> None:
    content = b"a,b\n" + b"".join(b"%d,x%d\n" % (i, i) for i in range(100_000))
    file = opened(content, step=2**18)
    (a, b) = file.reader.read([1, 2, 3], ["a", "b"])
    assert a.num_chunks == b.num_chunks == 1
    buffers = [buffer for array in (*a.chunks, *b.chunks) for buffer in array.buffers() if buffer]
    assert all(buffer.is_mutable for buffer in buffers)


# ---------------------------------------------------------------------------------------------------------- bad lines

ROWS = b"".join(b"%d,name %d\n" % (i, i) for i in range(2000))
TYPED = pa.schema({"a": pa.int64(), "b": pa.string()})


def with_line(line: bytes, at: int) -> bytes:
    """A header and 2000 rows, of which the one on line `at` (from 1) is another."""
    lines = [b"a,b", *ROWS.splitlines()]
    lines[at - 1] = line
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("step", [None, 1000, 7])
@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b"1", FileReadError, "has 1 fields, expected 2: '1'"),
        (b"1,2,3", FileReadError, "has 3 fields, expected 2: '1,2,3'"),
        (b"1,\xff,3", FileReadError, r"has 3 fields, expected 2: '1,\\\\xff,3'"),
        (b"x,2", SchemaMismatchError, "column 'a': 'x' cannot be read as int64.*schema="),
        (b"1.5,2", SchemaMismatchError, "column 'a': '1.5' cannot be read as int64"),
        (b"1,\xff", FileReadError, "column 'b': '.*xff' is not UTF-8.*encoding"),
        (b'1,"x', FileReadError, "a quoted value does not end on this line.*newlines_in_values"),
    ],
)
@pytest.mark.parametrize("at", [2, 1500, 2001])
def test_a_bad_line_is_an_error_that_names_file_line_and_column(
    opened, step: int | None, line: bytes, kind: type[DataLoaderUtilsError], message: str, at: int
) -> None:
    with pytest.raises(kind, match=rf"f.csv, line {at}[,:].*{message}"):
        opened(with_line(line, at), step=step, schema=TYPED).read()


@pytest.mark.parametrize("step", [None, 1000])
@pytest.mark.parametrize("line", [b"1", b"1,2,3", b"x,2", b"1,\xff", b"1,\xff,3"])
@pytest.mark.parametrize("at", [2, 1500, 2001])
def test_a_bad_line_that_is_skipped_takes_no_other_along(
    opened, caplog: pytest.LogCaptureFixture, tmp_path: Path, step: int | None, line: bytes, at: int
) -> None:
    file = opened(with_line(line, at), step=step, schema=TYPED, on_bad_lines="skip")
    with caplog.at_level(logging.WARNING), recording() as noted:
        expected = [i for i in range(2000) if i != at - 2]
        assert file.read() == {"a": expected, "b": [f"name {i}" for i in expected]}
        assert file.read()["a"] == expected
    assert noted.work().skipped_lines == 2
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{file.path}: on_bad_lines='skip' left out 1 bad lines")
    assert f"line {at};" in record.getMessage()


def test_many_bad_lines_of_both_kinds_are_skipped(opened) -> None:
    lines = [b"a,b"] + [b"bad" if i % 7 == 0 else b"x,y" if i % 5 == 0 else b"%d,y" % i for i in range(500)]
    expected = [i for i in range(500) if i % 7 and i % 5]
    file = opened(b"\n\n".join(lines), schema=TYPED, on_bad_lines="skip")
    with recording() as noted:
        assert file.read()["a"] == expected
    assert noted.work().skipped_lines == 500 - len(expected)


def test_a_quoted_newline_is_no_line_to_skip(opened) -> None:
    with pytest.raises(FileReadError, match="line 3: a quoted value does not end on this line"):
        opened(b'a,b\n1,2\n3,"x\ny"\n', on_bad_lines="skip").read()


@pytest.mark.parametrize("content", [b'"a\nb",c\n1,2\n', b'"a\n1\n'])
def test_a_header_with_a_quoted_newline_is_refused(opened, content: bytes) -> None:
    with pytest.raises(FileReadError, match="line 1: a quoted value does not end on this line: '\"a'"):
        opened(content)


# ----------------------------------------------------------------------------------------------------- quoted newlines


@given(
    rows=st.lists(st.tuples(st.integers(0, 99), st.text('ab ",\n\r', max_size=6)), min_size=1, max_size=12),
    step=st.integers(1, 60),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_quoted_newlines_are_read_if_declared_and_an_error_if_not(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]], step: int, end: str
) -> None:
    sink = io.StringIO(newline="")
    csv.writer(sink, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([("a", "b"), *rows])
    folder, content = tmp_path_factory.getbasetemp(), sink.getvalue().encode()
    expected = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
    file = Opened(folder, content, step=step, schema=TYPED, newlines_in_values=True)
    assert len(file.layout.segments) == 1
    assert file.read() == expected
    if any("\n" in text for _, text in rows):
        with pytest.raises(FileReadError, match=r"line \d+: a quoted value does not end on this line"):
            Opened(folder, content, step=step, schema=TYPED).read()
    else:
        assert Opened(folder, content, step=step, schema=TYPED).read() == expected


@given(
    marks=st.lists(st.sampled_from([",", '"', '"', "\\", "a", "\n", "\r\n"]), max_size=14),
    escape=st.sampled_from(["", "\\"]),
    newlines=st.booleans(),
)
def test_rows_are_the_same_for_a_python_whose_possessive_groups_fail(
    marks: list[str], escape: str, newlines: bool
) -> None:
    options, text = CsvOptions(escape_char=escape, newlines_in_values=newlines), "".join(marks).encode()
    found = []
    for many in (b"*+", b"*"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(possessive, "MANY", many)
            dialect = Dialect("f.csv", options)
        found.append([(row, end, dialect.is_open(row.text)) for row, end in dialect.rows(text)])
    assert found[0] == found[1] or sys.version_info < (3, 11, 5)


def test_a_quoted_newline_after_the_head_is_an_error_of_the_range_it_begins_in(opened) -> None:
    lines = [b"a,b"] + [b"%d,plain text of a row" % i for i in range(60_000)]
    lines[50_000] = b'49999,"first\nsecond, third"'
    content = b"\n".join(lines) + b"\n"
    place = content.index(b"\nsecond") + 1 - len(b"a,b\n")  # where a range begins: within the quotes
    file = opened(content, step=place)
    assert [segment.number for segment in file.layout.segments] == [0, 1]
    with pytest.raises(FileReadError, match=r"line 50001: a quoted value does not end on this line: '49999,\"first'"):
        file.reader.read([0], ["a"])


def test_quotes_within_values_that_are_not_quoted_mean_nothing(opened) -> None:
    content = b'a,b\n1,5" disk\n2,7\n3,"x"y"\n'
    assert opened(content, step=5).read() == {"a": [1, 2, 3], "b": ['5" disk', "7", 'xy"']}
    assert opened(content, newlines_in_values=True).read()["a"] == [1, 2, 3]


def test_a_quote_that_is_never_closed_is_an_error(opened) -> None:
    with pytest.raises(FileReadError, match="line 3: a quoted value does not end on this line"):
        opened(b'a,b\n1,2\n3,"x\n4,5\n', newlines_in_values=True).read()


def test_bad_rows_among_quoted_newlines_are_named_by_their_line(opened) -> None:
    content = b'a,b\n1,"x\n\ny"\nz,2\n3,4\n'
    with pytest.raises(SchemaMismatchError, match="line 5, column 'a': 'z' cannot be read as int64"):
        opened(content, schema=TYPED, newlines_in_values=True).read()
    file = opened(content, schema=TYPED, newlines_in_values=True, on_bad_lines="skip")
    assert file.read() == {"a": [1, 3], "b": ["x\n\ny", "4"]}


@given(row=st.text('ab",\\\r', max_size=12), end=st.sampled_from(["", "\n", "\r\n"]), one_line=st.booleans())
def test_every_byte_is_part_of_a_row_or_its_end(row: str, end: str, one_line: bool) -> None:
    lines = (row + end).encode() * 3
    dialect = Dialect("f", CsvOptions(escape_char="\\", newlines_in_values=not one_line))
    joined = b"".join(found.text for found, _ in dialect.rows(lines))
    assert joined.replace(b"\r", b"").replace(b"\n", b"") == lines.replace(b"\r", b"").replace(b"\n", b"")


@given(row=st.text('ab",', max_size=12))
def test_rows_that_end_within_quotes_are_those_that_python_reads_on_after(row: str) -> None:
    read = next(csv.reader([row + "\n", "\n"]), [])
    open_row = bool(read) and "\n" in read[-1]
    assert Dialect("f", CsvOptions()).is_open(row.encode()) == open_row


# -------------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd"])
def test_compressed_text_is_found_by_suffix_or_by_magic_bytes_and_is_one_sequence_of_segments(
    opened, codec: str
) -> None:
    content = b"a,b\n" + ROWS * 400  # 11 MB: more than is parsed at a time
    packed = {
        "gzip": lambda: gzip.compress(content, 1),
        "bz2": lambda: bz2.compress(content, 1),
        "zstd": lambda: pa.Codec("zstd").compress(content).to_pybytes(),
    }[codec]()
    suffix = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}[codec]
    for name in ("f.csv", f"f.csv{suffix}"):
        file = opened(packed, name=name, step=100)
        assert file.layout.sequential
        counted = codec == "zstd"  # it expands so much that its text is counted
        estimate = len(content) - len(b"a,b\n") if counted else 4 * len(packed)
        assert sum(segment.size_bytes for segment in file.layout.segments) == estimate
        assert sum(file.read()["a"]) == 400 * sum(range(2000))
    with pytest.raises(FileReadError, match=f"f.csv{suffix}.*Truncated"):
        opened(packed[:-2], name=f"f.csv{suffix}").read()


def test_bad_lines_of_compressed_text_are_named(opened) -> None:
    content = b"a,b\n" + ROWS * 400 + b"x,y\n"
    with pytest.raises(SchemaMismatchError, match="line 800002, column 'a': 'x'"):
        opened(gzip.compress(content, 1), schema=TYPED).read()


def test_members_of_a_gzip_file_are_read_on(opened) -> None:
    assert opened(gzip.compress(b"a,b\n1,x\n") + gzip.compress(b"2,y\n")).read() == {"a": [1, 2], "b": ["x", "y"]}
