"""Tables that Apache Spark wrote, through loaders: over ranks and workers the rows are Spark's, every one once."""

import logging
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThan, In
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from tests.iceberg.by_hand import equality_file, field, planned, positions_file, vector_file, write
from tests.iceberg.conftest import QUESTIONS, Question
from torch_dataloader_utils import Appended, IcebergDataset, StructuredDataset, combine
from torch_dataloader_utils.errors import CountsRequiredError, EmptyDatasetError
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout
from torch_dataloader_utils.model import DataFile, Piece, Task
from torch_dataloader_utils.planning.strategies import TargetSizeSplitStrategy, make_splits
from torch_dataloader_utils.reading import task_reader
from torch_dataloader_utils.storage import Storage

Spark = Callable[[str], str]

METADATA = ("_row_id", "_last_updated_sequence_number", "_file", "_pos")
WORLDS = [(1, 0), (2, 2), (3, 1)]
TINY = {"split_bytes": 8, "batch_size": 7}  # footers are read: an eighth of this is less than any file
IN_PROCESSES = {"v2_mor_rowgroups-head", "eq_v3_dv-head", "files_orc-head"}  # all others are slow: a process each


def asked(question: Question) -> dict[str, Any]:
    """The keywords that ask a loader for what Spark was asked for."""
    parameters, names = question.parameters, question.rows.column_names
    options = {
        "snapshot_id": parameters.get("snapshot"),
        "ref": parameters.get("ref"),
        "appended": Appended(parameters["start"], until=parameters.get("end")) if "start" in parameters else None,
        "filters": parameters.get("row_filter"),
        "columns": [name for name in names if name not in METADATA],
        "metadata_columns": [name for name in names if name in METADATA],
    }
    return {name: value for name, value in options.items() if value is not None}


def open_table(table: Any, ranks: int = 1, rank: int = 0, **options: Any) -> tuple[Any, IcebergDataset]:
    return IcebergDataset.create_dataloader(
        table, **{"output_format": "arrow", "num_ranks": ranks, "rank": rank, **options}
    )


def read_all(table: Any, ranks: int = 1, **options: Any) -> pa.Table:
    """The rows of all ranks; the number of batches and rows of each is what the plan says, where it does."""
    parts = []
    for rank in range(ranks):
        loader, dataset = open_table(table, ranks, rank, **options)
        plan = dataset.plan()
        if plan.steps is None:
            with pytest.raises(TypeError):
                len(loader)
        else:
            assert len(loader) == plan.steps
        batches = list(loader)
        part = pa.Table.from_batches(batches, dataset.schema)
        assert plan.rows in (None, part.num_rows)
        assert plan.steps in (None, len(batches))
        dataset.close()
        parts.append(part)
    return pa.concat_tables(parts)


def as_text(table: pa.Table) -> list[str]:
    """The rows as texts, sorted; a text, as NaN equals nothing."""
    return sorted(map(repr, table.to_pylist()))


def check(spark_tables: Spark, question: Question, **options: Any) -> None:
    table = read_all(spark_tables(question.table), **asked(question), **options)
    assert as_text(table.select(question.rows.column_names)) == as_text(question.rows)


def named(question: Question) -> str:
    return f"{question.table}-{question.name}"


def by_process(question: Question) -> Any:
    marks = () if named(question) in IN_PROCESSES else (pytest.mark.slow,)
    return pytest.param(question, id=named(question), marks=marks)


@pytest.fixture
def numbers(catalog: Catalog) -> Table:
    """A table of 100 rows in two files: "id" from 0 on, and "x" = id * 2."""
    schema = pa.schema({"id": pa.int64(), "x": pa.int64()})
    table = catalog.create_table("ns.numbers", schema=schema)
    for first in (0, 50):
        ids = range(first, first + 50)
        table.append(pa.table({"id": ids, "x": [2 * i for i in ids]}, schema=schema))
    return table


