"""A table format added from outside the package is read as Iceberg's tables are."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.seams.log_table import LogTable, commit, data_file
from torch_dataloader_utils import (
    CheckpointMismatchError,
    FileReadError,
    FileSnapshot,
    OptionError,
    SnapshotCursor,
    SnapshotError,
    TableDataset,
    TableFile,
    TableSource,
    UnknownOptionError,
)

DELETED = [0, 3, *range(20, 30), 95]
LIVE = [number for number in range(100) if number not in DELETED] + list(range(100, 140))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Version 1: two files, 13 of whose 140 rows are deleted (a whole row group among them)."""
    files = data_file(tmp_path, "a.parquet", range(100), DELETED) | data_file(tmp_path, "b.parquet", range(100, 140))
    commit(tmp_path, 1, files)
    return tmp_path


def opened(folder: Path, version: int | None = None, **options: Any) -> tuple[Any, TableDataset]:
    options = {"batch_size": 8, "split_rows": 25} | options
    return TableDataset.create_dataloader(LogTable(folder, version), **options)


def ids_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def test_the_table_is_a_source(folder: Path) -> None:
    assert isinstance(LogTable(folder), TableSource)


def test_rows_come_in_order_without_those_deleted(folder: Path) -> None:
    loader, dataset = opened(folder)
    batches = list(loader)
    assert ids_of(batches) == LIVE
    assert [number for batch in batches for number in batch["x"].tolist()] == [number / 2 for number in LIVE]
    assert {day for batch in batches for day in batch["day"]} == {"a", "b"}
    assert len(loader) == len(batches) == -(-len(LIVE) // 8)
    assert dataset.schema.names == ["id", "x", "day"]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_and_workers_read_every_row_once(folder: Path, workers: dict[str, Any], shuffle: bool) -> None:
    ids = []
    for rank in range(3):
        loader, _ = opened(folder, num_ranks=3, rank=rank, shuffle=shuffle, **workers)
        ids += ids_of(loader)
    assert sorted(ids) == LIVE


@pytest.mark.parametrize("sharding", ["interleave", "contiguous", "strided"])
def test_all_ranks_have_equal_steps(folder: Path, sharding: str) -> None:
    loaders = [opened(folder, num_ranks=3, rank=r, even="pad", sharding=sharding, shuffle=True)[0] for r in range(3)]
    of_each = [list(loader) for loader in loaders]
    assert {len(batches) for batches in of_each} == {-(-len(LIVE) // 24)}
    real = [number for batches in of_each for batch in batches for number in batch["id"][batch["valid"]].tolist()]
    assert sorted(real) == LIVE


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_epoch_is_resumed_on_other_ranks_at_the_snapshot_of_the_state(folder: Path, taken: int) -> None:
    seen, states = [], []
    for rank in range(2):
        loader, _ = opened(folder, num_ranks=2, rank=rank, shuffle=True)
        batches = iter(loader)
        seen += ids_of(next(batches) for _ in range(taken))
        states.append(loader.state_dict())
    assert states[0]["source"] == {"end": 1, "start": None, "schema": None}
    commit(folder, 2, data_file(folder, "c.parquet", range(200, 230)))
    for rank in range(3):
        loader, dataset = opened(folder, num_ranks=3, rank=rank, shuffle=True)
        assert dataset._saved_cursor()["end"] == 2
        loader.load_state_dict(states[0])
        assert dataset._saved_cursor()["end"] == 1
        seen += ids_of(loader)
    assert sorted(seen) == LIVE


def test_a_state_of_another_snapshot_is_refused_where_the_options_pin_one(folder: Path) -> None:
    state = opened(folder)[0].state_dict()
    commit(folder, 2, data_file(folder, "c.parquet", range(200, 230)))
    loader, dataset = opened(folder, 2)
    with pytest.raises(CheckpointMismatchError, match="snapshot 1"):
        loader.load_state_dict(state)
    with pytest.raises(OptionError, match="version= was given"):
        dataset.advance()
    assert ids_of(loader) == list(range(200, 230))


def test_the_loader_moves_to_the_newest_snapshot_between_epochs(folder: Path) -> None:
    loader, dataset = opened(folder)
    assert not dataset.advance()
    batches = iter(loader)
    first = ids_of([next(batches)])
    log = LogTable(folder)._log(1)
    commit(folder, 2, log | data_file(folder, "c.parquet", range(200, 230), [5]))
    assert dataset.advance()
    assert first + ids_of(batches) == LIVE
    appended = [number for number in range(200, 230) if number != 205]
    assert ids_of(loader) == LIVE + appended
    commit(folder, 3, LogTable(folder)._log(2) | data_file(folder, "d.parquet", range(300, 310)))
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(300, 310))
    assert dataset._saved_cursor() == {"end": 3, "start": 2, "schema": None}


@pytest.mark.parametrize("taken", [0, 3])
def test_a_state_is_resumed_at_its_snapshot_after_a_call_to_advance(folder: Path, taken: int) -> None:
    loader, dataset = opened(folder)
    state = loader.state_dict()
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
        state = loader.state_dict()
    next(batches)
    commit(folder, 2, LogTable(folder)._log(1) | data_file(folder, "c.parquet", range(200, 230)))
    assert dataset.advance()
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert ids_of(loader) == LIVE[8 * taken :]
    assert ids_of(loader) == LIVE
    assert dataset.advance()
    assert ids_of(loader) == LIVE + list(range(200, 230))


def test_what_was_appended_is_not_read_where_rows_were_deleted_since(folder: Path) -> None:
    loader, dataset = opened(folder)
    commit(folder, 2, data_file(folder, "c.parquet", range(200, 230)))
    with pytest.raises(SnapshotError, match="deleted since"):
        dataset.advance(appended_only=True)
    assert ids_of(loader) == LIVE


class NoAppends(LogTable):
    """A table that cannot say what was appended."""

    def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
        return super().snapshot(None if cursor is None else replace(cursor, start=None), options)


def test_a_table_that_ignores_from_where_rows_were_appended_is_an_error(folder: Path) -> None:
    loader, dataset = TableDataset.create_dataloader(NoAppends(folder), batch_size=8)
    commit(folder, 2, data_file(folder, "c.parquet", range(200, 230)))
    with pytest.raises(SnapshotError, match=r"rows appended from 1 to 2.*got snapshot 2"):
        dataset.advance(appended_only=True)
    assert ids_of(loader) == LIVE


def test_a_copy_reads_its_snapshot_and_stays_there(folder: Path) -> None:
    _, dataset = opened(folder)
    copy = pickle.loads(pickle.dumps(dataset))
    commit(folder, 2, data_file(folder, "c.parquet", range(200, 230)))
    with pytest.raises(OptionError, match="copy"):
        copy.advance()
    assert ids_of(copy) == LIVE


def test_filters_and_columns_apply_to_rows_that_are_left(folder: Path) -> None:
    loader, _ = opened(folder, filters=[("id", ">=", 90), ("id", "<", 110)], columns=["id"], count_rows=True)
    assert len(loader) == 3
    assert ids_of(loader) == [number for number in LIVE if 90 <= number < 110]
    assert ids_of(opened(folder, filters=[("day", "==", "b")])[0]) == list(range(100, 140))


FILTERED: tuple[dict[str, Any], ...] = ({}, {"filters": [("id", ">=", 50)]})


def test_rows_have_the_same_numbers_whatever_a_filter_prunes(folder: Path) -> None:
    layouts = [opened(folder, **options)[1]._source.files[0].layout for options in FILTERED]
    every, pruned = ({(s.number, s.first_row, s.rows) for s in layout.segments} for layout in layouts)
    assert pruned == {segment for segment in every if segment[0] >= 5}


def test_a_column_that_no_file_has_yet_is_null(folder: Path) -> None:
    class Wider(LogTable):
        def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
            found = super().snapshot(cursor, options)
            assert found.schema is not None
            return replace(found, schema=found.schema.append(found.schema.field("x").with_name("later")))

    loader, _ = TableDataset.create_dataloader(Wider(folder), batch_size=200)
    (batch,) = loader
    assert batch["later"].isnan().all()


def test_nulls_that_only_deleted_rows_have_are_no_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1, None, 3])}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    assert rows_left(tmp_path, [TableFile("a.parquet", size, deleted=[1])]) == [1, 3]


