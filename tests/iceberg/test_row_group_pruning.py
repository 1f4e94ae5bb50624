"""Which row groups of a table's files a filter leaves, and what their statistics prove."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.pruning import iceberg_pruner, null_evidence
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.model import FileLayout
from torch_dataloader_utils.storage import Storage

from .by_hand import field, planned, vector_file, write

A, S = field(1, "a", pa.int64()), field(2, "s", pa.string())
POINT = pa.struct([field(8, "x", pa.int32()), field(9, "y", pa.string())])
SCHEMA = pa.schema([A, S, field(20, "added", pa.int32()), field(2147483645, "_pos", pa.int64())])
TABLE = IcebergTable(SCHEMA, {20: 7})


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of the rows 0..99 in row groups of 10; column "s" is null at odd ones."""
    texts = [None if i % 2 else f"{i:03d}" for i in range(100)]
    table = pa.table([pa.array(range(100)), pa.array(texts)], schema=pa.schema([A, S]))
    return write(table, tmp_path / "numbers", segment_rows=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pruning")


def numbered(layout: FileLayout) -> list[tuple[int, int, int | None]]:
    return [(segment.number, segment.first_row, segment.rows) for segment in layout.segments]


def kept(expression: pc.Expression, path: Path, table: IcebergTable, **more: Any) -> list[int]:
    info, file = planned(path, **more)
    layout = iceberg_layout(info, file, Storage())
    return [segment.number for segment in iceberg_pruner(expression, table)(layout).segments]


def test_segments_in_which_no_row_can_match_are_dropped(numbers: Path, tmp_path: Path) -> None:
    every = list(range(10))
    assert kept(pc.field("a") > 75, numbers, TABLE) == [7, 8, 9]
    assert kept((pc.field("a") > 75) & (pc.field("a") < 80), numbers, TABLE) == [7]
    assert kept(pc.field("added") == 7, numbers, TABLE) == every
    assert kept(pc.field("added") == 8, numbers, TABLE) == []
    assert kept(pc.field("added") == 8, numbers, TABLE, constants=((20, 8),)) == every
    assert kept(pc.field("added").is_null(), numbers, replace(TABLE, defaults={})) == every
    assert kept(pc.field("_pos") > 75, numbers, TABLE) == every
    delete = vector_file(tmp_path / "v", [*range(80, 90), 71])
    info, file = planned(numbers, deletes=[delete])
    pruned = iceberg_pruner(pc.field("a") > 65, TABLE)(iceberg_layout(info, file, Storage()))
    assert numbered(pruned) == [(6, 60, 10), (7, 70, 9), (9, 79, 10)]


def test_columns_under_other_names_are_never_mistaken_for_each_other(numbers: Path, tmp_path: Path) -> None:
    swapped = IcebergTable(pa.schema([field(2, "a", pa.string()), field(1, "s", pa.int64())]))
    every = list(range(10))
    assert kept(pc.field("s") > 75, numbers, swapped) == every
    path = write(
        pq.read_table(numbers).append_column(field(3, "b", pa.int64()), [range(100, 200)]),
        tmp_path / "f",
        "parquet",
        10,
    )
    swapped = IcebergTable(pa.schema([field(1, "b", pa.int64()), field(3, "a", pa.int64())]))
    assert kept(pc.field("a") > 175, path, swapped) == every
    again = IcebergTable(pa.schema([field(99, "a", pa.int64())]))  # dropped, and added anew
    assert kept(pc.field("a").is_null(), numbers, again) == every
    promoted = IcebergTable(pa.schema([field(1, "a", pa.float64())]))
    assert kept(pc.field("a") > 75, numbers, promoted) == every


def test_files_without_statistics_are_kept(tmp_path: Path, numbers: Path) -> None:
    table = pa.table([pa.array(range(20))], schema=pa.schema([A]))
    for form in ("orc", "avro"):
        info, file = planned(write(table, tmp_path / form, form, 10), form)
        layout = iceberg_layout(info, file, Storage())
        assert iceberg_pruner(pc.field("a") > 75, TABLE)(layout) == layout
    info, file = planned(numbers, rows=100)
    assert iceberg_pruner(pc.field("a") > 175, TABLE)(whole_file(file, 0)) == whole_file(file, 0)


@given(data=st.data())
def test_pruning_never_drops_a_row_that_matches(folder: Path, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=30))
    names = data.draw(st.permutations(["a", "b", "c"]))
    schema = pa.schema([field(i, name, pa.int64()) for i, name in enumerate(names, 1)][: data.draw(st.integers(1, 3))])
    path = write(pa.table([pa.array(values)] * len(schema), schema=schema), folder / "pruned", segment_rows=3)
    kinds = st.sampled_from([pa.int64(), pa.int32()]) if len(schema) < 3 else st.just(pa.int64())
    now = pa.schema(
        [field(i, name, data.draw(kinds) if i > len(schema) else pa.int64()) for i, name in enumerate("abc", 1)]
    )
    table = IcebergTable(now, data.draw(st.dictionaries(st.integers(1, 3), st.integers(-5, 5))))
    column = pc.field(data.draw(st.sampled_from("abc")))
    least = data.draw(st.integers(-6, 6))
    expression = data.draw(st.sampled_from([column > least, column != least, column.is_null(), ~(column < least)]))
    info, file = planned(path)
    layout = iceberg_layout(info, file, Storage())
    pruned = iceberg_pruner(expression, table)(layout)

    def matching(found: FileLayout) -> pa.Table:
        reader = IcebergOpener(table).open(info, found, Storage(), {}, now)
        columns = reader.read([segment.number for segment in found.segments], now.names)
        reader.close()
        return pa.Table.from_arrays(columns, schema=now).filter(expression)

    assert matching(pruned).to_pylist() == matching(layout).to_pylist()


def evidence(path: Path, table: IcebergTable, deletes: Sequence[DeleteFile] = ()) -> set[str]:
    info, file = planned(path, deletes=deletes)
    return set(null_evidence(iceberg_layout(info, file, Storage()), table))


def test_nulls_are_proven_by_statistics_under_the_names_of_the_table(tmp_path: Path, numbers: Path) -> None:
    renamed = IcebergTable(pa.schema([field(2, "text", pa.string()), field(1, "number", pa.int64())]))
    assert evidence(numbers, renamed) == {"text"}
    assert evidence(numbers, renamed, [vector_file(tmp_path / "v", [1])]) == set()
    points = pa.table([pa.array([{"x": 1, "y": None}], POINT)], schema=pa.schema([field(7, "p", POINT)]))
    new = pa.struct([field(9, "text", pa.string()), field(8, "y", pa.int32())])
    assert evidence(write(points, tmp_path / "p"), IcebergTable(pa.schema([field(7, "q", new)]))) == {"q.text"}