def structured(folder: Path, first: int, rows: int) -> StructuredDataset:
    folder.mkdir()
    ids = range(first, first + rows)
    pq.write_table(pa.table({"id": ids, "x": [2 * i for i in ids]}), folder / "a.parquet", row_group_size=20)
    return StructuredDataset.create_dataloader(folder, num_ranks=1, rank=0)[1]


def ids_of(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch["id"]]


# ------------------------------------------------------------------------------------------------------- Spark's rows


@pytest.mark.parametrize(("ranks", "workers"), WORLDS)
@pytest.mark.parametrize("question", QUESTIONS, ids=named)
def test_rows_are_those_of_spark(spark_tables: Spark, question: Question, ranks: int, workers: int) -> None:
    check(spark_tables, question, ranks=ranks, num_workers=workers, batch_size=7)
    check(spark_tables, question, ranks=ranks, num_workers=workers, **TINY)


@pytest.mark.parametrize("question", [by_process(question) for question in QUESTIONS])
def test_rows_are_those_of_spark_in_processes(spark_tables: Spark, question: Question) -> None:
    check(spark_tables, question, ranks=2, num_workers=2, worker_mode="processes", **TINY)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("question", [q for q in QUESTIONS if "row_filter" not in q.parameters], ids=named)
def test_row_groups_are_cut_over_ranks(spark_tables: Spark, question: Question, ranks: int) -> None:
    counted = {"count_rows": True} if question.table.startswith("eq_") else {}
    check(spark_tables, question, ranks=ranks, num_workers=1, sharding="contiguous", **counted, **TINY)


@pytest.mark.parametrize("question", QUESTIONS, ids=named)
def test_shuffled_rows_are_the_same_ones(spark_tables: Spark, question: Question) -> None:
    check(spark_tables, question, ranks=2, num_workers=2, shuffle=True, **TINY)


@pytest.mark.parametrize("engine", ["auto", "pyarrow"])
@pytest.mark.parametrize(
    "name", ["v2_mor_rowgroups", "v3_dv_lineage", "eq_deletes", "eq_v3_dv", "evolved", "files_orc"]
)
def test_a_selective_filter_finds_the_rows_that_no_delete_names(
    spark_tables: Spark, name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_reader, "_APART", 0)  # any rows are decoded alone
    monkeypatch.setattr(task_reader, "_MOST", 1)
    options = {"metadata_columns": ("_pos", "_file"), "format_options": {"engine": engine}}
    whole = read_all(spark_tables(name), **options)
    first = whole.column(0)
    values = sorted(set(first.drop_null().to_pylist()))
    for some in (values[::7], values[:1], values[1:]):
        found = read_all(spark_tables(name), filters=[(whole.column_names[0], "in", some)], **options)
        assert as_text(found) == as_text(whole.filter(pc.is_in(first, pa.array(some, first.type))))


def test_every_row_has_a_place_of_its_own(spark_tables: Spark) -> None:
    for name in ("v2_mor_rowgroups", "files_orc", "eq_deletes"):
        table = read_all(spark_tables(name), 2, columns=["id"], metadata_columns=("_file", "_pos"), **TINY)
        assert table.column_names == ["id", "_file", "_pos"]
        places = list(zip(table["_file"].to_pylist(), table["_pos"].to_pylist(), strict=True))
        assert len(set(places)) == len(places) > 0


def test_columns_give_metadata_columns_their_place(spark_tables: Spark) -> None:
    path = spark_tables("v2_mor_rowgroups")
    given = {"columns": ["_pos", "id"], "metadata_columns": ["_pos", "_file"], "filters": "_pos < 3"}
    table = read_all(path, **given)
    assert table.column_names == ["_pos", "id", "_file"]
    assert set(table["_pos"].to_pylist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("columns", "metadata_columns", "expected"),
    [
        (["x", "*"], [], ["x", "id"]),
        (["?d"], ["_pos"], ["id", "_pos"]),
        (["_*", "i*"], ["_pos", "_file"], ["_pos", "_file", "id"]),
    ],
)
def test_columns_are_found_by_patterns(
    numbers: Table, columns: list[str], metadata_columns: list[str], expected: list[str]
) -> None:
    assert read_all(numbers, columns=columns, metadata_columns=metadata_columns).column_names == expected


