import io
import tracemalloc
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import address_space
from torch_dataloader_utils.errors import FileReadError, UnsupportedTypeError
from torch_dataloader_utils.formats import avro
from torch_dataloader_utils.formats.avro import FORMAT, AvroReader
from torch_dataloader_utils.formats.avro import container as avro_container
from torch_dataloader_utils.formats.avro.schema import arrow_schema, without_logical_types
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, open_storage
from torch_dataloader_utils.storage.remote import Range, RangeFile

from .avro_writing import write_avro
from .contract import TYPES, FormatContract, numbers_of

LONGS = st.integers(-(2**63), 2**63 - 1)
MORE_TYPES = [
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.map_(pa.int32(), pa.string()), st.lists(st.tuples(st.integers(0, 9), st.text(max_size=3)), max_size=3)),
    (pa.decimal128(38, 10), st.decimals(min_value=-(10**27), max_value=10**27, places=10)),
]
AVRO_TYPES = [item for item in TYPES if item[0] != pa.int8() and not pa.types.is_fixed_size_list(item[0])] + MORE_TYPES


class TestAvroContract(FormatContract):
    form = FORMAT
    types = AVRO_TYPES
    wrong = (b"", b"no such format at all", b"Obj\x01", b"Obj\x01" + b"\0" * 99, b"PAR1" * 5)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def blocks(cls) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(avro_container, "_SEGMENT_BYTES", 1)
            yield

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        write_avro(table, path, segment_rows)


def opened(path: Path, wanted: pa.Schema | None = None) -> tuple[FileLayout, AvroReader]:
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = FORMAT.layout(info, Storage(), {})
    return layout, FORMAT.open(info, layout, Storage(), {}, schema if wanted is None else wanted)


def read(path: Path) -> pa.Table:
    layout, reader = opened(path)
    found = reader.read(numbers_of(layout), reader.schema.names)
    reader.close()
    return pa.Table.from_arrays(found, schema=reader.schema)


def write_records(path: Path, schema: Any, records: list[Any]) -> None:
    with path.open("wb") as sink:
        fastavro.writer(sink, schema, records)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_every_codec_is_read(tmp_path: Path, codec: str) -> None:
    table = pa.table({"a": range(1000), "s": [f"text {i % 7}" for i in range(1000)]})
    write_avro(table, tmp_path / "f", 100, codec)
    assert read(tmp_path / "f").equals(table)


def test_small_blocks_are_joined_and_large_files_are_cut(tmp_path: Path) -> None:
    write_avro(pa.table({"a": range(1000)}), tmp_path / "small", 10)
    assert [segment.rows for segment in opened(tmp_path / "small")[0].segments] == [1000]
    noise = np.random.default_rng(0).bytes(3000)
    write_avro(pa.table({"a": [noise] * 1000}), tmp_path / "large", 10)
    rows = [segment.rows for segment in opened(tmp_path / "large")[0].segments]
    assert rows == [350, 350, 300]  # of 10 rows in 30 kB, as many blocks as make a mebibyte


def test_planning_a_remote_file_of_many_blocks_takes_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_avro(pa.table({"a": range(20_000)}), tmp_path / "f", 10)
    content = (tmp_path / "f").read_bytes()
    storage, path = open_storage(f"memory:/{tmp_path}/f")
    with storage.connect().open_output_stream(path) as sink:
        sink.write(content)
    asked: list[Range] = []
    real = RangeFile._get

    def counted(file: RangeFile, ranges: list[Range]) -> list[bytes]:
        asked.extend(ranges)
        return real(file, ranges)

    monkeypatch.setattr(RangeFile, "_get", counted)
    layout, _ = FORMAT.layout(DataFileInfo(path, len(content)), storage, {})
    assert [segment.rows for segment in layout.segments] == [20_000]
    assert len(asked) <= 3


def test_times_beyond_what_python_has_are_kept(tmp_path: Path) -> None:
    most, least = 2**63 - 1, -(2**63)
    columns = {
        "day": pa.array([2**31 - 1, -(2**31), None], pa.int32()).view(pa.date32()),
        "time": pa.array([86_399_999_999, 0, None], pa.int64()).view(pa.time64("us")),
        "us": pa.array([most, least, None]).view(pa.timestamp("us")),
        "utc": pa.array([most, least, None]).view(pa.timestamp("us", "UTC")),
        "ns": pa.array([most, least, None]).view(pa.timestamp("ns")),
    }
    table = pa.table(columns)
    write_avro(table, tmp_path / "f")
    assert read(tmp_path / "f").equals(table)


