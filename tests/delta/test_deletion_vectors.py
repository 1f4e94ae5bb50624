"""Rows that deletion vectors delete are not read, whatever the form of the vector."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.delta.by_hand import delete_rows, live, require, rewrite
from tests.delta.reading import by_deltalake, ids, in_order, opened, rows
from torch_dataloader_utils import FileReadError, Subsets

VECTORS = {"delta.enableDeletionVectors": "true"}


def written(folder: Path, counts: list[int], group: int = 1_000_000) -> list[str]:
    """A table with a file of each of these numbers of rows, in row groups of `group`; returns the files' paths."""
    first = 0
    for count in counts:
        table = pa.table({"id": pa.array(range(first, first + count), pa.int64())})
        write_deltalake(folder, table, mode="append", configuration=VECTORS)
        first += count
    for version, (path, count) in enumerate(zip(live(folder), counts, strict=True)):
        stored = pq.read_table(folder / path)
        pq.write_table(stored, folder / path, row_group_size=group)
        size = (folder / path).stat().st_size
        rewrite(folder, lambda line, size=size: line.get("add", {}).update(size=size), version)
        assert len(stored) == count
    return list(live(folder))


@pytest.mark.parametrize("kind", ["u", "p", "i"])
@pytest.mark.parametrize("group", [7, 1_000_000])
def test_deleted_rows_are_not_read_or_counted(tmp_path: Path, kind: str, group: int) -> None:
    first, second = written(tmp_path, [50, 30], group)
    delete_rows(tmp_path, {first: [0, 3, *range(7, 14), 49]}, kind)
    delete_rows(tmp_path, {second: [29]}, kind)
    gone = {0, 3, *range(7, 14), 49, 79}
    left = [number for number in range(80) if number not in gone]
    options: dict[str, Any]
    for options in ({}, {"split_rows": 9}):
        loader, dataset = opened(tmp_path, batch_size=8, **options)
        assert len(loader) == -(-len(left) // 8)
        assert ids(loader) == left
        assert sum(item["records"] for item in dataset.partitions) == 80
    assert in_order(rows(tmp_path)) == in_order(by_deltalake(tmp_path))
    assert ids(opened(tmp_path, version=1)[0]) == list(range(80))
    assert ids(opened(tmp_path, filters=[("id", "<", 6)])[0]) == [1, 2, 4, 5]


def test_a_second_vector_of_a_file_replaces_the_first(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [10])
    delete_rows(tmp_path, {path: [1]})
    delete_rows(tmp_path, {path: [1, 5]})
    assert ids(opened(tmp_path)[0]) == [0, 2, 3, 4, 6, 7, 8, 9]
    delete_rows(tmp_path, {path: range(10)})
    loader, _ = opened(tmp_path)
    assert (ids(loader), len(loader)) == ([], 0)


def test_vectors_of_partitions_with_strange_names_under_a_column_mapping(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    table = pa.table({"id": range(8), "p": ["ü/%25", "a=b c"] * 4})
    for mode in ("none", "name"):
        where = folder / mode
        write_deltalake(where, table, partition_by=["p"], configuration={"delta.columnMapping.mode": mode})
        require(where, "columnMapping", "deletionVectors")
        delete_rows(where, {path: [0, 2] for path in live(where)})
        assert in_order(rows(where)) == in_order(by_deltalake(where))
        assert len(rows(where)) == 4


@settings(max_examples=10)
@given(st.data())
def test_any_rows_can_be_deleted(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("table")
    counts = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=2))
    paths = written(folder, counts, data.draw(st.integers(1, 15)))
    starts = np.cumsum([0, *counts])
    gone: set[int] = set()
    for place, path in enumerate(paths):
        deleted = data.draw(st.lists(st.integers(0, counts[place] - 1), unique=True))
        if deleted:
            delete_rows(folder, {path: deleted}, data.draw(st.sampled_from("upi")))
        gone |= {int(starts[place]) + row for row in deleted}
    loader, _ = opened(folder, batch_size=4, split_rows=data.draw(st.sampled_from([None, 6])))
    left = [number for number in range(sum(counts)) if number not in gone]
    assert len(loader) == -(-len(left) // 4)
    assert ids(loader) == left


def test_nulls_that_only_deleted_rows_have_are_no_error(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1, None, 3])}), configuration=VECTORS)
    (path,) = live(tmp_path)
    delete_rows(tmp_path, {path: [1]})
    for options in ({}, {"split_rows": 1}):
        assert ids(opened(tmp_path, **options)[0]) == [1, 3]


def test_deleted_rows_leave_the_others_in_their_subsets(tmp_path: Path) -> None:
    paths = written(tmp_path, [40, 40], 11)
    sides = Subsets({"train": 0.5, "val": 0.5})
    before = {name: ids(opened(tmp_path, subset=sides[name])[0]) for name in sides}
    assert sorted(before["train"] + before["val"]) == list(range(80))
    delete_rows(tmp_path, {paths[0]: [0, 1, 2, 20]})
    write_deltalake(tmp_path, pa.table({"id": range(80, 90)}), mode="append")
    gone = {0, 1, 2, 20}
    for name, numbers in before.items():
        after = ids(opened(tmp_path, subset=sides[name])[0])
        assert [number for number in after if number < 80] == [number for number in numbers if number not in gone]


def test_a_damaged_or_missing_vector_is_an_error(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [10])
    delete_rows(tmp_path, {path: [1]})
    (vector,) = tmp_path.glob("*.bin")
    whole = vector.read_bytes()
    vector.write_bytes(whole[:12] + bytes([whole[12] ^ 1]) + whole[13:])
    with pytest.raises(FileReadError, match="its log at version 1"):
        opened(tmp_path)
    vector.unlink()
    with pytest.raises(FileReadError, match="its log at version 1"):
        opened(tmp_path)


def test_a_vector_for_rows_that_the_file_does_not_have_is_an_error(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [10])
    delete_rows(tmp_path, {path: [1, 10]})
    with pytest.raises(FileReadError, match="deletes row 10, but the file has 10 rows"):
        opened(tmp_path)


def test_a_file_listed_twice_is_an_error(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [10])
    delete_rows(tmp_path, {path: [1]})

    def forget(line: dict[str, Any]) -> None:
        line.pop("remove", None)

    rewrite(tmp_path, forget, 1)
    with pytest.raises(FileReadError, match="lists this file 2 times"):
        opened(tmp_path)
