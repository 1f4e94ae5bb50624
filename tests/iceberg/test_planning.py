"""Which data files are planned, with which deletes and columns: Spark's tables, and pyiceberg's own plan."""

import json
import pickle
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField
from pyroaring import BitMap64

from tests.iceberg.conftest import QUESTIONS, TABLES
from tests.iceberg.helpers import append_files, data_file, names_of, numbers_table
from tests.terminal import stderr_terminal
from torch_dataloader_utils import Appended, progress
from torch_dataloader_utils.errors import (
    ColumnNotFoundError,
    OptionError,
    UnsupportedTypeError,
)
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile
from torch_dataloader_utils.iceberg.tables import IcebergPlan, IcebergRead, SnapshotChoice, plan_table


def choice(parameters):
    return SnapshotChoice(
        snapshot_id=parameters.get("snapshot"),
        ref=parameters.get("ref"),
        appended=Appended(parameters["start"], until=parameters["end"]) if "start" in parameters else None,
    )


def deleted(file: IcebergFile, delete: DeleteFile) -> set[int]:
    """The positions of a data file that a delete file names, read without the package's own readers."""
    if delete.kind == "vector":
        data = Path(delete.path).read_bytes()[delete.offset : delete.offset + delete.length]
        return set(BitMap64.deserialize(data[8:-4]))
    rows = (pq if delete.format == "parquet" else orc).read_table(delete.path)
    return set(rows.filter(pc.field("file_path") == file.table_path).column("pos").to_pylist())


# ----------------------------------------------------------------------------------------------------- Spark's tables


# The others are known only after reading: of equality deletes, and of rows that a filter leaves.
COUNTED = [one for one in QUESTIONS if not one.table.startswith("eq_") and "row_filter" not in one.parameters]


@pytest.mark.parametrize("question", COUNTED, ids=lambda question: f"{question.table}-{question.name}")
def test_live_rows_are_as_many_as_spark_counts(question, spark_tables):
    plan = plan_table(spark_tables(question.table), IcebergRead(snapshot=choice(question.parameters)))
    files = [planned.file for planned in plan.files]
    live = sum(
        file.record_count - len(set().union(*(deleted(file, delete) for delete in file.deletes))) for file in files
    )
    assert live == question.parameters["rows"]
    if question.name != "lineage":  # which asked for some columns only
        assert plan.table.schema.names == question.rows.column_names


@pytest.mark.parametrize(
    ("table", "deletes"),
    [
        # (what the file is, sequence number, which columns an equality delete compares) for each data file
        ("v2_mor_rowgroups", [[("positions", 4, ())], [("positions", 4, ())], [], []]),
        ("v3_dv_lineage", [[("vector", 7, ())], [("vector", 4, ())], [("vector", 4, ())], [], []]),
        ("v2_to_v3", [[("vector", 3, ())], [("vector", 5, ())]]),
        ("eq_v3_dv", [[("vector", 3, ()), ("equality", 2, (1,))], []]),
        ("files_orc", [[("positions", 2, ())], []]),
        ("empty_all_deleted", [[("positions", 3, ())]]),
        (
            "eq_deletes",
            [
                [("equality", 2, (1,)), ("equality", 4, (2, 3)), ("equality", 6, (2,)), ("equality", 7, (2,))],
                [("equality", 4, (2, 3)), ("equality", 6, (2,)), ("equality", 7, (2,))],
                [("equality", 6, (2,)), ("equality", 7, (2,))],
            ],
        ),
        ("v2_cow", [[]]),
        ("refs", [[]] * 5),
    ],
)
def test_deletes_of_each_file(table, deletes, spark_tables):
    plan = plan_table(spark_tables(table), IcebergRead())
    found = [
        [(delete.kind, delete.sequence_number, delete.equality_ids) for delete in planned.file.deletes]
        for planned in plan.files
    ]
    assert found == deletes
    assert [planned.info.deletes for planned in plan.files] == [len(each) for each in deletes]


