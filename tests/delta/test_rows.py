"""The rows of tables that deltalake writes are those that deltalake reads."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.by_hand import actions, commit, live, require, rewrite
from tests.delta.reading import by_deltalake, ids, in_order, opened, rows
from torch_dataloader_utils import FileReadError, SchemaMismatchError, UnsupportedTypeError


def numbers(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "x": [number / 2 for number in range(first, last)]})


def test_batches_on_a_device(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), numbers(0, 50))
    DeltaTable(str(tmp_path)).delete("id % 7 = 0")
    expected = [number for number in range(50) if number % 7]
    loader, dataset = opened(str(tmp_path), device="cpu", batch_size=4)
    assert ids(loader) == expected
    dataset.set_epoch(0)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    other, _ = opened(str(tmp_path), batch_size=4)
    other.load_state_dict(loader.state_dict())
    assert ids(first) + ids(other) == expected


def test_rows_after_append_overwrite_delete_update_and_merge(tmp_path: Path) -> None:
    folder = str(tmp_path / "t")
    write_deltalake(folder, numbers(0, 20))
    write_deltalake(folder, numbers(20, 30), mode="append")
    write_deltalake(folder, numbers(100, 150), mode="overwrite")
    write_deltalake(folder, numbers(200, 210), mode="append")
    table = DeltaTable(folder)
    table.delete("id % 7 = 0")
    table.update(updates={"x": "-1.0"}, predicate="id < 110")
    source = pa.table({"id": [101, 500], "x": [9.0, 9.5]})
    (
        table.merge(source, predicate="t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    table.optimize.compact()
    for version in range(table.version() + 1):
        found = in_order(rows(folder, version=version))
        assert found == in_order(DeltaTable(folder, version=version).to_pyarrow_table().to_pylist())
    assert {"id": 500, "x": 9.5} in found
    assert len(opened(folder, batch_size=7)[0]) == -(-len(found) // 7)


def test_rows_of_a_checkpointed_log(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for first in range(0, 40, 10):
        write_deltalake(folder, numbers(first, first + 10), mode="append")
    DeltaTable(folder).create_checkpoint()
    write_deltalake(folder, numbers(40, 50), mode="append")
    assert in_order(rows(folder)) == in_order(by_deltalake(folder))


PARTITIONS = {
    "s": [".", "a/ b%+=&", "ü", None],
    "n": pa.array([1, -2, None, 3], pa.int32()),
    "day": [date(2024, 1, 1), None, date(1960, 2, 29), date(2024, 1, 1)],
    "ts": pa.array([datetime(2024, 1, 1, 2, 3, 4, 5, tzinfo=UTC), None] * 2, pa.timestamp("us", "UTC")),
    "plain": pa.array([datetime(2024, 1, 1, 2, 3, 4, 500_000), None] * 2, pa.timestamp("us")),
    "d": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal(0)], pa.decimal128(10, 2)),
    "b": [True, False, None, True],
    "f": [0.5, None, -2.0, 1.25],
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_values_of_partitions_have_their_types(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a b%+"
    table = pa.table({"id": range(4), "p": PARTITIONS[name]})
    write_deltalake(folder, table, partition_by=["p"])
    loader, dataset = opened(folder, output_format="arrow")
    assert dataset.schema.field("p").type == table.schema.field("p").type
    assert in_order([row for batch in loader for row in batch.to_pylist()]) == in_order(by_deltalake(folder))
    assert sum(item["records"] for item in dataset.partitions) == 4
    assert rows(folder, columns=["p"], filters=[("id", "==", 3)]) == [{"p": table["p"][3].as_py()}]


def test_an_empty_text_is_a_null_as_the_protocol_says(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1, 2], "p": ["", "x"]}), partition_by=["p"])
    assert in_order(rows(tmp_path)) == [{"id": 1, "p": None}, {"id": 2, "p": "x"}]
    assert rows(tmp_path, filters=[("p", "is null")], columns=["id"]) == [{"id": 1}]


def test_a_mapping_that_readers_need_not_know_does_not_apply(tmp_path: Path) -> None:
    settings = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    write_deltalake(tmp_path, pa.table({"id": [1]}), configuration=settings)
    assert "columnMapping" not in (DeltaTable(tmp_path).protocol().reader_features or ())
    assert rows(tmp_path) == by_deltalake(tmp_path) == [{"id": 1}]


def test_a_value_in_the_log_precedes_one_in_the_file(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "p": ["log"]}), partition_by=["p"])
    (path,) = live(tmp_path)
    pq.write_table(pa.table({"id": [1], "p": ["file"]}), tmp_path / path)
    size = (tmp_path / path).stat().st_size
    rewrite(tmp_path, lambda line: line.get("add", {}).update(size=size))
    assert rows(tmp_path) == [{"id": 1, "p": "log"}]


NESTED = pa.table(
    {
        "id": range(6),
        "st": [{"a": n, "b": {"c": str(n)}} for n in range(5)] + [None],
        "l": [[{"q": n}, None] for n in range(6)],
        "m": pa.array([[(str(n), {"v": n})] for n in range(6)], pa.map_(pa.string(), pa.struct({"v": pa.int64()}))),
        "p": ["x", "y", "x", "y", None, None],
    }
)


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_nested_columns_under_each_column_mapping(tmp_path: Path, mode: str) -> None:
    settings = None if mode == "none" else {"delta.columnMapping.mode": mode}
    write_deltalake(tmp_path, NESTED, partition_by=["p"], configuration=settings)
    found = in_order(rows(tmp_path))
    assert found == in_order(NESTED.to_pylist()) == in_order(by_deltalake(tmp_path))
    assert rows(tmp_path, columns=["st.a"], filters=[("p", "==", "y")]) == [{"st.a": 1}, {"st.a": 3}]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renamed_and_swapped_columns_keep_their_values(tmp_path: Path, mode: str) -> None:
    table = pa.table({"a": [1, 2], "b": [10, 20]})
    write_deltalake(tmp_path, table, configuration={"delta.columnMapping.mode": mode})
    (metadata,) = [line["metaData"] for line in actions(tmp_path) if "metaData" in line]
    swapped = metadata["schemaString"].replace('"name":"a"', '"name":"_"').replace('"name":"b"', '"name":"a"')
    commit(tmp_path, [{"metaData": {**metadata, "schemaString": swapped.replace('"name":"_"', '"name":"b"')}}])
    assert rows(tmp_path) == [{"b": 1, "a": 10}, {"b": 2, "a": 20}]
    assert rows(tmp_path, filters=[("a", ">", 15)]) == [{"b": 2, "a": 20}]
    assert rows(tmp_path, version=0) == table.to_pylist()


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_field_ids_of_files_count_only_where_the_mapping_says_so(tmp_path: Path, mode: str) -> None:
    settings = None if mode == "none" else {"delta.columnMapping.mode": mode}
    write_deltalake(tmp_path, pa.table({"a": [1, 2], "b": [10, 20]}), configuration=settings)
    (path,) = live(tmp_path)
    stored = pq.read_table(tmp_path / path)
    for ids_of_file in ((2, 1), (None, None)):
        fields = [
            field.with_metadata({} if number is None else {"PARQUET:field_id": str(number)})
            for field, number in zip(stored.schema, ids_of_file, strict=True)
        ]
        pq.write_table(stored.cast(pa.schema(fields)), tmp_path / path)
        size = (tmp_path / path).stat().st_size
        rewrite(tmp_path, lambda line, size=size: line.get("add", {}).update(size=size))
        if mode == "id" and None in ids_of_file:
            with pytest.raises(SchemaMismatchError, match="field ids"):
                rows(tmp_path)
            continue
        swapped = [{"a": 10, "b": 1}, {"a": 20, "b": 2}]
        assert rows(tmp_path) == (swapped if mode == "id" else [{"a": 1, "b": 10}, {"a": 2, "b": 20}])


def test_a_column_added_later_is_null_in_older_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "st": [{"a": 1}]}))
    wider = pa.table({"id": [2], "st": [{"a": 2, "b": 3}], "later": ["x"]})
    write_deltalake(tmp_path, wider, mode="append", schema_mode="merge")
    assert in_order(rows(tmp_path)) == in_order(by_deltalake(tmp_path)) == [
        {"id": 1, "st": {"a": 1, "b": None}, "later": None},
        {"id": 2, "st": {"a": 2, "b": 3}, "later": "x"},
    ]  # fmt: skip
    assert rows(tmp_path, version=0) == [{"id": 1, "st": {"a": 1}}]
    assert rows(tmp_path, filters=[("later", "is null")], columns=["id"]) == [{"id": 1}]


def test_widened_types_are_read_as_the_newest(tmp_path: Path) -> None:
    narrow = {"id": pa.array([1, None], pa.int32()), "f": pa.array([0.5, 1.5], pa.float32())}
    write_deltalake(tmp_path, pa.table(narrow))
    (metadata,) = [line["metaData"] for line in actions(tmp_path) if "metaData" in line]
    wide = metadata["schemaString"].replace('"integer"', '"long"').replace('"float"', '"double"')
    commit(tmp_path, [{"metaData": {**metadata, "schemaString": wide}}])
    assert rows(tmp_path) == [{"id": 1, "f": 0.5}, {"id": None, "f": 1.5}]
    assert opened(tmp_path)[1].schema.types == [pa.int64(), pa.float64()]
    narrower = metadata["schemaString"].replace('"integer"', '"short"')
    commit(tmp_path, [{"metaData": {**metadata, "schemaString": narrower}}])
    with pytest.raises(SchemaMismatchError, match="int32 in the file"):
        rows(tmp_path)


def test_an_empty_table_is_an_empty_loader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DeltaTable.create(tmp_path, pa.schema({"id": pa.int64()}))
    loader, dataset = opened(tmp_path)
    assert (ids(loader), len(loader), dataset.version) == ([], 0, 0)
    assert "empty" in caplog.text


def test_files_in_other_folders_are_read_where_they_are(tmp_path: Path) -> None:
    """As in a shallow clone."""
    write_deltalake(tmp_path / "base", numbers(0, 5))
    write_deltalake(tmp_path / "clone", numbers(5, 10))
    (path,) = live(tmp_path / "base")
    (add,) = live(tmp_path / "base").values()
    commit(tmp_path / "clone", [{"add": {**add, "path": (tmp_path / "base" / path).as_uri()}}])
    assert sorted(ids(opened(tmp_path / "clone")[0])) == list(range(10))


def test_a_file_without_statistics_is_counted_by_its_footer(tmp_path: Path) -> None:
    write_deltalake(tmp_path, numbers(0, 25))
    rewrite(tmp_path, lambda line: line.get("add", {}).pop("stats", None))
    loader, _ = opened(tmp_path, batch_size=10)
    assert len(loader) == 3
    assert ids(loader) == list(range(25))


def test_a_count_in_the_log_that_is_wrong_is_an_error(tmp_path: Path) -> None:
    write_deltalake(tmp_path, numbers(0, 25))
    rewrite(tmp_path, lambda line: line.get("add", {}).update(stats='{"numRecords": 24}'))
    with pytest.raises(FileReadError, match=r"has 25 rows.*24"):
        rows(tmp_path)


def test_a_column_of_an_unknown_type_is_an_error_only_where_it_is_wanted(tmp_path: Path) -> None:
    write_deltalake(tmp_path, numbers(0, 3))

    def variant(line: dict[str, Any]) -> None:
        if "metaData" in line:
            line["metaData"]["schemaString"] = line["metaData"]["schemaString"].replace('"double"', '"variant"')

    require(tmp_path, "variantType")
    rewrite(tmp_path, variant)
    with pytest.raises(UnsupportedTypeError, match=r"'x'.*variant.*columns=\['id'\]"):
        opened(tmp_path)
    assert rows(tmp_path, columns=["id"]) == [{"id": 0}, {"id": 1}, {"id": 2}]