def test_one_dtype_for_all_floats(catalog: Catalog) -> None:
    kinds = {"id": pa.int64(), "price": pa.decimal128(9, 2), "x": pa.float64(), "s": pa.struct({"y": pa.float64()})}
    table = catalog.create_table("ns.prices", schema=pa.schema(kinds))
    table.append(pa.table({"id": [1], "price": [Decimal("1.25")], "x": [0.5], "s": [{"y": 2.5}]}, pa.schema(kinds)))
    for dtypes in ("float32", {"float64": torch.float32}):
        loader, _ = open_table(table, output_format="torch", dtypes=dtypes)
        (batch,) = list(loader)
        assert {key: value.dtype for key, value in batch.items()} == {
            "id": torch.int64, "price": torch.float32, "x": torch.float32, "s.y": torch.float32,
        }  # fmt: skip
        assert [batch[key].item() for key in ("price", "x", "s.y")] == [1.25, 0.5, 2.5]


@pytest.mark.parametrize("worker", [{"num_workers": 0}, {"num_workers": 2, "worker_mode": "processes"}], ids=str)
def test_a_column_of_the_type_unknown_is_nulls(spark_tables: Spark, worker: dict[str, Any]) -> None:
    path = spark_tables("types_v3")
    ids = read_all(path, columns=["id"])["id"].to_pylist()
    assert len(ids) > 1
    for filters, left in ((None, ids), ("un is null", ids), (pc.field("un").is_valid(), []), ("un is not null", [])):
        rows = read_all(path, filters=filters, **worker)
        assert (rows["id"].to_pylist(), rows["un"].null_count) == (left, len(left))
        assert rows.schema.field("un").type == pa.null()
    loader, _ = open_table(path, output_format="torch", columns=["un"])
    assert [value for batch in loader for value in batch["un"]] == [None] * len(ids)


def test_nested_columns_as_tensors(spark_tables: Spark) -> None:
    """Null structs, lists and maps stay null."""
    path = spark_tables("evolved")
    rows = read_all(path)
    (batch,) = IcebergDataset.create_dataloader(path, nulls="mask", num_ranks=1, rank=0)[0]
    assert "null" in str(rows["st"])
    assert batch["l"] == rows["l"].to_pylist()
    assert batch["m"] == rows["m"].to_pylist()
    assert batch["st.y"] == [cell and cell["y"] for cell in rows["st"].to_pylist()]
    assert batch["st.xx_valid"].tolist() == [(cell or {}).get("xx") is not None for cell in rows["st"].to_pylist()]


@pytest.mark.parametrize("name", ["types_all_parquet", "types_all_orc"])
def test_every_type_as_tensors(spark_tables: Spark, name: str) -> None:
    path = spark_tables(name)
    rows = read_all(path)
    loader, dataset = IcebergDataset.create_dataloader(path, nulls="mask", num_ranks=1, rank=0)
    (batch,) = loader
    assert batch.keys() >= set(dataset.schema.names)
    for item in dataset.schema:
        cells, values = rows[item.name], batch[item.name]
        if item.name in ("s", "u", "fx", "bi"):
            assert values == cells.to_pylist()
            continue
        there = torch.tensor(cells.is_valid().to_pylist())
        assert values.shape == there.shape == (3,)
        if values.is_floating_point():
            # Not Arrow's cast: it rounds decimals twice.
            expected = [math.nan if cell is None else float(cell) for cell in cells.to_pylist()]
            torch.testing.assert_close(
                values.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
            )
        else:
            assert torch.equal(batch.get(f"{item.name}_valid", there), there)
            whole = cells.cast(pa.int32()) if pa.types.is_date32(item.type) else cells
            assert values[there].tolist() == whole.drop_null().cast(pa.int64()).to_pylist()