def test_vectors_share_a_file_and_row_ids_are_inherited(spark_tables):
    plan = plan_table(spark_tables("v3_dv_lineage"), IcebergRead(metadata_columns=("_row_id",)))
    assert [(d.offset, d.length) for one in plan.files for d in one.file.deletes] == [(4, 178), (164, 80), (244, 60)]
    assert [one.file.first_row_id for one in plan.files] == [0, 300, 400, 450, 451]
    assert plan.table.defaults == {3: 42, 4: "dflt"}
    assert plan.table.schema.names[-1] == "_row_id"


@pytest.mark.parametrize("name", [name for name in TABLES if not name.startswith("eq_")])
def test_files_are_those_of_pyiceberg(name, spark_tables):
    path = spark_tables(name)
    ours = plan_table(path, IcebergRead(columns=["id"]))
    theirs = {task.file.file_path for task in StaticTable.from_metadata(path).scan().plan_files()}
    assert {planned.file.table_path for planned in ours.files} == theirs
    assert all(Path(planned.info.path).stat().st_size == planned.info.file_size for planned in ours.files)


def test_manifests_are_counted_on_a_bar(spark_tables, monkeypatch):
    monkeypatch.setattr(progress, "_SHORT", 0)  # quick work shows none
    with stderr_terminal() as terminal:
        plan_table(spark_tables("partitions"), IcebergRead(progress=progress.Progress(show=True)))
    assert terminal.screen[0].startswith("reading the table's manifests: 100%|")


def test_partition_values_and_constants_by_the_spec_of_each_file(spark_tables):
    plan = plan_table(spark_tables("partitions"), IcebergRead())
    by_spec = {planned.info.spec_id: planned for planned in plan.files}
    assert sorted(by_spec) == [0, 6]
    assert list(by_spec[0].info.partition) == ["s", "id_bucket", "ts_day", "s_trunc", "lng_trunc"]
    assert [number for number, _ in by_spec[0].file.constants] == [2]
    assert list(by_spec[6].info.partition) == ["ts_day", "s_trunc", "lng_trunc", "d", "tz_hour", "dec", "b"]
    assert [number for number, _ in by_spec[6].file.constants] == [3, 6, 7]
    assert sum(one["files"] for one in plan.partitions) == len(plan.files) == 10
    assert {one["spec_id"] for one in plan.partitions} == {0, 6}


def test_the_filter_that_spark_was_asked(spark_tables):
    (parameters,) = [question.parameters for question in QUESTIONS if "row_filter" in question.parameters]
    plan = plan_table(spark_tables("partitions"), IcebergRead(filters=parameters["row_filter"]))
    # One file in each spec: the day and the first letters are partition values, the rest the bounds tell.
    assert (plan.pruned.files_before, plan.pruned.files_after) == (10, 2)
    only_pruned = plan_table(spark_tables("partitions"), IcebergRead(scan_filter=parameters["row_filter"]))
    assert names_of(only_pruned) == names_of(plan)
    assert only_pruned.row_filter is None
    assert only_pruned.scan_filter.equals(plan.row_filter)


def test_name_mapping_of_a_migrated_table(spark_tables):
    plan = plan_table(spark_tables("migrated_hive"), IcebergRead())
    assert {"field-id": 2, "names": ["vv", "v"]} in plan.table.name_mapping
    assert [planned.info.partition["r"] for planned in plan.files][-1] == "q"


def test_plans_travel(spark_tables):
    plan = plan_table(spark_tables("eq_v3_dv"), IcebergRead(filters="id > 3"))
    again: IcebergPlan = pickle.loads(pickle.dumps(plan))
    assert again.files == plan.files
    assert again.table == plan.table
    assert len(pickle.dumps(plan.files)) / len(plan.files) < 2000


