"""Tables made of metadata alone: planning opens no data file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from torch_dataloader_utils.iceberg.schema import table_schema
from torch_dataloader_utils.iceberg.tables import IcebergPlan


def data_file(
    table: Table, name: str, values: Mapping[str, Sequence[Any]], partition: Sequence[Any] = (), size: int = 1000
) -> DataFile:
    """A file that would hold these columns, with their bounds and counts, as a writer would list it."""
    schema: Schema = table.schema()
    counts: dict[str, dict[int, Any]] = {key: {} for key in ("value", "null", "nan", "lower", "upper")}
    for column, cells in values.items():
        field = schema.find_field(column)
        number, kind = field.field_id, field.field_type
        there = [cell for cell in cells if cell is not None]
        real = [cell for cell in there if cell == cell]
        counts["value"][number] = len(cells)
        counts["null"][number] = len(cells) - len(there)
        counts["nan"][number] = len(there) - len(real)
        if real:
            counts["lower"][number] = to_bytes(kind, min(real))
            counts["upper"][number] = to_bytes(kind, max(real))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{name}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=max(len(cells) for cells in values.values()),
        file_size_in_bytes=size,
        column_sizes={},
        value_counts=counts["value"],
        null_value_counts=counts["null"],
        nan_value_counts=counts["nan"],
        lower_bounds=counts["lower"],
        upper_bounds=counts["upper"],
        split_offsets=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file


def append_files(table: Table, files: Iterable[DataFile]) -> None:
    """Commit files to a table, in one snapshot."""
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        for file in files:
            snapshot.append_data_file(file)


def compact(table: Table, row_filter: str = "true") -> int:
    """Rewrite the files of a table with such rows as one, which changes no row: the id of that snapshot.

    pyiceberg has no compaction: it is an overwrite, which the table's metadata then calls by its right name.
    """
    old = [task.file for task in table.scan(row_filter).plan_files()]
    rows = pa.concat_tables([pq.read_table(file.file_path.removeprefix("file://")) for file in old])
    with table.transaction() as change:
        new = _dataframe_to_data_files(change.table_metadata, rows, table.io)
        with change.update_snapshot().overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in new:
                snapshot.append_data_file(file)
    path = Path(table.metadata_location.removeprefix("file://"))
    content = json.loads(path.read_text())
    number = table.current_snapshot().snapshot_id
    (made,) = [one for one in content["snapshots"] if one["snapshot-id"] == number]
    made["summary"]["operation"] = "replace"
    path.write_text(json.dumps(content))
    table.refresh()
    return number


def numbers_table(catalog: Catalog) -> Table:
    """An empty table "ns.t" of two columns."""
    return catalog.create_table("ns.t", Schema(NestedField(1, "x", LongType()), NestedField(2, "s", StringType())))


def names_of(plan: IcebergPlan) -> list[str]:
    """The names of a plan's files, without folders and endings, in its order."""
    return [planned.info.path.rpartition("/")[2].partition(".")[0] for planned in plan.files]


# One column of each type; as Iceberg has them, and as Arrow does.
SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "x", DoubleType()),
    NestedField(5, "s", StringType()),
    NestedField(6, "b", BooleanType()),
    NestedField(7, "d", DateType()),
    NestedField(8, "t", TimestampType()),
    NestedField(9, "z", TimestamptzType()),
    NestedField(10, "n", DecimalType(9, 2)),
    NestedField(11, "y", BinaryType()),
    NestedField(12, "c", TimeType()),
    NestedField(13, "w", FixedType(2)),
    NestedField(14, "u", UUIDType()),
    NestedField(15, "st", StructType(NestedField(16, "k", LongType()))),
)
ARROW = table_schema(SCHEMA, {}, None, ())
NAN = float("nan")
F = pc.field
DAY, MICROS = 19723, 1704067200 * 10**6  # 2024-01-01