def test_an_empty_table_is_an_empty_loader(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    commit(folder, 2, {})
    loader, _ = opened(folder)
    assert ids_of(loader) == []
    assert "empty" in caplog.text


def test_a_table_of_deleted_rows_alone_is_an_empty_loader(tmp_path: Path) -> None:
    commit(tmp_path, 1, data_file(tmp_path, "a.parquet", range(10), range(10)))
    loader, _ = opened(tmp_path)
    assert (ids_of(loader), len(loader)) == ([], 0)


def rows_left(folder: Path, files: Sequence[TableFile], form: str = "parquet", **options: Any) -> list[int]:
    """The column `id` of a table of these files."""
    snapshot = FileSnapshot("t", SnapshotCursor(1), str(folder), files, format=form)

    class One:
        pinned = None

        def newest(self, options: Any) -> SnapshotCursor:
            return snapshot.cursor

        def snapshot(self, cursor: SnapshotCursor | None, options: Any) -> FileSnapshot:
            return snapshot

    return ids_of(TableDataset.create_dataloader(One(), batch_size=7, **options)[0])


@given(st.data())
def test_any_rows_can_be_deleted(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("table")
    files, expected = [], []
    for number in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.integers(1, 40))
        deleted = data.draw(st.lists(st.integers(0, rows - 1)))
        ids = [1000 * number + row for row in range(rows)]
        (line,) = data_file(folder, f"{number}.parquet", ids, rows=data.draw(st.integers(1, 15))).values()
        files.append(TableFile(f"{number}.parquet", line["size"], deleted))
        expected += [value for row, value in enumerate(ids) if row not in deleted]
    assert rows_left(folder, files, split_rows=6) == expected


@pytest.mark.parametrize(("deleted", "row"), [([140], "140"), ([2, -1], "-1")])
def test_a_deleted_row_that_the_file_does_not_have_is_an_error(folder: Path, deleted: list[int], row: str) -> None:
    size = (folder / "b.parquet").stat().st_size
    with pytest.raises(FileReadError, match=rf"b\.parquet: the table deletes row {row}, but the file has 40 rows"):
        rows_left(folder, [TableFile("b.parquet", size, deleted)])


def test_rows_of_text_cannot_be_deleted_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    file = TableFile("a.csv", 7)
    assert rows_left(tmp_path, [file], form="csv") == [1, 2]
    with pytest.raises(OptionError, match="row counts"):
        rows_left(tmp_path, [replace(file, deleted=[0])], form="csv")


def test_files_may_name_their_partition_columns_in_any_order(folder: Path) -> None:
    sizes = {name: (folder / name).stat().st_size for name in ("a.parquet", "b.parquet")}
    partitions = ({"day": "1", "hour": "6"}, {"hour": "7", "day": "2"})
    files = [TableFile(*item, partition=values) for item, values in zip(sizes.items(), partitions, strict=True)]
    assert rows_left(folder, files) == list(range(140))


def test_a_log_that_cannot_be_right_is_an_error(folder: Path) -> None:
    size = (folder / "b.parquet").stat().st_size
    file = TableFile("b.parquet", size)
    with pytest.raises(FileReadError, match="2 times"):
        rows_left(folder, [file, file])
    with pytest.raises(FileReadError, match=r"b\.parquet"):
        rows_left(folder, [TableFile("b.parquet", size - 1)])
    with pytest.raises(FileReadError, match=r"gone\.parquet"):
        rows_left(folder, [TableFile("gone.parquet", 100)])
    with pytest.raises(OptionError, match="partition columns"):
        rows_left(folder, [file, TableFile("a.parquet", 1, partition={"day": "1"})])
    with pytest.raises(OptionError, match="schema="):
        rows_left(folder, [])


@pytest.mark.parametrize("name", ["format", "partitioning", "schema", "manifest"])
def test_options_of_files_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(UnknownOptionError, match=name):
        opened(folder, **{name: None})


def test_what_is_no_table_is_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match="TableSource"):
        TableDataset.create_dataloader(str(folder))  # type: ignore[arg-type]
    with pytest.raises(UnknownOptionError, match="create_dataloader"):
        TableDataset()
    with pytest.raises(SnapshotError, match="version 7"):
        opened(folder, 7)


@pytest.mark.parametrize("source", [{}, {"end": 1}, 5])
def test_a_damaged_place_in_the_history_is_a_mismatch(folder: Path, source: object) -> None:
    loader, _ = opened(folder)
    with pytest.raises(CheckpointMismatchError, match="the state is damaged"):
        loader.load_state_dict(loader.state_dict() | {"source": source})


def test_a_state_that_is_refused_moves_to_no_other_snapshot(folder: Path) -> None:
    other, _ = opened(folder, shuffle=True)
    state = other.state_dict()
    commit(folder, 2, data_file(folder, "c.parquet", range(140, 150)))
    loader, dataset = opened(folder)
    next(iter(loader))
    with pytest.raises(CheckpointMismatchError, match="shuffle: True"):
        loader.load_state_dict(state)
    assert dataset._saved_cursor()["end"] == 2
    assert ids_of(loader) == list(range(140, 150))