def test_timestamps_without_icebergs_mark_are_instants() -> None:
    plain = {"type": "long", "logicalType": "timestamp-millis"}
    local = {"type": "long", "logicalType": "local-timestamp-millis"}
    fields = [{"name": "a", "type": plain}, {"name": "b", "type": local}]
    schema = arrow_schema({"type": "record", "name": "r", "fields": fields})
    assert schema.types == [pa.timestamp("ms", "UTC"), pa.timestamp("ms")]


def test_nested_types_and_field_ids(tmp_path: Path) -> None:
    ids = [{"PARQUET:field_id": str(number)} for number in range(8)]
    inner = pa.struct([pa.field("x", pa.int64(), True, ids[3]), pa.field("y", pa.string(), False, ids[4])])
    listed = pa.field("l", pa.list_(pa.field("element", inner, True, ids[2])), True, ids[1])
    pairs = pa.map_(pa.field("key", pa.int32(), False, ids[6]), pa.field("value", pa.float64(), True, ids[7]))
    schema = pa.schema([listed, pa.field("m", pairs, True, ids[5])])
    lists = [[{"x": 1, "y": "a"}, None], None, []]
    table = pa.table([pa.array(lists, listed.type), pa.array([[(1, 1.5), (2, None)], None, []], pairs)], schema=schema)
    write_avro(table, tmp_path / "f")
    found = read(tmp_path / "f")
    assert found.to_pylist() == table.to_pylist()
    assert found.schema.equals(schema, check_metadata=True)


def test_avros_own_maps_enums_and_names(tmp_path: Path) -> None:
    color = {"type": "enum", "name": "Color", "namespace": "n.s", "symbols": ["RED", "BLUE"]}
    schema = {
        "type": "record",
        "name": "r",
        "namespace": "n.s",
        "fields": [
            {"name": "color", "type": color},
            {"name": "again", "type": ["null", "Color"], "default": None},
            {"name": "full", "type": "n.s.Color"},
            {"name": "map", "type": {"type": "map", "values": ["null", "long"]}},
            {"name": "nothing", "type": "null"},
            {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }
    row = {"color": "RED", "again": None, "full": "BLUE", "map": {"a": 1, "b": None}, "nothing": None}
    write_records(tmp_path / "f", fastavro.parse_schema(schema), [{**row, "money": Decimal("-1.05")}])
    expected = {**row, "map": [("a", 1), ("b", None)], "money": Decimal("-1.05")}
    assert read(tmp_path / "f").to_pylist() == [expected]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (["int", "string"], "union of several types"),
        ({"type": "record", "name": "self", "fields": [{"name": "x", "type": ["null", "self"]}]}, "contains itself"),
    ],
)
def test_types_that_arrow_has_no_word_for_are_errors_that_say_so(kind: Any, said: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=said):
        arrow_schema({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})
    with pytest.raises(UnsupportedTypeError, match="expected a record"):
        arrow_schema("long")