# --------------------------------------------------------------------------------------------------- counts and steps


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("name", ["v2_mor_rowgroups", "v3_dv_lineage", "eq_deletes"])
def test_ranks_have_equal_steps(spark_tables: Spark, name: str, even: str) -> None:
    """Deleted rows are in no count: what is left is dealt in equal shares."""
    rows = {question.table: question for question in QUESTIONS if question.name == "head"}[name].rows
    counted = {"count_rows": True} if name == "eq_deletes" else {}
    found, steps = [], []
    for rank in range(2):
        loader, _ = open_table(spark_tables(name), 2, rank, even=even, batch_size=8, split_bytes=8, **counted)
        batches = list(loader)
        assert len(loader) == len(batches)
        assert all(batch.num_rows == 8 for batch in batches)
        steps.append(len(batches))
        for batch in batches:
            real = pa.Table.from_batches([batch])
            found.append(real.filter(real["valid"]).drop_columns(["valid"]) if even == "pad" else real)
    whole = rows.num_rows // 16 if even == "drop" else -(-rows.num_rows // 16)
    assert steps == [whole, whole]
    got = as_text(pa.concat_tables(found).select(rows.column_names))
    if even == "pad":
        assert got == as_text(rows)
    else:
        assert len(got) == 16 * whole
        assert set(got) <= set(as_text(rows))


def test_equality_deletes_need_a_count(spark_tables: Spark) -> None:
    path = spark_tables("eq_deletes")
    with pytest.raises(TypeError):
        len(open_table(path)[0])
    with pytest.raises(CountsRequiredError, match="count_rows=True"):
        open_table(path, even="drop")
    loader, dataset = open_table(path, count_rows=True, batch_size=7)
    assert dataset.plan(0).rows == 30
    assert [batch.num_rows for batch in loader] == [7, 7, 7, 7, 2]
    assert len(loader) == 5


# ------------------------------------------------------------------------------------------------------ empty tables


