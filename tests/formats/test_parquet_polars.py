"""Polars as the decoder of columns that are copied afterwards: the same values as pyarrow's, or pyarrow itself."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats import reading
from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.formats.base import Reader
from torch_dataloader_utils.formats.parquet.polars_decoder import PolarsDecoder
from torch_dataloader_utils.formats.registry import checked_options, format_named

polars = pytest.importorskip("polars")

FORM = format_named("parquet")
LOG = "torch_dataloader_utils"

TAKEN = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.date32()),
    *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    *(pa.decimal128(7, 2), pa.decimal128(18, 0), pa.decimal128(38, 10)),
]
LEFT = [pa.string(), pa.list_(pa.int32()), pa.list_(pa.float32(), 2), pa.struct({"x": pa.int64()}), pa.float16()]


def opened(path: Path, engine: str = "polars", **more: Any) -> AbstractContextManager[Reader]:
    return reading.opened(path, engine, **more)


@pytest.fixture
def by_polars(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that Polars has decoded, in order."""
    names: list[str] = []
    read = PolarsDecoder.read

    def noted(self: PolarsDecoder, groups: Any, columns: Any) -> Any:
        arrays = read(self, groups, columns)
        names.extend(arrays)
        return arrays

    monkeypatch.setattr(PolarsDecoder, "read", noted)
    return names


def bits(column: pa.ChunkedArray) -> tuple[pa.DataType, int, list[Any] | bytes]:
    """Type, length and values, bit for bit."""
    kind = column.type
    if pa.types.is_boolean(kind) or column.null_count or pa.types.is_nested(kind) or pa.types.is_string(kind):
        return kind, len(column), column.to_pylist()
    width = kind.bit_width // 8
    parts = [chunk.buffers()[1].to_pybytes()[chunk.offset * width :][: len(chunk) * width] for chunk in column.chunks]
    return kind, len(column), b"".join(parts)


def assert_same(path: Path, calls: list[tuple[list[int], list[str]]], **options: Any) -> None:
    with opened(path, **options) as one, opened(path, "pyarrow") as other:
        assert other.copied_together(other.schema.names) == ()
        for groups, names in calls:
            ours, theirs = one.read_to_copy(groups, names), other.read(groups, names)
            assert [bits(column) for column in ours] == [bits(column) for column in theirs]


def values_of(kind: pa.DataType, rows: int, seed: int) -> pa.Array:
    """Random bits of the type: floats with NaN payloads, infinities and -0.0, and the ends of integers' ranges."""
    rng = np.random.default_rng(seed)
    if kind == pa.bool_():
        return pa.array(rng.integers(0, 2, rows).astype(bool))
    if pa.types.is_decimal(kind):
        digits = min(kind.precision, 18)
        words = [int(value) for value in rng.integers(-(10**digits) + 1, 10**digits, rows)]
        scaled = [word * 10 ** (kind.precision - digits) for word in words]
        raw = b"".join(word.to_bytes(16, "little", signed=True) for word in scaled)
    elif seed % 2:  # few values, so that a dictionary is used
        pool = np.frombuffer(rng.bytes(kind.bit_width // 8 * 3), f"u{kind.bit_width // 8}")
        raw = pool[rng.integers(0, 3, rows)].tobytes()
    else:
        special = np.array([0, 1 << (kind.bit_width - 1), (1 << kind.bit_width) - 1], f"u{kind.bit_width // 8}")
        whole = np.frombuffer(rng.bytes(kind.bit_width // 8 * rows), special.dtype)
        raw = np.where(rng.random(rows) < 0.2, special[rng.integers(0, 3, rows)], whole).tobytes()
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(raw)])


WRITTEN = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([64, 1 << 20]),
        "store_schema": st.booleans(),
        "store_decimal_as_integer": st.booleans(),
        "write_page_checksum": st.booleans(),
        "write_statistics": st.booleans(),
    }
)


