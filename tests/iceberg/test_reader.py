import itertools
import math
import pickle
import struct
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.formats.avro import container as avro_container
from torch_dataloader_utils.formats.parquet import pages
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

from .by_hand import equality_file, field, opened, planned, positions_file, read_rows, vector_file, write

POINT = pa.struct([field(8, "x", pa.int32()), field(9, "y", pa.string())])
FIELDS = [
    (field(1, "a", pa.int64()), st.integers(-2, 2)),
    (field(2, "s", pa.string()), st.sampled_from(["", "a", "longer than eight"])),
    (field(3, "d", pa.decimal128(9, 2)), st.sampled_from([Decimal("1.00"), Decimal("-2.50")])),
    (field(4, "f", pa.float64()), st.sampled_from([0.0, -0.0, 1.5, math.nan])),
    (field(5, "b", pa.bool_()), st.booleans()),
    (field(6, "l", pa.list_(field(10, "element", pa.int32()))), st.lists(st.integers(0, 3), max_size=2)),
    (field(7, "p", POINT), st.fixed_dictionaries({"x": st.integers(0, 3), "y": st.sampled_from(["u", "v"])})),
]
KEYS = FIELDS[:5]
ADDED = field(20, "added", pa.int32())
META = [field(2147483646, "_file", pa.string()), field(2147483645, "_pos", pa.int64())]
SCHEMA = pa.schema([*(item for item, _ in FIELDS), ADDED, *META])
TABLE = IcebergTable(SCHEMA, {20: 7}, {int(item.metadata[b"PARQUET:field_id"]): item for item, _ in KEYS})
COUNTER = itertools.count()
LINEAGE = [field(2147483540, "_row_id", pa.int64()), field(2147483539, "_last_updated_sequence_number", pa.int64())]


@pytest.fixture(scope="module", autouse=True)
def every_avro_block_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_container, "_SEGMENT_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reader")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of the rows 0..99 in row groups of 10; column "s" is null at odd ones."""
    table = pa.table(
        [pa.array(range(100)), pa.array([None if i % 2 else f"{i:03d}" for i in range(100)])],
        schema=pa.schema([SCHEMA.field("a"), SCHEMA.field("s")]),
    )
    return write(table, tmp_path / "numbers", segment_rows=10)


def only(*names: str) -> IcebergTable:
    return replace(TABLE, schema=pa.schema([SCHEMA.field(name) for name in names]))


def same(value: Any) -> Any:
    """A value that is equal to another where Iceberg's library calls both equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value)
    return value


# ---------------------------------------------------------------------------------- against rows as Python knows them


@st.composite
def deleted(draw: st.DrawFn, folder: Path, path: Path, rows: list[dict[str, Any]]) -> tuple[list[DeleteFile], set[int]]:
    """Delete files for some of the rows, and the numbers of the rows that these delete."""
    gone: set[int] = set()
    files = []
    for kind in draw(st.lists(st.sampled_from(["positions", "vector", "equality"]), max_size=3)):
        form = draw(st.sampled_from(["parquet", "orc", "avro"]))
        name = Path(f"{path}.delete{next(COUNTER)}")  # delete files never change, and are cached by their paths
        if kind == "equality":
            items = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique_by=lambda item: item[0].name))
            keys = draw(st.lists(st.tuples(*(st.none() | values for _, values in items)), max_size=3))
            columns = [pa.array([key[j] for key in keys], item.type) for j, (item, _) in enumerate(items)]
            files.append(equality_file(name, pa.table(columns, schema=pa.schema([f for f, _ in items])), form))
            known = {tuple(map(same, key)) for key in keys}
            gone |= {n for n, row in enumerate(rows) if tuple(same(row[item.name]) for item, _ in items) in known}
        else:
            some = draw(st.lists(st.integers(0, len(rows) - 1), max_size=20, unique=True))
            gone |= set(some)
            vector = kind == "vector"
            files.append(
                vector_file(name, some) if vector else positions_file(name, {str(path): some, "other": [0]}, form)
            )
    return files, gone


