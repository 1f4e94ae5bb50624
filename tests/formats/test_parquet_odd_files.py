"""Parquet files that few writers make, or that are broken: the right values, or an error that names the file."""

import base64
import datetime
import re
import traceback
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.reading import read_all
from tests.fuzz.corpus import COMPRESSIONS, TABLE, WHEN
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import DamagedFileError, FileReadError, SchemaMismatchError
from torch_dataloader_utils.formats.parquet import thrift
from torch_dataloader_utils.formats.registry import format_named
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage, open_storage

FORM = format_named("parquet")


def check(path: Path, table: pa.Table, **options: object) -> None:
    """What is written is read."""
    pq.write_table(table, path, **options)
    found = read_all(FORM, path)
    assert found.schema.types == table.schema.types
    assert found.equals(table) or found.to_pylist() == table.to_pylist()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressions_and_versions_of_data_pages(tmp_path: Path, compression: str, version: str) -> None:
    check(tmp_path / "f", TABLE, compression=compression, data_page_version=version, row_group_size=25)


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        ("i", "DELTA_BINARY_PACKED"),
        ("t", "DELTA_BINARY_PACKED"),
        ("s", "DELTA_LENGTH_BYTE_ARRAY"),
        ("s", "DELTA_BYTE_ARRAY"),
        ("d", "DELTA_BYTE_ARRAY"),
        ("i", "BYTE_STREAM_SPLIT"),
        ("f", "BYTE_STREAM_SPLIT"),
        ("d", "BYTE_STREAM_SPLIT"),
        ("b", "RLE"),
        ("b", "PLAIN"),
        ("s", "PLAIN"),
    ],
)
def test_encodings(tmp_path: Path, column: str, encoding: str) -> None:
    options = {"use_dictionary": False, "column_encoding": encoding, "row_group_size": 25}
    check(tmp_path / "f", TABLE.select([column]), **options)
    assert encoding in pq.read_metadata(tmp_path / "f").row_group(0).column(0).encodings


def test_page_index_and_checksums_and_many_pages(tmp_path: Path) -> None:
    options = {"write_page_index": True, "write_page_checksum": True, "data_page_size": 64, "write_batch_size": 4}
    check(tmp_path / "f", TABLE, **options)
    assert pq.read_metadata(tmp_path / "f").row_group(0).column(0).has_offset_index


def test_a_dictionary_that_is_given_up_within_a_column_chunk(tmp_path: Path) -> None:
    table = pa.table({"s": [f"{i % (10 if i < 5000 else 10000):0100}" for i in range(10_000)]})
    options = {"dictionary_pagesize_limit": 10_000, "data_page_size": 1000, "compression": "none"}
    check(tmp_path / "f", table, **options)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(pq.read_metadata(tmp_path / "f").row_group(0).column(0).encodings)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[None], [], None], pa.list_(pa.null())),
        pa.array([[("x", None)], None, []], pa.map_(pa.string(), pa.null())),
        pa.nulls(3),
        pa.array([2**64 - 1, 0, None], pa.uint64()),
        pa.array([2**32 - 1, 0, None], pa.uint32()),
        pa.array([np.float16(1.5), np.float16(-0.0), None], pa.float16()),
        pa.array([[[1], []], None, [None]], pa.list_(pa.list_(pa.int8()))),
        pa.array([{"x": [{"y": None}]}, None, {"x": None}], pa.struct({"x": pa.list_(pa.struct({"y": pa.int8()}))})),
        pa.array([datetime.time(1, 2, 3), None, datetime.time(0)], pa.time64("us")),
        pa.array([datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)], pa.date32()),
        pa.array([datetime.datetime(1, 1, 1), None, datetime.datetime(9999, 1, 1)], pa.timestamp("us", "UTC")),
        pa.array([Decimal(10) ** 37, None, Decimal(-1)], pa.decimal128(38, 0)),
        pa.array([Decimal(10) ** 60, None, Decimal(-1)], pa.decimal256(76, 0)),
        pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
        pa.array(["a", "", None], pa.large_string()),
    ],
    ids=lambda array: str(array.type),
)
def test_types(tmp_path: Path, array: pa.Array) -> None:
    check(tmp_path / "f", pa.table({"before": range(3), "a": array}))


def test_float16_nan(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array(list(np.array([np.nan, np.inf, 1], np.float16)))}), tmp_path / "f")
    found = read_all(FORM, tmp_path / "f")["a"].to_numpy()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.array([np.nan, np.inf, 1], np.float16))