@given(
    kinds=st.lists(st.sampled_from(TAKEN), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    rows=st.integers(1, 300),
    group_rows=st.integers(1, 300),
    required=st.booleans(),
    written=WRITTEN,
    data=st.data(),
)
def test_values_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[pa.DataType],
    seed: int,
    rows: int,
    group_rows: int,
    required: bool,
    written: dict[str, Any],
    data: st.DataObject,
) -> None:
    fields = [pa.field(f"c{i}", kind, not required) for i, kind in enumerate(kinds)]
    columns = [values_of(kind, rows, seed + i) for i, kind in enumerate(kinds)]
    path = tmp_path_factory.getbasetemp() / "values"
    pq.write_table(
        pa.Table.from_arrays(columns, schema=pa.schema(fields)),
        path,
        row_group_size=max(group_rows, rows // 5),
        **written,
    )
    groups = range(pq.read_metadata(path).num_row_groups)
    names = [field.name for field in fields]
    some = st.tuples(
        st.lists(st.sampled_from(groups), min_size=1, max_size=3), st.lists(st.sampled_from(names), unique=True)
    )
    assert_same(path, [([group], names) for group in groups][:2] + data.draw(st.lists(some, max_size=3)))


@pytest.mark.parametrize("kind", TAKEN, ids=str)
def test_polars_decodes_each_of_these_types(tmp_path: Path, by_polars: list[str], kind: pa.DataType) -> None:
    pq.write_table(pa.table({"a": values_of(kind, 100, 0)}), tmp_path / "f", row_group_size=50)
    with opened(tmp_path / "f") as reader:
        assert list(reader.copied_together(["a"])) == ["a"]
    assert_same(tmp_path / "f", [([1], ["a"]), ([0, 1], ["a"])])
    assert by_polars == ["a", "a"]


def mixed(rows: int = 100) -> pa.Table:
    table = pa.table({"a": np.arange(rows), "b": np.linspace(0, 1, rows, dtype=np.float32)})
    return table.append_column("n", pa.array([None, *range(1, rows)], pa.int32()))


def test_other_types_and_columns_with_nulls_are_left_to_pyarrow(tmp_path: Path, by_polars: list[str]) -> None:
    table = mixed()
    values = ["x", [1], [1.0, 2.0], {"x": 1}, 1.5]
    for number, (kind, value) in enumerate(zip(LEFT, values, strict=True)):
        if kind == pa.float16():
            value = np.float16(value)
        table = table.append_column(f"left{number}", pa.array([value] * 100, kind))
    pq.write_table(table, tmp_path / "f", row_group_size=50)
    names = table.column_names
    with opened(tmp_path / "f") as reader:
        assert list(reader.copied_together(names)) == ["a", "b", "n"]
    assert_same(tmp_path / "f", [([0], names), ([1], names), ([0, 1], names)])
    assert by_polars == ["a", "b", "a", "b", "n", "a", "b"]


def test_nulls_that_statistics_do_not_show_are_read_by_pyarrow(tmp_path: Path, by_polars: list[str]) -> None:
    pq.write_table(mixed(), tmp_path / "f", write_statistics=False)
    assert_same(tmp_path / "f", [([0], ["a", "n"]), ([0], ["a", "n"])])
    assert by_polars == ["a", "a"]


def test_names_are_not_patterns_and_files_of_polars_are_read(tmp_path: Path, by_polars: list[str]) -> None:
    names = ["^a.*$", "*", "ab", "x.y"]
    frame = polars.DataFrame({name: np.arange(10) + i for i, name in enumerate(names)})
    frame.write_parquet(tmp_path / "f", row_group_size=4)
    assert_same(tmp_path / "f", [([0], names), ([1], ["x.y", "*"])])
    assert by_polars == [*names, "x.y", "*"]


def test_columns_of_huge_row_groups_are_decoded_in_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_dataloader_utils.formats.parquet.polars_decoder._MOST_BYTES", 1000)
    pq.write_table(pa.table({name: np.arange(100) for name in "abc"} | {"s": ["x"] * 100}), tmp_path / "f")
    with opened(tmp_path / "f") as reader:
        assert list(reader.copied_together(["s", "a", "b"])) == ["a"]
        assert list(reader.copied_together(["s", "b"])) == ["b"]
        assert list(reader.copied_together(["s"])) == []


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_with_checksums_are_left_to_pyarrow(
    tmp_path: Path, by_polars: list[str], version: str, dictionary: bool
) -> None:
    options = {"use_dictionary": dictionary, "data_page_version": version, "compression": "none"}
    path = tmp_path / "f"
    pq.write_table(mixed(), path, row_group_size=50, write_page_checksum=True, **options)
    assert_same(path, [([0], ["a", "b"])])
    assert by_polars == []
    assert_same(path, [([0], ["a", "b"])], page_checksums=False)
    assert by_polars == ["a", "b"]
    chunk = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset if dictionary else chunk.data_page_offset
    content[start + chunk.total_compressed_size - 1] ^= 0xFF
    path.write_bytes(content)
    with opened(path) as reader, pytest.raises(FileReadError, match=r"f, row group 1, column a: cannot be read"):
        reader.read_to_copy([1], ["a", "b"])


def test_a_damaged_page_is_the_error_of_pyarrow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "f"
    pq.write_table(mixed(), path, row_group_size=50, compression="zstd")
    chunk = pq.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset
    content[start : start + 30] = bytes(30)
    path.write_bytes(content)
    caplog.set_level(logging.DEBUG, LOG)
    with opened(path) as reader:
        assert len(reader.read_to_copy([0], ["a", "b"])[0]) == 50
        with pytest.raises(FileReadError, match=r"f, row group 1, column b: cannot be read") as caught:
            reader.read_to_copy([1], ["a", "b"])
        assert isinstance(caught.value.__cause__, OSError)
    assert "Polars cannot decode it" in caplog.text


def test_gzip_is_left_to_pyarrow_because_polars_ignores_its_checksum(tmp_path: Path, by_polars: list[str]) -> None:
    path = tmp_path / "f"
    pq.write_table(mixed(), path, compression={"a": "gzip", "b": "snappy"}, use_dictionary=False)
    assert_same(path, [([0], ["a", "b"])])
    assert by_polars == ["b"]
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 6] ^= 0xFF
    path.write_bytes(content)
    with opened(path) as reader, pytest.raises(FileReadError, match="row group 0, column a"):
        reader.read_to_copy([0], ["a", "b"])


