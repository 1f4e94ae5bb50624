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
from torch_dataloader_utils.formats.parquet import FORMAT, bounds, thrift
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
    monkeypatch.setattr(bounds, "_replacement", lambda *args: pytest.fail("a column chunk was walked"))
    nested = pa.table({**TABLE_COLUMNS, "nested": pa.array([{"a": [{"b": 1}]}, None, {"a": []}])})
    for options in ({}, {"version": "1.0"}, {"write_statistics": False}, {"use_dictionary": False}):
        file = written(nested, write_page_index=True, row_group_size=2, **options)
        footer = footer_of(file)
        schema = pq.read_metadata(pa.BufferReader(file)).schema
        assert bounds.without_bad_bounds(footer, schema) is footer
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
        patch.setattr(bounds, "_end_of_common", lambda *args: None)
        assert outcome(bytes(footer), schema) == quick


def outcome(footer: bytes, schema: pq.ParquetSchema) -> bytes | str:
    try:
        return bounds.without_bad_bounds(footer, schema)
    except (ValueError, IndexError):
        return "refused"