def test_row_groups_without_rows_and_files_without_columns(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "f", pa.schema({"a": pa.int64()})) as writer:
        for values in ([], [1], []):
            writer.write_table(pa.table({"a": pa.array(values, pa.int64())}))
    assert read_all(FORM, tmp_path / "f")["a"].to_pylist() == [1]
    pq.write_table(pa.table({}), tmp_path / "f")
    layout, schema = FORM.layout(DataFileInfo(str(tmp_path / "f"), 0), Storage(), {})
    assert (layout.segments, schema.names) == ((), [])


def test_remote_files_are_read_as_local_ones_with_few_requests(tmp_path: Path) -> None:
    table = pa.table({f"c{i}": np.random.default_rng(i).random(3000) for i in range(6)} | {"s": [{"x": 1.5}] * 3000})
    pq.write_table(table, tmp_path / "f", row_group_size=1000)
    storage, path = open_storage(f"memory:/{tmp_path}/f")
    with storage.connect().open_output_stream(path) as sink:
        sink.write((tmp_path / "f").read_bytes())
    info = DataFileInfo(path, (tmp_path / "f").stat().st_size)
    layout, schema = FORM.layout(info, storage, {})
    for names in (table.column_names, ["c4", "s"]):
        reader = FORM.open(info, layout, storage, {}, pa.schema([schema.field(name) for name in names]))
        for group in (2, 0):
            expected = table.slice(1000 * group, 1000).select(names)
            assert pa.table([reader.read([group], [name])[0] for name in names], names).equals(expected)
        reader.close()


# ------------------------------------------------------------------------------------------------------- old lists


def test_lists_of_three_levels_with_another_name(tmp_path: Path) -> None:
    check(tmp_path / "f", TABLE.select(["l"]), use_compliant_nested_type=False)


def test_lists_of_two_levels(tmp_path: Path) -> None:
    kind = pa.list_(pa.field("element", pa.int32(), nullable=False))
    table = pa.table({"a": pa.array([[1, 2], [], None, [3]], kind)})
    path = tmp_path / "f"
    pq.write_table(table, path, store_schema=False, use_dictionary=False)
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    # In the list of schema elements (4 -> 3), leave out the middle level, and make the element repeated.
    middle, element = footer.index(b"\x35\x04\x18\x04list"), footer.index(b"\x15\x02\x25\x00\x18\x07element")
    changed = footer[:middle] + footer[element : element + 3] + b"\x04" + footer[element + 4 :]
    changed = changed.replace(b"\x19\x4c", b"\x19\x3c", 1)
    path.write_bytes(content[: -8 - len(footer)] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    assert "repeated int32 field_id=-1 element" in str(pq.ParquetFile(path).schema)
    assert read_all(FORM, path)["a"].to_pylist() == table["a"].to_pylist()


# ------------------------------------------------------------------------------------------------------------ INT96


def int96(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"


def test_int96_timestamps_are_nanoseconds(tmp_path: Path) -> None:
    when = [WHEN, None, datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)]
    table = pa.table({"a": pa.array(when, pa.timestamp("us")), "l": [[when[0], None], [], None, [when[3]]]})
    int96(tmp_path / "f", table)
    found = read_all(FORM, tmp_path / "f")
    assert found.schema.types == [pa.timestamp("ns"), pa.list_(pa.timestamp("ns"))]
    assert found.to_pylist() == table.to_pylist()


@pytest.mark.parametrize("year", [1, 1600, 2300, 9999])
@pytest.mark.parametrize("kind", ["flat", "list", "struct", "map"])
def test_int96_timestamps_beyond_nanoseconds_are_an_error(tmp_path: Path, kind: str, year: int) -> None:
    far, unit = datetime.datetime(year, 1, 1), pa.timestamp("us")
    array = {
        "flat": pa.array([WHEN, far, None], unit),
        "list": pa.array([[WHEN, far], None, []], pa.list_(unit)),
        "struct": pa.array([{"x": {"y": far}}, None, None], pa.struct({"x": pa.struct({"y": unit})})),
        "map": pa.array([[("k", far)], None, []], pa.map_(pa.string(), unit)),
    }[kind]
    int96(tmp_path / "f", pa.table({"near": pa.array([WHEN] * 3, unit), "a": array, "i": range(3)}))
    info = DataFileInfo(str(tmp_path / "f"), 0)
    layout, schema = FORM.layout(info, Storage(), {})
    reader = FORM.open(info, layout, Storage(), {}, schema)
    assert reader.read([0], ["near", "i"])[0].to_pylist() == [WHEN] * 3
    with pytest.raises(FileReadError, match=r"f, row groups 0, columns a: .*column a has INT96 timestamps outside"):
        reader.read([0], ["a"])
    reader.close()


@pytest.mark.parametrize("year", [1, 2024, 9999])
@pytest.mark.parametrize("unit", ["us", "s"])
def test_int96_timestamps_beyond_nanoseconds_are_read_as_the_coarser_unit_that_is_declared(
    tmp_path: Path, year: int, unit: str
) -> None:
    far, micro = datetime.datetime(year, 2, 3, 4, 5, 6), pa.timestamp("us")
    table = pa.table({"a": pa.array([WHEN, far, None], micro), "l": pa.array([[far], [], None], pa.list_(micro))})
    int96(tmp_path / "f.parquet", table.append_column("i", [[1, 2, 3]]))
    kind = pa.timestamp(unit)
    schema = pa.schema({"l": pa.list_(kind), "i": pa.int64(), "a": kind})
    when = WHEN if unit == "us" else WHEN.replace(microsecond=0)
    if when != WHEN:
        with pytest.raises(SchemaMismatchError, match="'a'"):
            list(StructuredDataset.create_dataloader(str(tmp_path), schema=schema, output_format="dict")[0])
        schema = pa.schema({"l": pa.list_(kind), "i": pa.int64()})
    for shuffle in (False, True):
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path), schema=schema, output_format="arrow", shuffle=shuffle
        )
        (batch,) = list(loader)
        assert batch.schema.field("l").type.value_type == kind
        rows = {row["i"]: row for row in batch.to_pylist()}
        assert [rows[i]["l"] for i in (1, 2, 3)] == [[far], [], None]
        assert "a" not in schema.names or [rows[i]["a"] for i in (1, 2, 3)] == [WHEN, far, None]


