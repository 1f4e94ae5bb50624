import datetime
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError, SchemaMismatchError
from torch_dataloader_utils.formats.base import Reader
from torch_dataloader_utils.formats.orc.footer import read_footer
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, open_storage

from .contract import FormatContract

FORM = format_named("orc")


def write(table: pa.Table, path: Path, rows: int = 1 << 20, **options: object) -> None:
    """Write stripes of so many rows: a stripe ends with the batch that makes it larger than a byte."""
    with orc.ORCWriter(str(path), stripe_size=1, batch_size=rows, **options) as writer:
        writer.write(table)


def opened(path: Path) -> tuple[FileLayout, Reader]:
    info = DataFileInfo(str(path), path.stat().st_size)
    layout, schema = FORM.layout(info, Storage(), {})
    return layout, FORM.open(info, layout, Storage(), {}, schema)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    layout, reader = opened(path)
    names = list(columns or reader.schema.names)
    found = reader.read([segment.number for segment in layout.segments], names)
    reader.close()
    return pa.table(dict(zip(names, found, strict=True)))


class TestOrcContract(FormatContract):
    form = FORM
    wrong = (b"", b"no such format at all", b"ORC" * 5, b"ORC" + b"\0" * 99, b"PAR1" * 5)

    def write(self, table: pa.Table, path: Path, segment_rows: int) -> None:
        write(table, path, segment_rows)


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("columns", [1, 300])
def test_stripes_have_the_rows_that_the_footer_says(tmp_path: Path, compression: str, columns: int) -> None:
    noise = [np.random.default_rng(i).bytes(100) for i in range(2500)]  # what is not yet 64 KiB does not end a stripe
    table = pa.table({"noise": noise} | {f"column_{i}": np.arange(2500) for i in range(columns)})
    write(table, tmp_path / "f", 1000, compression=compression)
    layout, _ = opened(tmp_path / "f")
    assert [(s.number, s.first_row, s.rows) for s in layout.segments] == [(0, 0, 1000), (1, 1000, 1000), (2, 2000, 500)]
    assert read(tmp_path / "f").equals(table)


def test_a_file_without_rows_has_a_schema_and_no_segments(tmp_path: Path) -> None:
    write(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "f")
    layout, reader = opened(tmp_path / "f")
    assert layout.segments == ()
    assert reader.schema == pa.schema({"a": pa.int8()})
    assert reader.read([], ["a"])[0].type == pa.int8()
    reader.close()


def test_estimated_bytes_of_numbers_are_rows_times_width(tmp_path: Path) -> None:
    write(pa.table({"a": range(25), "s": [{"x": 1.5, "y": True}] * 25}), tmp_path / "f", 10)
    assert [segment.size_bytes for segment in opened(tmp_path / "f")[0].segments] == [170, 170, 85]


def test_estimated_bytes_of_text_are_its_share_of_the_stored_ones_or_16_a_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 122, 100))) for _ in range(1000)]
    write(pa.table({"i": pa.array(range(1000), pa.int32()), "long": texts}), tmp_path / "f")
    (segment,) = opened(tmp_path / "f")[0].segments
    assert 4000 + 50_000 <= segment.size_bytes <= 4000 + 60_000
    write(pa.table({"i": pa.array(range(1000), pa.int32()), "short": ["a"] * 1000}), tmp_path / "f")
    (segment,) = opened(tmp_path / "f")[0].segments
    assert segment.size_bytes == 4000 + 16_000


def test_names_with_dots_do_not_mix_with_fields_of_structs(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x.y": [1, 2],
            "x": [{"y": 3, "z": 4}, {"y": 5, "z": 6}],
            "y": [7, 8],
            "x.y.z": [9, 9],
            "": [1, 0],
            "a`b": [5, 6],
        }
    )
    write(table, tmp_path / "f", 1)
    for name in table.column_names:
        assert read(tmp_path / "f", [name])[name].to_pylist() == table[name].to_pylist()
    names = ["x.y", "y", "x"]
    assert read(tmp_path / "f", names).to_pylist() == table.select(names).to_pylist()


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    write(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "f")
    with pytest.raises(SchemaMismatchError, match="f: more than one column is called 'a'"):
        StructuredDataset.create_dataloader(tmp_path / "f", format="orc")


