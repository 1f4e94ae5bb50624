"""Statistics whose minima and maxima have a wrong length; pyarrow ends the process on them."""

import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.reading import read_all
from torch_dataloader_utils.formats.parquet import FORMAT, guards, thrift
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage

# A column's values, and how its maximum is stored.
COLUMNS = {
    "int32": (pa.array([3, None, 77_777], pa.int32()), struct.pack("<i", 77_777)),
    "int64": (pa.array([3, None, 77_777]), struct.pack("<q", 77_777)),
    "float": (pa.array([3.0, None, 77_777.0], pa.float32()), struct.pack("<f", 77_777)),
    "double": (pa.array([3.0, None, 77_777.0]), struct.pack("<d", 77_777)),
    "decimal": (pa.array([Decimal(3), None, Decimal(77_777)], pa.decimal128(30)), (77_777).to_bytes(13, "big")),
    "fixed": (pa.array([b"a" * 200, None, b"b" * 200], pa.binary(200)), b"b" * 200),
}
TABLE_COLUMNS = {name: array for name, (array, _) in COLUMNS.items()} | {"text": pa.array(["a", None, "b" * 500])}


def footer_of(file: bytes) -> bytes:
    return file[-8 - int.from_bytes(file[-8:-4], "little") : -8]


def with_footer(file: bytes, footer: bytes) -> bytes:
    return file[: -8 - len(footer_of(file))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def written(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def coded(value: bytes) -> bytes:
    length = len(value)
    return (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + value


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_bound_shorter_than_its_type_is_removed(tmp_path: Path, name: str, kept: int) -> None:
    array, maximum = COLUMNS[name]
    table = pa.table({"before": [1, 2, 3], name: array, "after": ["x", "y", "z"]})
    file = written(table)
    footer = footer_of(file)
    assert coded(maximum) in footer
    path = tmp_path / "a.parquet"
    path.write_bytes(with_footer(file, footer.replace(coded(maximum), coded(maximum[:kept]))))

    layout, schema = FORMAT.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), {})
    assert FORMAT.null_columns(layout) == {name}
    assert set(FORMAT.value_ranges(layout, 0, {"before", name})) == {"before"}
    assert [FORMAT.pruner(pc.field("before") > most, schema)(layout, schema, {}).segments for most in (2, 3)] == [
        layout.segments,
        (),
    ]
    assert read_all(FORMAT, path) == table


def test_a_boolean_without_a_byte(tmp_path: Path) -> None:
    table = pa.table({"a": [False, True]})
    file = written(table)
    short = footer_of(file).replace(b"\x18\x01\x01\x18\x01\x00", b"\x18\x00\x18\x00")
    assert short != footer_of(file)
    path = tmp_path / "a.parquet"
    path.write_bytes(with_footer(file, short))
    assert read_all(FORMAT, path) == table


def test_common_footers_are_not_walked_and_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_replacement", lambda *args: pytest.fail("a column chunk was walked"))
    nested = pa.table({**TABLE_COLUMNS, "nested": pa.array([{"a": [{"b": 1}]}, None, {"a": []}])})
    for options in ({}, {"version": "1.0"}, {"write_statistics": False}, {"use_dictionary": False}):
        file = written(nested, write_page_index=True, row_group_size=2, **options)
        footer = footer_of(file)
        schema = pq.read_metadata(pa.BufferReader(file)).schema
        assert guards.without_bad_bounds(footer, schema) is footer
        assert thrift.end_of_struct(footer, 0) == len(footer)


@given(data=st.data())
def test_the_short_cut_judges_as_the_walk_does(data: st.DataObject) -> None:
    file = written(pa.table(TABLE_COLUMNS), row_group_size=2)
    footer = bytearray(footer_of(file))
    schema = pq.read_metadata(pa.BufferReader(file)).schema
    for _ in range(data.draw(st.integers(1, 3))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    quick = outcome(bytes(footer), schema)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "_end_of_common", lambda *args: None)
        assert outcome(bytes(footer), schema) == quick


def outcome(footer: bytes, schema: pq.ParquetSchema) -> bytes | str:
    try:
        return guards.without_bad_bounds(footer, schema)
    except (ValueError, IndexError):
        return "refused"


# A value of each kind of Thrift's compact protocol, as a field of a later writer may have it.
UNKNOWN_VALUES = {
    "true": (1, b""),
    "byte": (3, b"\x07"),
    "i16": (4, b"\x0e"),
    "i64": (6, b"\x80\x80\x01"),
    "double": (7, b"\x00" * 8),
    "binary": (8, b"\x03abc"),
    "list of binary": (9, b"\x28\x01a\x01b"),
    "set of booleans": (10, b"\x21\x01\x00"),
    "map": (11, b"\x01\x85\x01x\x02"),
    "empty map": (11, b"\x00"),
    "struct": (12, b"\x15\x02\x1c\x15\x04\x00\x00"),
}


def places_of_structs(footer: bytes) -> dict[str, int]:
    """Where a field can be put at the end of structs of a footer: the offsets of the bytes that end them."""

    def inside(at: int, number: int) -> int:
        return next(value for found, _, value in thrift.fields(footer, at) if found == number)

    def first(at: int, number: int) -> int:
        return thrift.items(footer, inside(at, number))[2]

    group = first(0, 4)
    chunk = first(group, 1)
    metadata = inside(chunk, 3)
    starts = {
        "schema element": first(0, 2),
        "statistics": inside(metadata, 12),
        "chunk's metadata": metadata,
        "chunk": chunk,
        "row group": group,
        "file": 0,
    }
    return {name: thrift.end_of_struct(footer, at) - 1 for name, at in starts.items()}


def with_fields(footer: bytes, fields: bytes, structs: list[str]) -> bytes:
    """The footer with more fields at the end of some of its structs."""
    for at in sorted((places_of_structs(footer)[name] for name in structs), reverse=True):
        footer = footer[:at] + fields + footer[at:]
    return footer


@pytest.mark.parametrize("number", [-16384, -1, 100, 32767])
@pytest.mark.parametrize("kind", UNKNOWN_VALUES)
def test_unknown_fields_are_skipped_whatever_their_number(tmp_path: Path, kind: str, number: int) -> None:
    """Databricks' Photon writes field -16384 after field 6; bad bounds are found beside such fields, too."""
    code, value = UNKNOWN_VALUES[kind]
    zigzag = (number << 1) ^ (number >> 63)
    coded_number = b""
    while zigzag >= 0x80:
        coded_number, zigzag = coded_number + bytes([zigzag & 0x7F | 0x80]), zigzag >> 7
    unknown = bytes([code]) + coded_number + bytes([zigzag]) + value
    array, maximum = COLUMNS["int64"]
    table = pa.table({"a": array, "b": ["x", "y", "z"]})
    for cut in (maximum, maximum[:3]):
        file = written(table)
        footer = footer_of(file).replace(coded(maximum), coded(cut))
        more = with_fields(footer, unknown, list(places_of_structs(footer)))
        path = tmp_path / "a.parquet"
        path.write_bytes(with_footer(file, more))
        layout, _ = FORMAT.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), {})
        assert ("a" in FORMAT.value_ranges(layout, 0, {"a"})) == (cut == maximum)
        assert read_all(FORMAT, path) == table


@pytest.mark.parametrize("number", [2, 4])
def test_a_used_field_that_is_there_again_is_refused(number: int) -> None:
    """A reader that takes the last of two would use another one than was checked."""
    file = written(pa.table({"a": [1, 2]}))
    footer = footer_of(file)
    schema = pq.read_metadata(pa.BufferReader(file)).schema
    again = bytes([9, number << 1]) + b"\x0c"  # an empty list of structs
    with pytest.raises(ValueError, match="is there twice"):
        guards.without_bad_bounds(with_fields(footer, again, ["file"]), schema)
