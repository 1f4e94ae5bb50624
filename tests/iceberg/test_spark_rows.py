"""The tables that Apache Spark wrote, read file by file: the rows are Spark's."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.iceberg.conftest import QUESTIONS, Question
from torch_dataloader_utils import Appended
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.pruning import iceberg_pruner
from torch_dataloader_utils.iceberg.data_files.reader import IcebergOpener
from torch_dataloader_utils.iceberg.tables import IcebergPlan, IcebergRead, PlannedFile, SnapshotChoice, plan_table
from torch_dataloader_utils.model import FileLayout

METADATA = ("_row_id", "_last_updated_sequence_number", "_file", "_pos")


def choice(question: Question) -> SnapshotChoice:
    given = question.parameters.get
    appended = None if given("start") is None else Appended(given("start"), until=given("end"))
    return SnapshotChoice(given("snapshot"), given("ref"), None, appended)


def rows_of(plan: IcebergPlan, planned: PlannedFile, layout: FileLayout) -> pa.Table:
    """The file's rows, a segment and a column at a time, filtered."""
    schema = plan.table.schema
    reader = IcebergOpener(plan.table).open(planned.info, layout, plan.storage, {}, schema)
    try:
        parts = [schema.empty_table()]
        for segment in layout.segments:
            columns = [reader.read([segment.number], [name])[0] for name in schema.names]
            parts.append(pa.Table.from_arrays(columns, schema=schema))
            assert segment.rows in (None, parts[-1].num_rows)
        together = reader.read([segment.number for segment in layout.segments], schema.names)
        reader.confirm()
    finally:
        reader.close()
    table = pa.concat_tables(parts)
    assert as_text(pa.Table.from_arrays(together, schema=schema)) == as_text(table)
    return table if plan.row_filter is None else table.filter(plan.row_filter)


def as_text(table: pa.Table) -> list[str]:
    """The rows as texts, sorted; a text, as NaN equals nothing."""
    return sorted(map(repr, table.to_pylist()))


def layouts(plan: IcebergPlan) -> list[tuple[PlannedFile, FileLayout]]:
    found = [(one, iceberg_layout(one.info, one.file, plan.storage)) for one in plan.files]
    if plan.row_filter is None:
        return found
    prune = iceberg_pruner(plan.row_filter, plan.table)
    return [(one, prune(layout)) for one, layout in found]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: f"{question.table}-{question.name}")
def test_rows_are_those_of_spark(spark_tables: Callable[[str], str], question: Question) -> None:
    names = question.rows.column_names
    metadata = tuple(name for name in METADATA if name in names)
    filters = question.parameters.get("row_filter")
    read = IcebergRead(snapshot=choice(question), filters=filters, metadata_columns=metadata)
    plan = plan_table(spark_tables(question.table), read)
    parts = [rows_of(plan, planned, layout) for planned, layout in layouts(plan)]
    table = pa.concat_tables([plan.table.schema.empty_table(), *parts])
    assert as_text(table.select(names)) == as_text(question.rows)


def test_files_planned_from_manifests_alone_have_the_same_rows(spark_tables: Callable[[str], str]) -> None:
    for name in ("types_all_parquet", "types_all_orc", "migrated_hive", "eq_deletes", "evolved"):
        plan = plan_table(spark_tables(name), IcebergRead())
        for planned, layout in layouts(plan):
            if any(delete.kind != "equality" for delete in planned.file.deletes):
                continue
            assert as_text(rows_of(plan, planned, whole_file(planned.file, 0))) == as_text(
                rows_of(plan, planned, layout)
            )


def test_orc_and_parquet_hold_the_same_values_of_every_type(spark_tables: Callable[[str], str]) -> None:
    tables = []
    for name in ("types_all_parquet", "types_all_orc"):
        plan = plan_table(spark_tables(name), IcebergRead())
        tables.append(pa.concat_tables([rows_of(plan, planned, layout) for planned, layout in layouts(plan)]))
    assert tables[0].schema.equals(tables[1].schema)
    assert as_text(tables[0]) == as_text(tables[1])