def test_order_is_that_of_commits(catalog):
    table = numbers_table(catalog)
    for names in (("b", "a"), ("z", "y"), ("c",)):
        append_files(table, [data_file(table, name, {"x": [1]}) for name in names])
    assert names_of(plan_table(table, IcebergRead())) == ["a", "b", "y", "z", "c"]


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("kind", ["variant", "geometry(srid:3857)", "of_the_future"])
def test_types_that_pyiceberg_does_not_know(kind, spark_tables, tmp_path):
    metadata = json.loads(Path(spark_tables("types_v3")).read_text())
    metadata["schemas"][1]["fields"][3]["type"] = {
        "type": "list",
        "element-id": 9,
        "element-required": False,
        "element": kind,
    }
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnsupportedTypeError) as caught:
        plan_table(path, IcebergRead())
    assert f"'un' of the table has the type {kind}," in str(caught.value)
    assert "columns=['id', 'ns', 'nz']" in str(caught.value)
    with pytest.raises(UnsupportedTypeError, match="'un'"):
        plan_table(path, IcebergRead(columns=["id", "un"]))
    plan = plan_table(path, IcebergRead(columns=["ns"], filters="id > 0"))
    assert len(plan.files) == 2
    assert [str(found) for found in plan.table.schema.types] == ["int64", "timestamp[ns]", "timestamp[ns, tz=UTC]"]


def test_defaults_in_nanoseconds(spark_tables, tmp_path):
    metadata = json.loads(Path(spark_tables("types_v3")).read_text())
    for field, text in zip(metadata["schemas"][1]["fields"][1:3], ("", "+00:00"), strict=True):
        field["initial-default"] = field["write-default"] = f"2024-01-01T00:00:00.000000001{text}"
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    defaults = plan_table(path, IcebergRead(columns=["id"])).table.defaults
    assert {number: value.value for number, value in defaults.items()} == {
        2: 1704067200000000001,
        3: 1704067200000000001,
    }


def test_metadata_columns_are_checked(spark_tables):
    path = spark_tables("v2_cow")
    plan = plan_table(path, IcebergRead(metadata_columns=("_file", "_pos")))
    assert plan.table.schema.names[-2:] == ["_file", "_pos"]
    with pytest.raises(OptionError, match="format version 3"):
        plan_table(path, IcebergRead(metadata_columns=("_row_id",)))
    with pytest.raises(OptionError, match="_partition"):
        plan_table(path, IcebergRead(metadata_columns=("_partition",)))


def test_every_field_has_its_id(spark_tables):
    schema = plan_table(spark_tables("evolved"), IcebergRead()).table.schema
    seen = []

    def walk(field):
        seen.append(int(field.metadata[b"PARQUET:field_id"]))
        kind = field.type
        for place in range(kind.num_fields):
            inner = kind.field(place)
            # Arrow shows a map's entries as a struct of its own, which Iceberg has no word for.
            for child in list(inner.type) if str(kind).startswith("map<") else [inner]:
                walk(child)

    for field in schema:
        walk(field)
    assert len(seen) == len(set(seen)) > len(schema)


def test_an_unknown_column_in_a_filter(spark_tables):
    with pytest.raises(ColumnNotFoundError, match="idd"):
        plan_table(spark_tables("v2_cow"), IcebergRead(filters="idd > 3"))


# ---------------------------------------------------------------------------------------------------------------- speed


@pytest.mark.slow
def test_twenty_thousand_files_are_those_that_pyiceberg_plans(catalog):
    """How fast, `benchmarks/iceberg.py` tells."""
    columns = {f"c{place}": NestedField(place + 1, f"c{place}", LongType()) for place in range(12)}
    table = catalog.create_table("ns.big", Schema(*columns.values()))
    for part in range(4):
        files = range(part * 5000, (part + 1) * 5000)
        append_files(table, [data_file(table, str(i), {column: [i, i + 1] for column in columns}) for i in files])
    ours = [file.info.path for file in plan_table(table, IcebergRead()).files]
    assert len(ours) == 20_000
    assert sorted(ours) == sorted(task.file.file_path.removeprefix("file://") for task in table.scan().plan_files())