WHEN = [datetime.datetime(2024, 6, 1, 12, 0, 0, 123456), None, datetime.datetime(1901, 1, 1, 1, 1, 1, 5)]
DENSE = [pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32())]
TYPES = [
    (pa.array([1, None, -3], pa.int8()), pa.int8()),
    (pa.array([True, None, False]), pa.bool_()),
    (pa.array([1.5, None, -0.0], pa.float32()), pa.float32()),
    (pa.array([Decimal("1.23"), None, Decimal("-4.50")], pa.decimal128(10, 2)), pa.decimal128(10, 2)),
    (pa.array([Decimal(10) ** 35, None, Decimal(-1)], pa.decimal128(38, 2)), pa.decimal128(38, 2)),
    (pa.array(WHEN, pa.timestamp("us")), pa.timestamp("ns")),
    (pa.array(WHEN, pa.timestamp("us", "Europe/Berlin")), pa.timestamp("ns", "UTC")),
    (pa.array([datetime.date(2024, 1, 1), None, datetime.date(1, 1, 1)]), pa.date32()),
    (pa.array([b"a", None, b"\xff"]), pa.binary()),
    (pa.array(["a", None, "\u00fc"], pa.large_string()), pa.string()),
    (pa.array([[1], None, []], pa.list_(pa.int16())), pa.list_(pa.int16())),
    (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
    (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int32())),
    (pa.array([{"x": {"y": 1}}, None, {"x": None}]), pa.struct({"x": pa.struct({"y": pa.int64()})})),
]


@pytest.mark.parametrize(("array", "kind"), TYPES, ids=[str(kind) for _, kind in TYPES])
def test_types_are_those_that_pyarrow_reads(tmp_path: Path, array: pa.Array, kind: pa.DataType) -> None:
    write(pa.table({"before": range(3), "a": array}), tmp_path / "f")
    _, reader = opened(tmp_path / "f")
    assert reader.schema.field("a").type == kind
    (found,) = reader.read([0], ["a"])
    reader.close()
    assert found.type == kind
    assert found.to_pylist() == array.cast(kind).to_pylist()