def test_fractions_of_a_microsecond_in_int96_are_not_cut_off(tmp_path: Path) -> None:
    int96(tmp_path / "f.parquet", pa.table({"a": pa.array([1_001, 5], pa.timestamp("ns"))}))
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), schema=pa.schema({"a": pa.timestamp("us")}))
    with pytest.raises(FileReadError, match="fractions of a microsecond"):
        list(loader)


# ------------------------------------------------------------------------------------------------------- encryption


def encrypted(path: Path, plain_footer: bool) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, config: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

    config = encryption.EncryptionConfiguration(
        footer_key="of the footer", column_keys={"of a column": ["s"]}, plaintext_footer=plain_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, TABLE.select(["i", "s"]).schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE.select(["i", "s"]))


@pytest.mark.parametrize(("plain_footer", "what"), [(False, "footer is"), (True, "columns are")])
def test_encrypted_files_are_refused(tmp_path: Path, plain_footer: bool, what: str) -> None:
    encrypted(tmp_path / "secret", plain_footer)
    with pytest.raises(FileReadError, match=rf"secret, footer: .*its {what} encrypted, and keys cannot be passed"):
        FORM.layout(DataFileInfo(str(tmp_path / "secret"), 0), Storage(), {})


# ----------------------------------------------------------------------------------------------------- broken files


@pytest.mark.parametrize("kept", [0, 3, 4, 8, 11, 12, 100, 2000])
def test_a_file_of_which_only_the_beginning_is_there(tmp_path: Path, kept: int) -> None:
    pq.write_table(TABLE, tmp_path / "f")
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:kept])
    with pytest.raises(FileReadError, match=r"f, footer: .*it is truncated"):
        read_all(FORM, tmp_path / "f")


def test_a_footer_of_an_impossible_length(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PAR1" * 3)
    with pytest.raises(FileReadError, match=r"f, footer: .*footer of 827474256 bytes does not fit into its 12"):
        read_all(FORM, tmp_path / "f")


def test_a_footer_larger_than_one_read(tmp_path: Path) -> None:
    table = pa.table({f"{i} is the name of a column {'x' * 1000}": [i] for i in range(30)})
    check(tmp_path / "f", table)
    assert pq.read_metadata(tmp_path / "f").serialized_size > 1 << 16


def test_a_group_without_fields_is_a_column_of_nulls(tmp_path: Path) -> None:
    """pyarrow reads one, but does not write one."""
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "f", store_schema=False, row_group_size=2)
    data = (tmp_path / "f").read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    root = footer.index(b"\x2c") + 1  # after the head of a list of two structs: the schema's root and `id`
    middle = thrift.end_of_struct(footer, root)
    end = thrift.end_of_struct(footer, middle)
    parent = footer[root:middle].replace(b"schema\x15\x02", b"schema\x15\x04")  # two children instead of one
    group = b"\x35\x02\x18\x01g\x15\x00\x00"  # optional, of the name "g", with no children
    changed = footer[: root - 1] + b"\x3c" + parent + footer[middle:end] + group + footer[end:]
    (tmp_path / "g.parquet").write_bytes(data[: -8 - size] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    assert pq.read_schema(tmp_path / "g.parquet").field("g").type == pa.struct([])
    for columns, expected in [
        (["id", "g"], {"id": [1, 2, 3], "g": [None] * 3}),
        (["g"], {"g": [None] * 3}),
        (["id"], {"id": [1, 2, 3]}),
    ]:
        loader, _ = StructuredDataset.create_dataloader(tmp_path / "g.parquet", columns=columns, output_format="dict")
        assert list(loader) == [expected]


def test_a_name_that_occurs_twice_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "f")
    info = DataFileInfo(str(tmp_path / "f"), 0)
    layout, schema = FORM.layout(info, Storage(), {})
    reader = FORM.open(info, layout, Storage(), {}, schema)
    with pytest.raises(FileReadError, match=r"f, row groups 0, columns a"):
        reader.read([0], ["a"])
    reader.close()