@given(data=st.data(), form=st.sampled_from(["parquet", "orc", "avro"]), segment_rows=st.integers(1, 15))
def test_rows_are_those_that_no_delete_names(folder: Path, data: st.DataObject, form: str, segment_rows: int) -> None:
    count = data.draw(st.integers(1, 40))
    rows = data.draw(
        st.lists(st.fixed_dictionaries({f.name: st.none() | v for f, v in FIELDS}), min_size=count, max_size=count)
    )
    path = write(pa.Table.from_pylist(rows, pa.schema([f for f, _ in FIELDS])), folder / "data", form, segment_rows)
    files, gone = data.draw(deleted(folder, path, rows))
    more = {"added": 7, "_file": str(path)}
    left = [{**row, **more, "_pos": n} for n, row in enumerate(rows) if n not in gone]
    layout, reader = opened(*planned(path, form, count, files), TABLE)
    inner = layout.metadata.inner.segments  # tested by the format's own contract
    segment_of = {n: s.number for s in inner for n in range(s.first_row, s.first_row + s.rows) if n not in gone}
    places = [segment.number for segment in layout.segments]
    by_value = any(delete.kind == "equality" for delete in files)
    assert layout.known is not by_value or not layout.segments
    if not by_value:
        counts = [list(segment_of.values()).count(place) for place in places]
        assert [segment.rows for segment in layout.segments] == counts
        assert list(layout.plan_starts()) == [sum(counts[:i]) for i in range(len(counts) + 1)]
        assert set(places) == set(segment_of.values())
    for _ in range(4):
        some = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
        names = data.draw(st.lists(st.sampled_from(SCHEMA.names), max_size=4))
        expected = [row for place in some for row in left if segment_of[row["_pos"]] == place]
        arrays = reader.read(some, names)
        assert [array.type for array in arrays] == [SCHEMA.field(name).type for name in names]
        found = [[same(value) for value in array.to_pylist()] for array in arrays]
        assert found == [[same(row[name]) for row in expected] for name in names]
        if expected and names:
            rows = np.unique(data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1)))
            few = reader.read_rows(some, names, rows)
            assert {name: array.type for name, array in few.items()} == {name: SCHEMA.field(name).type for name in few}
            assert {name: [same(value) for value in array.to_pylist()] for name, array in few.items()} == {
                name: [same(expected[row][name]) for row in rows] for name in few
            }
            stored = form == "parquet" and pages.pages_library() is not None
            assert {*few} == {*names} & ({"a", "s", "d", "f", "b"} if stored else set())
    reader.close()


# ------------------------------------------------------------------------------------------------- segments and counts


def numbered(layout: FileLayout) -> list[tuple[int, int, int | None]]:
    return [(segment.number, segment.first_row, segment.rows) for segment in layout.segments]


def test_segments_without_rows_left_are_gone_and_others_exact(numbers: Path, tmp_path: Path) -> None:
    gone = [*range(10, 20), 5, 6, *range(30, 39), 99]
    delete = vector_file(tmp_path / "v", gone)
    layout, reader = opened(*planned(numbers, deletes=[delete]), only("a"))
    expected = [(0, 0, 8), (2, 8, 10), (3, 18, 1), (4, 19, 10), (5, 29, 10), (6, 39, 10), (7, 49, 10), (8, 59, 10)]
    assert numbered(layout) == [*expected, (9, 69, 9)]
    assert reader.read([3, 9], ["a"])[0].to_pylist() == [39, *range(90, 99)]
    reader.close()


@pytest.mark.skipif(pages_library() is None, reason="the decoder is not compiled here")
def test_columns_read_together_are_those_of_pyarrow(numbers: Path, tmp_path: Path) -> None:
    keys = pa.table([pa.array([3])], schema=pa.schema([SCHEMA.field("a")]))
    deletes = [equality_file(tmp_path / "d", keys), vector_file(tmp_path / "v", [4, 15])]
    info, file = planned(numbers, deletes=deletes)
    layout = iceberg_layout(info, file, Storage())
    segments, names = [segment.number for segment in layout.segments][:2], ["_pos", "s", "added", "a"]
    found = []
    for engine, together in (("auto", ["a", "s"]), ("pyarrow", [])):
        reader = IcebergOpener(TABLE).open(info, layout, Storage(), {"engine": engine}, SCHEMA)
        assert reader.together(names, 20) == together
        found.append([array.to_pylist() for array in reader.read(segments, names)])
        reader.close()
    assert found[0] == found[1]