def test_unions_are_read(tmp_path: Path) -> None:
    union = pa.UnionArray.from_dense(*DENSE, [pa.array([1, 2]), pa.array(["x"])])
    write(pa.table({"u": union, "b": range(3)}), tmp_path / "f")
    assert read(tmp_path / "f", ["u"])["u"].to_pylist() == [1, "x", 2]


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("year", [1, 1600, 2300, 9999])
def test_timestamps_beyond_nanoseconds_are_an_error_for_their_column_only(
    tmp_path: Path, year: int, zone: str | None
) -> None:
    far = pa.array(
        [[{"when": datetime.datetime(year, 1, 1)}], []], pa.list_(pa.struct({"when": pa.timestamp("us", zone)}))
    )
    near = pa.array([datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)], pa.timestamp("us", zone))
    table = pa.table({"id": [1, 2], "s": [{"x": 1, "y": [2]}] * 2, "far": far, "near": near})
    write(table, tmp_path / "f")
    assert read(tmp_path / "f", ["near", "id", "s"])["near"].to_pylist() == near.to_pylist()
    with pytest.raises(FileReadError, match=r"f, column far: has timestamps outside .* columns="):
        read(tmp_path / "f", ["id", "far"])
    layout, schema = FORM.layout(DataFileInfo(str(tmp_path / "f"), 0), Storage(), {})
    unpacked, _ = FORM.unpack(FORM.pack(layout, schema))
    assert unpacked.metadata.overflowing == {"far"}


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def with_footer(content: bytes, change: bytes) -> bytes:
    """An uncompressed ORC file with these bytes added to the end of its footer."""
    size = content[-1]
    postscript = content[-1 - size : -1]
    assert postscript[0] == 0x08  # the length of the footer
    length, at, shift = 0, 1, 0
    while True:
        length |= (postscript[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if postscript[at - 1] < 128:
            break
    changed = b"\x08" + varint(length + len(change)) + postscript[at:]
    return content[: -1 - size] + change + changed + bytes([len(changed)])


def test_encrypted_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(pa.table({"a": range(3)}), path)
    content = path.read_bytes()
    path.write_bytes(with_footer(content, b""))
    assert read(path)["a"].to_pylist() == [0, 1, 2]
    path.write_bytes(with_footer(content, b"\x52\x02\x18\x01"))  # field 10: encryption
    with pytest.raises(FileReadError, match=r"f, footer: .*encrypted"):
        opened(path)


def test_stripes_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(pa.table({"a": range(3)}), path)
    path.write_bytes(with_footer(path.read_bytes(), b"\x30\x07"))  # field 6: the file's rows
    with pytest.raises(FileReadError, match=r"f, footer: .*3 rows, but the file declares 1 and 7"):
        opened(path)


@pytest.mark.parametrize("tail", [b"\x12\xff", b"\x12\x7f\0", b"\xff" * 12, b"\x13", b"\x12\x03\x1a\x01\xff"])
def test_footers_that_are_none_are_an_error(tail: bytes) -> None:
    with pytest.raises(ValueError, match="ORC footer"):
        read_footer(tail)


def test_a_decimal_of_too_many_digits_is_an_error() -> None:
    """pyarrow would end the process when asked for the schema."""
    kind = b"\x08\x0e\x28\x2a"  # kind 14, precision 42
    footer = b"\x22" + varint(len(kind)) + kind
    with pytest.raises(ValueError, match="a decimal of 42 digits"):
        read_footer(b"\x12" + varint(len(footer)) + footer)


def test_fields_of_other_wire_types_are_passed_over() -> None:
    stripe = b"\x08\x03\x10\x05\x18\x07\x20\x01\x28\x64" + b"\x31" + b"\0" * 8 + b"\x3d" + b"\0" * 4
    footer = b"\x1a" + varint(len(stripe)) + stripe
    assert read_footer(b"\x18\x05\x12" + varint(len(footer)) + footer).stripes == ((3, 13, 100),)


@pytest.mark.parametrize("columns", [["a", "b", "s"], ["s"], ["b", "a"]])
def test_remote_files_are_read_as_local_ones(tmp_path: Path, columns: list[str]) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.random(30_000), "b": rng.random(30_000), "s": [str(i) for i in range(30_000)]})
    write(table, tmp_path / "f", 10_000)
    storage, path = open_storage(f"memory:/{tmp_path}/f")
    with storage.connect().open_output_stream(path) as sink:
        sink.write((tmp_path / "f").read_bytes())
    info = DataFileInfo(path, (tmp_path / "f").stat().st_size)
    layout, schema = FORM.layout(info, storage, {})
    assert len(layout.segments) == 3
    assert layout == opened(tmp_path / "f")[0]
    reader = FORM.open(info, layout, storage, {}, pa.schema([schema.field(name) for name in columns]))
    for number in (2, 0, 1):
        for name in columns:
            assert reader.read([number], [name])[0].equals(table[name].slice(10_000 * number, 10_000))
    reader.close()


def test_planning_reads_the_tail_only(tmp_path: Path) -> None:
    write(pa.table({f"c{i}": np.random.default_rng(0).random(100_000) for i in range(5)}), tmp_path / "f", 10_000)
    with pa.OSFile(str(tmp_path / "f")) as file:
        source = Counting(file)
        opened_file = orc.ORCFile(pa.PythonFile(source, "r"))
        assert len(read_footer(opened_file.reader.serialized_file_tail()).stripes) == opened_file.nstripes == 10
        assert source.sizes == [16384]


class Counting:
    """An open file that notes the sizes of its reads."""

    closed = False

    def __init__(self, source: pa.NativeFile) -> None:
        self._source, self.sizes = source, []

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def read(self, size: int) -> bytes:
        self.sizes.append(size)
        return self._source.read(size)