def test_a_file_that_shrinks_while_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(pa.table({"a": np.arange(100_000)}), path, row_group_size=50_000, compression="none")
    with opened(path) as reader:
        reader.read_to_copy([0], ["a"])
        os.truncate(path, 1000)
        with pytest.raises(FileReadError, match="row group 1, column a"):
            reader.read_to_copy([1], ["a"])


def test_a_file_replaced_while_open_is_read_as_it_was(tmp_path: Path, by_polars: list[str]) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "f")
    with opened(tmp_path / "f") as reader:
        pq.write_table(pa.table({"a": [7, 8, 9]}), tmp_path / "new")
        (tmp_path / "new").rename(tmp_path / "f")
        assert reader.read_to_copy([0], ["a"])[0].to_pylist() == [1, 2, 3]
    assert by_polars == ["a"]


def test_the_engine_can_be_chosen(tmp_path: Path, by_polars: list[str]) -> None:
    assert checked_options(FORM, {"engine": "polars"})["engine"] == "polars"
    with pytest.raises(OptionError, match=r"'engine': 'duckdb'.*: expected one of 'auto', 'pyarrow', 'polars'"):
        checked_options(FORM, {"engine": "duckdb"})
    pq.write_table(mixed(), tmp_path / "f")
    assert_same(tmp_path / "f", [([0], ["a"])], engine="pyarrow")
    assert by_polars == []
    assert_same(tmp_path / "f", [([0], ["a"])], engine="polars")
    assert by_polars == ["a"]


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "polars":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from torch_dataloader_utils.errors import MissingExtraError
from torch_dataloader_utils.formats.registry import checked_options, format_named
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage import Storage
form = format_named("parquet")
info = DataFileInfo(sys.argv[1], 0)
layout, schema = form.layout(info, Storage(), {})
reader = form.open(info, layout, Storage(), {"engine": sys.argv[2]}, schema)
assert reader.copied_together(["a"]) == ()
print(sum(reader.read_to_copy([0], ["a"])[0].to_pylist()))
try:
    checked_options(form, {"engine": "polars"})
except MissingExtraError as error:
    print(error)
"""


def test_polars_is_optional(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1] * 40_000}), tmp_path / "f")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "f"), "pyarrow"], capture_output=True, text=True, check=True
    )
    values, error = run.stdout.splitlines()
    assert values == "40000"
    assert error.endswith("needs Polars 1.31 or later: pip install 'torch-dataloader-utils[fast]'")


def read_in_child(path: str) -> tuple[list[int], bool]:
    """The values, and whether Polars decoded them."""
    with opened(Path(path)) as reader:
        decoded = bool(reader.copied_together(["a"]))
        return reader.read_to_copy([0], ["a"])[0].to_pylist(), decoded


@pytest.mark.slow  # spawn imports this module again
@pytest.mark.parametrize(("method", "decodes"), [("spawn", True), ("forkserver", True), ("fork", False)])
@pytest.mark.filterwarnings("ignore:.*fork")
def test_child_processes_read_the_same(tmp_path: Path, method: str, decodes: bool) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "f")
    assert read_in_child(str(tmp_path / "f")) == ([1, 2], True)  # Polars has threads here, which a fork does not copy
    with ProcessPoolExecutor(1, get_context(method)) as pool:
        assert pool.submit(read_in_child, str(tmp_path / "f")).result(timeout=60) == ([1, 2], decodes)


def test_polars_is_imported_only_when_columns_are_copied(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "s": ["x", "y"]}), tmp_path / "f")
    code = (
        WITHOUT.partition("sys.meta_path")[0].replace("class Absent", "class Unused")
        + WITHOUT.partition("Absent())")[2]
    )
    code = code.partition("assert reader")[0] + "reader.read([0], ['a']); reader.read_to_copy([0], ['s'])\n"
    subprocess.run(
        [sys.executable, "-c", code + "assert 'polars' not in sys.modules", str(tmp_path / "f"), "polars"], check=True
    )
