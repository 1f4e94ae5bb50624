"""Filters find the rows that plain Python finds, whatever the column's type and the literal's, with pruning at work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.filters.literals import KINDS, Condition, column, conditions
from torch_dataloader_utils import IcebergDataset, StructuredDataset
from torch_dataloader_utils.iceberg.schema import arrow_type

TABLE_KINDS: list[IcebergType] = [
    BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(9, 2), DecimalType(38, 4),
    DateType(), TimeType(), TimestampType(), TimestamptzType(), StringType(), BinaryType(), FixedType(2), UUIDType(),
]  # fmt: skip
UNPARTITIONED = [FloatType(), DoubleType(), UUIDType()]  # pyiceberg cannot write partitions of NaN, and of UUIDs
ONE_RANK: dict[str, Any] = {"num_ranks": 1, "rank": 0, "num_workers": 0, "output_format": "arrow", "columns": ["row"]}


def rows_of(loader: Any) -> list[int]:
    """The row numbers that a loader delivers."""
    return [row for batch in loader for row in batch["row"].to_pylist()]


# --------------------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder each time."""
    root = tmp_path_factory.mktemp("literals")
    return (root / str(number) for number in count())


def write_files(folder: Path, cells: pa.Array, **more: Any) -> None:
    """The cells in two files, two rows to a row group."""
    folder.mkdir()
    table = pa.table({"row": range(len(cells)), "x": cells})
    half = len(cells) // 2
    for name, part in (("a", table[:half]), ("b", table[half:])):
        pq.write_table(part, folder / f"{name}.parquet", row_group_size=2, **more)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_rows_of_files_are_those_of_plain_python(
    folders: Iterator[Path], kind: pa.DataType, data: st.DataObject
) -> None:
    pool = column(kind)
    cells = pool.take(data.draw(st.lists(st.integers(0, len(pool) - 1), min_size=4, max_size=9), label="cells"))
    folder = next(folders)
    write_files(folder, cells)
    for condition in data.draw(st.lists(conditions(kind), min_size=1, max_size=3), label="conditions"):
        for filters in (condition.tuples("x"), condition.sql("x")):
            if filters is not None:
                loader, _ = StructuredDataset.create_dataloader(folder, filters=filters, **ONE_RANK)
                assert rows_of(loader) == condition.places(cells), filters


@pytest.mark.parametrize(
    ("kind", "folder_names", "filters", "rows"),
    [
        (pa.float32(), ["1.23", "2.5"], [("p", "=", 1.23)], [0]),
        (pa.float32(), ["1.23", "2.5"], "p in (1.23, 9.5)", [0]),
        (pa.int8(), ["1", "2"], [("p", "<", 300)], [0, 1]),
        (pa.int8(), ["1", "2"], [("p", "in", [2, 300])], [1]),
        (pa.int8(), ["1", "2"], [("p", "!=", 300)], [0, 1]),
        (pa.decimal128(5, 2), ["1.10", "2.20"], "p = '1.1'", [0]),
        (pa.date32(), ["2024-01-01", "2024-01-02"], [("p", ">", "2024-01-01")], [1]),
    ],
    ids=str,
)
def test_folders_are_pruned_by_the_same_literal(
    folders: Iterator[Path], kind: pa.DataType, folder_names: list[str], filters: Any, rows: list[int]
) -> None:
    folder = next(folders)
    for row, name in enumerate([*folder_names, "__HIVE_DEFAULT_PARTITION__"]):
        (folder / f"p={name}").mkdir(parents=True)
        pq.write_table(pa.table({"row": [row]}), folder / f"p={name}" / "a.parquet")
    schema = pa.schema([("row", pa.int64()), ("p", kind)])
    loader, dataset = StructuredDataset.create_dataloader(folder, filters=filters, schema=schema, **ONE_RANK)
    assert rows_of(loader) == rows
    assert dataset.plan(0, 0).num_splits == len(rows)  # of three files


# -------------------------------------------------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlCatalog]:
    """A catalog with a table per type: unpartitioned, of three files; and one partitioned by the column's values."""
    folder = tmp_path_factory.mktemp("catalog")
    made = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    made.create_namespace("ns")
    yield made
    made.close()


def make_table(catalog: SqlCatalog, name: str, kind: IcebergType, partitioned: bool) -> tuple[Table, pa.Array]:
    """A table of the columns "row" and "x", and the cells of "x" in the order of "row"."""
    schema = Schema(NestedField(1, "row", LongType()), NestedField(2, "x", kind))
    fields = [PartitionField(2, 1000, IdentityTransform(), "p")] if partitioned else []
    table = catalog.create_table(("ns", name), schema, partition_spec=PartitionSpec(*fields))
    pool = column(arrow_type(kind))
    cells = pool[::-1] if partitioned else pa.concat_arrays([pool[::2], pool[1::2]])
    rows = pa.table({"row": range(len(cells)), "x": cells.cast(pa.uuid()) if kind == UUIDType() else cells})
    step = len(cells) if partitioned else -(-len(cells) // 3)
    for first in range(0, len(cells), step):
        table.append(rows[first : first + step])
    return catalog.load_table(("ns", name)), cells


def check_table(table: Table, cells: pa.Array, condition: Condition) -> None:
    expected = condition.places(cells)
    for filters in (condition.tuples("x"), condition.sql("x")):
        if filters is not None:
            loader, _ = IcebergDataset.create_dataloader(table, filters=filters, **ONE_RANK)
            assert sorted(rows_of(loader)) == expected, filters
            loader, _ = IcebergDataset.create_dataloader(table, scan_filter=filters, **ONE_RANK)
            assert set(rows_of(loader)) >= set(expected), filters
            loader, _ = IcebergDataset.create_dataloader(table, filters=filters, scan_filter=filters, **ONE_RANK)
            assert sorted(rows_of(loader)) == expected, filters


@pytest.mark.parametrize(
    ("kind", "partitioned"),
    [(kind, False) for kind in TABLE_KINDS] + [(kind, True) for kind in TABLE_KINDS if kind not in UNPARTITIONED],
    ids=str,
)
def test_rows_of_tables_are_those_of_plain_python(catalog: SqlCatalog, kind: IcebergType, partitioned: bool) -> None:
    table, cells = make_table(catalog, f"t{TABLE_KINDS.index(kind)}{partitioned:d}", kind, partitioned)

    @settings(max_examples=5)
    @given(condition=conditions(arrow_type(kind)))
    def check(condition: Condition) -> None:
        check_table(table, cells, condition)

    check()