@pytest.mark.parametrize("name", ["empty_no_snapshot", "empty_all_deleted"])
def test_an_empty_table_is_an_empty_loader(spark_tables: Spark, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        loader, dataset = open_table(spark_tables(name), 2, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the table holds no rows" in caplog.text
    assert len(loader) == 0
    assert list(loader) == []
    assert dataset.schema.names == ["id"]
    assert (dataset.snapshot is None) == (name == "empty_no_snapshot")


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("name", ["empty_no_snapshot", "empty_all_deleted"])
def test_equal_steps_need_a_row(spark_tables: Spark, name: str, even: str) -> None:
    with pytest.raises(EmptyDatasetError):
        open_table(spark_tables(name), 2, 0, even=even)


def test_a_filter_that_matches_nothing_is_an_empty_loader(numbers: Table, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        loader, _ = open_table(numbers, filters="id > 1000")
    assert ["the filter matches no" in record.getMessage() for record in caplog.records] == [True]
    assert list(loader) == []


# ------------------------------------------------------------------------------------------------------- the dataset


def test_the_snapshot_is_pinned(numbers: Table) -> None:
    loader, dataset = open_table(numbers, batch_size=64)
    assert dataset.snapshot.snapshot_id == numbers.current_snapshot().snapshot_id
    assert dataset.snapshot.operation == "append"
    before = list(loader)
    numbers.delete("id < 90")
    assert list(loader) == before
    assert read_all(numbers)["id"].to_pylist() == list(range(90, 100))
    (old,) = [read_all(numbers, snapshot_id=dataset.snapshot.snapshot_id)]
    assert old == pa.Table.from_batches(before)


def test_partitions(spark_tables: Spark) -> None:
    _, dataset = open_table(spark_tables("migrated_hive"))
    partitions = dataset.partitions
    assert sum(partition["records"] for partition in partitions) == 7
    assert {"partition", "spec_id", "files", "records"} == set(partitions[0])
    _, dataset = open_table(spark_tables("empty_no_snapshot"))
    assert dataset.partitions == []


def test_the_dataset_pickles(spark_tables: Spark) -> None:
    for name in ("v2_mor_rowgroups", "v3_dv_lineage", "partitions", "eq_deletes"):
        loader, dataset = open_table(spark_tables(name))
        copy = pickle.loads(pickle.dumps(dataset))
        assert isinstance(copy, IcebergDataset)
        assert list(copy) == list(loader)
        assert copy.snapshot == dataset.snapshot
        assert copy.partitions == dataset.partitions


def test_a_file_of_which_the_manifest_tells_enough_travels_light(catalog: Catalog) -> None:
    table = catalog.create_table("ns.light", Schema(*(NestedField(i, f"c{i}", LongType()) for i in range(1, 41))))
    table.append(pa.table({f"c{i}": range(10) for i in range(1, 41)}))
    _, dataset = open_table(table)
    (file,) = dataset._source.files
    assert len(pickle.dumps(file)) < 1500


def test_a_few_hundred_bytes_per_split_travel(tmp_path: Path) -> None:
    """To a worker process: 16 row groups of 11 columns in each file, with deletes of all kinds."""
    values = np.random.default_rng(0).integers(0, 1 << 40, (11, 1600))
    fields = [field(number, f"column_{number}", pa.int64()) for number in range(1, 12)]
    data = pa.table([pa.array(column) for column in values], schema=pa.schema(fields))
    vectors = [list(range(number, 1600, 100)) for number in range(30)]
    paths = [write(data, tmp_path / f"part-{number}-0f4e2c9a.parquet", segment_rows=100) for number in range(30)]
    positions = positions_file(tmp_path / "positions.parquet", {str(path): [5, 900] for path in paths})
    keys = equality_file(tmp_path / "keys.parquet", pa.table([[7]], schema=pa.schema(fields[:1])))
    files = []
    for path, deleted in zip(paths, vectors, strict=True):
        deletes = [positions, vector_file(path.with_suffix(".puffin"), deleted), keys]
        info, file = planned(path, rows=1600, deletes=deletes)
        files.append(DataFile(info, iceberg_layout(info, file, Storage())))
    for per_file, most in ((1, 1200), (4, 500), (16, 250)):
        size = sum(segment.size_bytes for segment in files[0].layout.segments) // per_file
        splits = make_splits(TargetSizeSplitStrategy(size, None), files)
        assert 30 * per_file <= len(splits) < 60 * per_file
        tasks = [Task((Piece(split, None),), None, split.size_bytes) for split in splits]
        message = ("pass", 1, tasks, {file.info.key: file for file in files})
        assert len(pickle.dumps(message)) / len(splits) < most


def test_a_table_in_torchs_own_dataloader(numbers: Table) -> None:
    _, dataset = IcebergDataset.create_dataloader(numbers, num_ranks=1, rank=0, batch_size=10)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(ids_of(loader)) == list(range(100))


# ----------------------------------------------------------------------------------------------- with files of others


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_table_and_files_together(numbers: Table, tmp_path: Path, ranks: int) -> None:
    numbers.delete("id >= 95")
    _, table = IcebergDataset.create_dataloader(numbers, num_ranks=1, rank=0)
    files = structured(tmp_path / "files", 95, 60)
    found = []
    for rank in range(ranks):
        options = {"num_ranks": ranks, "rank": rank, "batch_size": 16, "shuffle": True, "num_workers": 2}
        loader = combine([table, files], **options)
        steps = len(loader)
        batches = list(loader)
        assert steps == len(batches)
        assert all(torch.equal(batch["x"], 2 * batch["id"]) for batch in batches)
        found += ids_of(batches)
    assert sorted(found) == list(range(155))


@pytest.mark.parametrize(
    "filters", ["id > 10 and x in (30, 40, 500)", And(GreaterThan("id", 10), In("x", (30, 40, 500)))]
)
def test_filters_of_tables_work_on_files(numbers: Table, tmp_path: Path, filters: Any) -> None:
    structured(tmp_path / "files", 0, 100)
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "files", filters=filters, num_ranks=1, rank=0)
    assert ids_of(loader) == [15, 20]
    assert read_all(numbers, filters=filters)["id"].to_pylist() == [15, 20]