@given(st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_the_header_with_plain_numbers_is_a_header(sizes: list[int]) -> None:
    schema = {
        "type": "record",
        "name": "x" * sizes[0],
        "fields": [
            {"name": "d", "type": {"type": "int", "logicalType": "date"}, "doc": "y" * size} for size in sizes[:1]
        ],
    }
    file = io.BytesIO()
    fastavro.writer(file, schema, [{"d": 3}], codec="deflate")
    source = pa.BufferReader(file.getvalue())
    header, given_schema, at = avro_container.read_header(source)
    assert arrow_schema(given_schema).types == [pa.date32()]
    assert list(fastavro.reader(io.BytesIO(header + file.getvalue()[at:]))) == [{"d": 3}]
    assert "date" not in str(without_logical_types(given_schema))


def test_long_headers_are_read_whole(tmp_path: Path) -> None:
    table = pa.table({f"column_{i}_{'x' * 100}": [i] for i in range(2000)})
    write_avro(table, tmp_path / "f")
    assert read(tmp_path / "f").equals(table)


def test_columns_that_are_not_wanted_are_read_where_asked_for(tmp_path: Path) -> None:
    table = pa.table({"a": range(10), "b": range(10), "c": range(10)})
    write_avro(table, tmp_path / "f")
    _, reader = opened(tmp_path / "f", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    first = reader.read([0], ["a"])[0]
    assert [c.to_pylist() for c in reader.read([0], ["c", "b"])] == [list(range(10))] * 2
    again = reader.read([0], ["a"])[0]
    assert first.equals(again)
    addresses = [column.chunk(0).buffers()[1].address for column in (first, again)]
    assert addresses[0] != addresses[1]  # callers own what they are given
    reader.close()


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit of one mebibyte for blocks."""
    for module in (avro, avro_container):
        monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    return 2**20


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "snappy", "zstandard"])
@pytest.mark.parametrize("values", [1, 32])
def test_blocks_that_expand_beyond_the_limit_are_named_in_bounded_memory(
    tmp_path: Path, limit: int, codec: str, values: int
) -> None:
    write_avro(pa.table({"a": ["x" * (limit * 16 // values)] * values}), tmp_path / "f", 1, codec)
    _, reader = opened(tmp_path / "f")
    tracemalloc.start()
    try:
        with pytest.raises(
            FileReadError, match=r"/f, the blocks from byte \d+ on: hold more than 1048576 bytes.*smaller"
        ):
            reader.read([0], ["a"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        reader.close()
    dictionary = 2**23 if codec == "xz" else 0
    assert peak < 5 * limit + dictionary


@pytest.mark.usefixtures("limit")
def test_a_block_that_is_stored_beyond_the_limit_is_named_when_planned(tmp_path: Path) -> None:
    write_avro(pa.table({"a": ["x" * 2**20] * 2}), tmp_path / "f", 1)
    with pytest.raises(FileReadError, match=r"/f, the blocks from byte \d+ on: hold more than 1048576 bytes"):
        opened(tmp_path / "f")


def test_blocks_just_below_the_limit_are_read(tmp_path: Path, limit: int) -> None:
    table = pa.table({"a": ["x" * (limit - 9)]})
    for codec in ("null", "deflate", "bzip2", "xz", "snappy", "zstandard"):
        write_avro(table, tmp_path / codec, 1, codec)
        assert read(tmp_path / codec).equals(table)


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("rows", [2**27, 2**40])
def test_a_tiny_file_cannot_declare_rows_that_take_no_bytes(tmp_path: Path, codec: str, rows: int) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [], codec=codec)
    head, sync = io.BytesIO(), sink.getvalue()[-16:]
    block = zlib.compress(b"", wbits=-15) if codec == "deflate" else b""
    fastavro.schemaless_writer(head, avro_container.BLOCK_SCHEMA, {"rows": rows, "size": len(block)})
    (tmp_path / "f").write_bytes(sink.getvalue() + head.getvalue() + block + sync)
    with pytest.raises(FileReadError, match=rf"/f.*a block says {rows} rows in"):
        read(tmp_path / "f")


def test_rows_of_nulls_are_read(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "null"}]}
    write_records(tmp_path / "f", schema, [{"a": None}] * 10_000)
    assert read(tmp_path / "f").equals(pa.table({"a": pa.nulls(10_000)}))


def test_arrays_of_values_that_take_no_bytes_are_refused() -> None:
    empty = {
        "type": "record",
        "name": "e",
        "fields": [{"name": "x", "type": {"type": "fixed", "name": "n", "size": 0}}],
    }
    for items in ("null", empty):
        fields = [{"name": "a", "type": {"type": "array", "items": items}}]
        with pytest.raises(UnsupportedTypeError, match="nothing limits its length"):
            arrow_schema({"type": "record", "name": "r", "fields": fields})


def test_damaged_blocks_are_errors_that_name_the_file(tmp_path: Path) -> None:
    write_avro(pa.table({"a": range(1000)}), tmp_path / "damaged", 100)
    data = bytearray((tmp_path / "damaged").read_bytes())
    data[-20] ^= 0xFF
    (tmp_path / "damaged").write_bytes(data[:-1] + b"?")
    with pytest.raises(FileReadError, match=r"damaged.*marker"):
        read(tmp_path / "damaged")


def test_a_type_that_cannot_be_read_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "f.avro"
    write_avro(pa.table({"x": pa.array([1, 2])}), path)
    path.write_bytes(path.read_bytes().replace(b'"long"', b'"lonk"'))
    with pytest.raises(UnsupportedTypeError, match=r"f\.avro: the Avro type 'lonk'"):
        FORMAT.layout(DataFileInfo(str(path), path.stat().st_size), Storage(), {})


def test_a_damaged_block_leaves_no_memory_behind() -> None:
    whole = pa.compress(bytes(1000), "zstd", asbytes=True)
    damaged = whole[:10] + b"\xff\xff" + whole[12:]
    before = address_space()
    for _ in range(4):
        with pytest.raises(OSError, match="ZSTD"):
            avro._zstandard(damaged, avro_container.MOST_BYTES)
    assert address_space() - before < avro_container.MOST_BYTES