def test_an_unknown_engine_is_an_error_when_a_file_is_opened(numbers: Path) -> None:
    info, file = planned(numbers)
    layout = iceberg_layout(info, file, Storage())
    with pytest.raises(OptionError, match="'engine': 'duckdb'}: expected 'auto' or 'pyarrow'"):
        IcebergOpener(TABLE).open(info, layout, Storage(), {"engine": "duckdb"}, SCHEMA)


def test_a_file_whose_rows_are_all_deleted_has_no_segments(numbers: Path, tmp_path: Path) -> None:
    info, file = planned(numbers, deletes=[vector_file(tmp_path / "v", range(100))])
    assert iceberg_layout(info, file, Storage()).segments == ()


def test_a_file_planned_from_its_manifest_alone_is_one_segment(numbers: Path) -> None:
    info, file = planned(numbers, rows=100)
    layout = whole_file(file, 5000)
    assert numbered(layout) == [(0, 0, 100)]
    reader = IcebergOpener(TABLE).open(info, layout, Storage(), {}, SCHEMA)
    assert reader.read([0], ["a", "_pos"])[0].to_pylist() == list(range(100))
    assert reader.read([0], ["_pos"])[0].to_pylist() == list(range(100))
    reader.close()


def test_such_a_file_may_have_equality_deletes(numbers: Path, tmp_path: Path) -> None:
    keys = pa.table([pa.array([3, 50])], schema=pa.schema([SCHEMA.field("a")]))
    info, file = planned(numbers, rows=100, deletes=[equality_file(tmp_path / "d", keys)])
    layout = whole_file(file, 5000)
    assert numbered(layout) == [(0, 0, None)]
    reader = IcebergOpener(TABLE).open(info, layout, Storage(), {}, SCHEMA)
    assert reader.read([0], ["a"])[0].to_pylist() == [i for i in range(100) if i not in (3, 50)]
    reader.close()


def test_a_manifest_that_counts_other_rows_than_the_file_is_an_error(numbers: Path) -> None:
    info, file = planned(numbers, rows=99)
    with pytest.raises(FileReadError, match=r"numbers: has 100 rows.*says 99"):
        IcebergOpener(TABLE).open(info, whole_file(file, 0), Storage(), {}, SCHEMA)


def test_a_pickled_layout_reads_the_same(numbers: Path, tmp_path: Path) -> None:
    keys = pa.table([pa.array([3])], schema=pa.schema([SCHEMA.field("a")]))
    deletes = [equality_file(tmp_path / "d", keys), vector_file(tmp_path / "v", [4])]
    info, file = planned(numbers, deletes=deletes)
    layout = iceberg_layout(info, file, Storage())
    again = pickle.loads(pickle.dumps((info, layout, IcebergOpener(TABLE))))
    info, layout, opener = again
    reader = opener.open(info, layout, Storage(), {}, SCHEMA)
    assert reader.read([0], ["a"])[0].to_pylist() == [0, 1, 2, 5, 6, 7, 8, 9]
    reader.close()


def test_a_file_that_has_gone_or_is_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    info, file = DataFileInfo(str(tmp_path / "gone"), 10), IcebergFile("parquet", "gone", 1)
    with pytest.raises(FileReadError, match="gone"):
        iceberg_layout(info, file, Storage())
    with pytest.raises(FileReadError, match="gone"):
        IcebergOpener(TABLE).open(info, whole_file(file, 0), Storage(), {}, SCHEMA)
    with pytest.raises(OptionError, match="'vortex'"):
        iceberg_layout(info, replace(file, format="vortex"), Storage())


def test_only_a_table_says_which_files_it_has(numbers: Path) -> None:
    with pytest.raises(OptionError, match="IcebergDataset"):
        StructuredDataset.create_dataloader(numbers, format="iceberg")


# ------------------------------------------------------------------------------------------------------------ columns