def test_a_column_chunk_that_is_cut_out(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(TABLE, path, compression="none")
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:400] + content[-length:])
    layout, _ = FORM.layout(DataFileInfo(str(path), 0), Storage(), {})
    assert layout.segments
    with pytest.raises(FileReadError, match=r"f, row group 0, column \w+: cannot be read"):
        read_all(FORM, path)


def test_a_column_chunk_of_another_type_than_the_schema_is_an_error(tmp_path: Path) -> None:
    """pyarrow would end the process when asked for its statistics."""
    path = tmp_path / "f"
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32())}), path)
    content = path.read_bytes()
    assert content.count(b"\x1c\x15\x02\x19") == 1  # the metadata of a column chunk of INT32
    path.write_bytes(content.replace(b"\x1c\x15\x02\x19", b"\x1c\x15\x04\x19"))
    with pytest.raises(FileReadError, match=r"f, footer: .*INT64"):
        FORM.layout(DataFileInfo(str(path), 0), Storage(), {})


def test_checking_a_footer_formats_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take most of the time of planning many small files."""
    formatted = []
    monkeypatch.setattr(traceback, "format_exception", lambda *args: formatted.append(args) or [])
    pq.write_table(TABLE, tmp_path / "f", row_group_size=25)
    layout, _ = FORM.layout(DataFileInfo(str(tmp_path / "f"), 0), Storage(), {})
    assert (len(layout.segments), formatted) == (3, [])


@pytest.mark.parametrize(
    "options", [{"strings": "codes"}, {"output_format": "arrow"}, {"strings": "codes", "shuffle": True}]
)
@pytest.mark.parametrize("kind", ["plain", "dictionary", "nested"])
def test_a_dictionary_with_fewer_values_than_its_codes_need(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    values = pa.array(["aa", "bb", "cc", "aa"])
    values = values if kind == "plain" else values.dictionary_encode()
    table = pa.table({"s": pa.StructArray.from_arrays([values], ["x"]) if kind == "nested" else values})
    pq.write_table(table, tmp_path / "a.parquet", compression="none")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    assert content[12] == 6, "the header of the dictionary page does not count 3 values, as zigzag"
    content[12] = 2
    (tmp_path / "a.parquet").write_bytes(content)

    def read() -> None:  # a vocabulary is read when the loader is created
        list(StructuredDataset.create_dataloader(str(tmp_path / "a.parquet"), batch_size=2, **options)[0])

    with pytest.raises(FileReadError, match=r"a\.parquet, row groups? 0, columns? s"):
        read()


def test_pages_with_fewer_rows_than_the_footer_says(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(pa.table({"a": pa.array([1] * 50, pa.int8())}), path, use_dictionary=False)
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    changed = footer.replace(b"\x16\x64", b"\x16\x66")  # 50 -> 51, of the file, the row group and the chunk
    path.write_bytes(content.replace(footer, changed))
    assert FORM.layout(DataFileInfo(str(path), 0), Storage(), {})[0].segments[0].rows == 51
    with pytest.raises(FileReadError, match=r"columns a: .*(50 rows, but the footer says 51|EOF|ends)"):
        read_all(FORM, path)


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
@pytest.mark.parametrize("stored", ["plain", "dictionary"])
@pytest.mark.parametrize(
    "options", [{"strings": "codes"}, {"strings": "codes", "on_error": "skip"}, {"output_format": "arrow"}]
)
def test_strings_in_delta_encodings_are_read_as_codes_and_dictionaries(
    tmp_path: Path, stored: str, encoding: str, page_version: str, options: dict[str, Any]
) -> None:
    table = pa.table({"s": ["b", "a", "", "b"] * 50, "b": [b"\xff", b"", b"x", b"y"] * 50})
    if stored == "dictionary":
        table = pa.table({name: table[name].dictionary_encode() for name in table.column_names})
    encodings = dict.fromkeys(table.column_names, encoding)
    pq.write_table(
        table, tmp_path / "a.parquet", use_dictionary=False, column_encoding=encodings, row_group_size=60,
        data_page_version=page_version,
    )  # fmt: skip
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "a.parquet"), batch_size=200, **options)
    (batch,) = list(loader)
    if "strings" in options:
        assert batch["s"].tolist() == [2, 1, 0, 2] * 50
        assert batch["b"].tolist() == [3, 0, 1, 2] * 50
    else:
        assert batch.schema.types == table.schema.types
        assert batch.to_pylist() == table.to_pylist()


def test_nested_dictionaries_in_delta_encodings_are_read_as_strings(tmp_path: Path) -> None:
    words = pa.array(["b", "a", "", "b"] * 50).dictionary_encode()
    kind = pa.dictionary(pa.int32(), pa.string())
    table = pa.table(
        {
            "n": pa.StructArray.from_arrays([words, pa.array(range(200))], ["x", "y"]),
            "l": pa.array([["a", "b"]] * 200, pa.list_(kind)),
            "m": pa.array([[("k", "v")]] * 200, pa.map_(pa.string(), kind)),
            "other": pa.StructArray.from_arrays([words], ["x"]),
            "top": words,
        }
    )
    leaves = ("n.x", "l.list.element", "m.key_value.value", "top")
    encodings = dict.fromkeys(leaves, "DELTA_BYTE_ARRAY")
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=["other.x"], column_encoding=encodings)
    read = read_all(FORM, tmp_path / "a.parquet")
    assert read.to_pydict() == table.to_pydict()
    loader, dataset = StructuredDataset.create_dataloader(tmp_path, batch_size=200, output_format="arrow")
    assert next(iter(loader)).to_pydict() == table.to_pydict()
    assert dataset.schema.field("top").type == kind
    assert dataset.schema.field("other").type == table.schema.field("other").type
    assert dataset.schema.field("n").type.field("x").type == pa.string()


# By DuckDB 2.0.1: COPY (...) TO ... (FORMAT parquet, PARQUET_VERSION v2, COMPRESSION snappy), of the int32 column i
# with -2147483648, 2147483646 and -2147483646.
DUCKDB = base64.b64decode(
    "UEFSMRUAFfgQFawBLBUGFQoVBhUGAAC8CFQCAAAABgGAEAgD/////w/3////HyEACQEQ+v///wEJC/4BAP4BAP4BAP4BAP4BAP4BAP4BAP4BAP4B"
    "AP4BAP4BAP4BAP4BAP4BAP4BAP4BAFIBABUEGSw1ABgNZHVja2RiX3NjaGVtYRUCABUCJQIYAWklIgAWBhkcGRwmABwVAhkVChkYAWkVAhYGFp4R"
    "FtIBJgg8GAT+//9/GAQAAACAFgAoBP7//38YBAAAAIAREQAZHBUAFQoVAgAAABaeERYGJggW0gEAKChEdWNrREIgdmVyc2lvbiB2Mi4wLjEgKGJ1"
    "aWxkIDhkNzgxMTRlOTApGRwcAAAApAAAAFBBUjE="
)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_differences_of_33_bits_by_duckdb_are_not_called_damage(tmp_path: Path, on_error: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(DUCKDB)
    by_pyarrow: dict[str, Any] = {"format_options": {"engine": "pyarrow"}}
    with pytest.raises(FileReadError) as caught:
        list(StructuredDataset.create_dataloader(str(path), batch_size=2, on_error=on_error, **by_pyarrow)[0])
    assert not isinstance(caught.value, DamagedFileError)
    assert re.search(r"a\.parquet, row group 0, column i: .*not damaged.*DuckDB version v2\.0\.1", str(caught.value))
    assert "PARQUET_VERSION v1" in str(caught.value)


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
def test_differences_of_33_bits_are_read_by_the_packages_own_decoder(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(DUCKDB)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=3)
    assert next(iter(loader))["i"].tolist() == [-(2**31), 2**31 - 2, -(2**31) + 2]


def test_a_damaged_page_of_such_a_file_is_damage(tmp_path: Path) -> None:
    content = bytearray(DUCKDB)
    content[24:40] = bytes(16)  # of the compressed values
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"a\.parquet, row group 0, column i: cannot be read"):
        read_all(FORM, tmp_path / "a.parquet")