def test_columns_come_in_any_order_and_calls_agree(numbers: Path, tmp_path: Path) -> None:
    keys = pa.table([pa.array(["000", None])], schema=pa.schema([SCHEMA.field("s")]))
    _, reader = opened(*planned(numbers, deletes=[equality_file(tmp_path / "d", keys)]), TABLE)
    expected = {"a": [2, 4, 6, 8, 10], "s": ["002", "004", "006", "008", "010"], "_pos": [2, 4, 6, 8, 10]}
    for names in (["s", "a"], ["s"], ["_pos", "s"], ["a", "a"], [], ["added"]):
        found = reader.read([0, 1], names)
        assert [column.to_pylist()[:5] for column in found] == [expected.get(name, [7] * 5) for name in names]
    assert len(reader.read([0], ["s"])[0]) == 4
    assert len(reader.read([0, 1], ["s"])[0]) == 9
    reader.close()


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_nobody_else_has_the_arrays_that_a_reader_gives(tmp_path: Path, form: str) -> None:
    table = pa.table([pa.array(range(100))], schema=pa.schema([SCHEMA.field("a")]))
    path = write(table, tmp_path / "f", form)
    delete = equality_file(tmp_path / "d", table.slice(0, 0))
    _, reader = opened(*planned(path, form, deletes=[delete]), TABLE)
    first, second = (reader.read([0], ["a"])[0].chunk(0).buffers()[1] for _ in range(2))
    assert first.is_mutable
    assert first.address != second.address
    np.frombuffer(first, np.int64)[:] = 0
    assert reader.read([0], ["a"])[0].to_pylist() == list(range(100))
    reader.close()


def test_arrays_without_deletes_are_those_of_the_file(numbers: Path) -> None:
    _, reader = opened(*planned(numbers), only("a", "s"))
    direct = pq.ParquetFile(numbers).read_row_groups([2, 3], use_threads=False)
    for name, column in zip(["a", "s"], reader.read([2, 3], ["a", "s"]), strict=True):
        assert column.equals(direct[name])
        if name == "a":  # strings may have a chunk for each row group
            assert column.num_chunks == direct[name].num_chunks
        assert all(buffer is None or buffer.is_mutable for chunk in column.chunks for buffer in chunk.buffers())
    reader.close()


def test_only_absent_columns_can_be_read(numbers: Path, tmp_path: Path) -> None:
    found = read_rows(numbers, only("added", "_file"), deletes=[vector_file(tmp_path / "v", [0, 50])])
    assert found.to_pylist() == [{"added": 7, "_file": str(numbers)}] * 98


def test_dictionaries_are_given_where_they_are_welcome(numbers: Path) -> None:
    coded = pa.dictionary(pa.int32(), pa.string())
    wanted = pa.schema([pa.field("renamed", coded), pa.field("added", pa.int32()), pa.field("a", pa.int64())])
    table = IcebergTable(pa.schema([field(2, "renamed", pa.string()), ADDED, SCHEMA.field("a")]))
    _, reader = opened(*planned(numbers), table, wanted)
    assert reader.schema.types == [coded, pa.int32(), pa.int64()]
    column = reader.read([0], ["renamed"])[0]
    assert column.type == coded
    assert column.to_pylist() == [None if i % 2 else f"{i:03d}" for i in range(10)]
    reader.close()


def test_names_that_the_table_has_not_are_left_out(numbers: Path) -> None:
    _, reader = opened(*planned(numbers), TABLE, pa.schema([pa.field("unknown", pa.int64()), SCHEMA.field("a")]))
    assert reader.schema.names == ["a"]
    reader.close()


# ------------------------------------------------------------------------------------------------------------ lineage


def lineage(path: Path, **more: Any) -> list[tuple[Any, ...]]:
    found = read_rows(path, IcebergTable(pa.schema(LINEAGE)), **more)
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_row_ids_follow_from_the_first_of_the_file_and_the_place(numbers: Path, tmp_path: Path) -> None:
    delete = vector_file(tmp_path / "v", range(1, 99))
    found = lineage(numbers, first_row_id=1000, sequence_number=5, deletes=[delete])
    assert found == [(1000, 5), (1099, 5)]
    assert lineage(numbers, first_row_id=0)[:2] == [(0, 0), (1, 0)]


def test_row_ids_that_the_file_keeps_come_first(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("a"), *LINEAGE])
    kept = pa.table([pa.array([1, 2, 3]), pa.array([77, None, 78]), pa.array([None, 3, 4])], schema=schema)
    path = write(kept, tmp_path / "f")
    assert lineage(path, first_row_id=1000, sequence_number=5) == [(77, 5), (1001, 3), (78, 4)]


def test_files_from_before_row_lineage_have_none(numbers: Path) -> None:
    assert set(lineage(numbers, sequence_number=5)) == {(None, None)}
