"""Moving to newer snapshots between epochs: what is read then, on every rank, and where a checkpoint finds it again."""

import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

from tests import forkrun
from tests.iceberg.conftest import sql_config
from tests.iceberg.helpers import compact
from torch_dataloader_utils import Appended, IcebergDataset
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    DataNotFoundError,
    FileReadError,
    OptionError,
    SnapshotError,
)

SCHEMA = pa.schema({"id": pa.int64(), "x": pa.int64()})
DRIVERS = [
    pytest.param({"num_workers": 0}, id="here"),
    pytest.param({"num_workers": 2}, id="threads"),
    pytest.param({"num_workers": 2, "device": "cpu"}, id="ahead"),
    pytest.param({"num_workers": 2, "worker_mode": "processes"}, id="processes"),
]


def rows(begin: int, end: int) -> pa.Table:
    return pa.table({"id": range(begin, end), "x": range(2 * begin, 2 * end, 2)}, schema=SCHEMA)


def ids_of(loader: Any) -> list[int]:
    found = []
    for batch in loader:
        assert (batch["x"] == 2 * batch["id"]).all()
        found += batch["id"].tolist()
    return sorted(found)


def open_table(table: Any, **options: Any) -> tuple[Any, IcebergDataset]:
    return IcebergDataset.create_dataloader(table, **{"num_ranks": 1, "rank": 0, "batch_size": 8, **options})


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A table "ns.t" of the rows 0 to 99."""
    made = catalog.create_table("ns.t", schema=SCHEMA)
    made.append(rows(0, 100))
    return made


def config_of(folder: Path) -> dict[str, str]:
    return {"name": "test", **sql_config(folder)}


def current(table: Table) -> int:
    return table.refresh().current_snapshot().snapshot_id


# ------------------------------------------------------------------------------------------------------ which rows


@pytest.mark.parametrize("worker", DRIVERS)
def test_what_was_committed_is_read_from_the_next_epoch(table: Table, tmp_path: Path, worker: dict[str, Any]) -> None:
    loader, dataset = open_table("ns.t", catalog_config=config_of(tmp_path), shuffle=True, **worker)
    assert not dataset.advance()
    table.append(rows(100, 130))
    table.delete("id < 20")
    assert ids_of(loader) == list(range(100))
    assert dataset.advance()
    assert dataset.snapshot.snapshot_id == current(table)
    assert len(loader) == 14
    assert dataset.shard_size() == sum(part["records"] for part in dataset.partitions) == 110
    dataset.set_epoch(1)
    assert ids_of(loader) == list(range(20, 130))
    assert not dataset.advance()
    assert ids_of(loader) == list(range(20, 130))
    dataset.close()


@pytest.mark.parametrize("worker", DRIVERS)
def test_within_a_pass_it_applies_to_the_next_one(table: Table, worker: dict[str, Any]) -> None:
    loader, dataset = open_table(table, **worker)
    old = current(table)
    batches = iter(loader)
    first = next(batches)
    table.append(rows(100, 130))
    assert dataset.advance()
    assert (len(loader), dataset.snapshot.snapshot_id) == (13, old)
    assert not dataset.advance()  # it is on its way there
    assert ids_of([first, *batches]) == list(range(100))
    assert (len(loader), dataset.snapshot.snapshot_id) == (17, current(table))
    assert ids_of(loader) == list(range(130))
    dataset.close()


def test_a_pass_that_was_left_half_way_is_followed_by_the_new_rows(table: Table) -> None:
    loader, dataset = open_table(table)
    batches = iter(loader)
    next(batches)
    table.append(rows(100, 130))
    assert dataset.advance()
    assert ids_of(loader) == list(range(130))


def test_only_what_was_appended(table: Table) -> None:
    loader, dataset = open_table(table)
    assert not dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(100))
    for begin, end in ((100, 130), (130, 170)):
        table.append(rows(begin, begin + 10))
        table.append(rows(begin + 10, end))
        assert dataset.advance(appended_only=True)
        assert ids_of(loader) == list(range(begin, end))
        assert dataset.snapshot.start_snapshot_id is not None
        assert not dataset.advance(appended_only=True)
        assert ids_of(loader) == list(range(begin, end))
    assert not dataset.advance()  # there is no newer one, and all rows are read again
    assert ids_of(loader) == list(range(170))


def test_appended_rows_are_found_across_compactions(table: Table) -> None:
    loader, dataset = open_table(table)
    table.append(rows(100, 110))
    compact(table)
    table.append(rows(110, 130))
    table.append(rows(130, 140))
    compact(table)
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(100, 140))
    assert ids_of(open_table(table)[0]) == list(range(140))
    table.append(rows(140, 150))
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(140, 150))


def test_a_compaction_appends_nothing(table: Table) -> None:
    loader, dataset = open_table(table)
    compacted = compact(table)
    assert dataset.advance(appended_only=True)
    assert (ids_of(loader), dataset.snapshot.snapshot_id) == ([], compacted)
    table.append(rows(100, 110))
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(100, 110))


def test_a_state_in_the_middle_of_appended_rows_that_were_compacted_since(table: Table) -> None:
    loader, dataset = open_table(table)
    table.append(rows(100, 140))
    compact(table)
    dataset.advance(appended_only=True)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    compact(table)
    again, _ = open_table(table)
    again.load_state_dict(state)
    assert ids_of([*first, *again]) == list(range(100, 140))


def test_appended_files_that_were_removed_after_a_compaction_are_named(table: Table) -> None:
    loader, dataset = open_table(table)
    table.append(rows(100, 110))
    (newest,) = {task.file.file_path for task in table.scan("id >= 100").plan_files()}
    compact(table)
    Path(newest.removeprefix("file://")).unlink()
    dataset.advance(appended_only=True)
    with pytest.raises(FileReadError, match=Path(newest).name):
        list(loader)
    assert ids_of(open_table(table)[0]) == list(range(110))


def test_appends_that_may_have_expired_are_an_error(table: Table, catalog: Catalog) -> None:
    _, dataset = open_table(table)
    table.append(rows(100, 110))
    gone, compacted = current(table), compact(table)
    table.append(rows(110, 120))
    with catalog.load_table("ns.t").maintenance.expire_snapshots() as expire:
        expire.by_id(gone)
    with pytest.raises(SnapshotError, match=f"is not an ancestor of .* goes back to {compacted} .*may have expired"):
        dataset.advance(appended_only=True)


def test_what_is_no_append_is_named_and_nothing_changes(table: Table) -> None:
    loader, dataset = open_table(table)
    table.append(rows(100, 130))
    table.delete("id < 20")
    deleting = current(table)
    table.append(rows(130, 140))
    compact(table)
    with pytest.raises(SnapshotError, match=f"snapshot {deleting} .* is not an append but '(delete|overwrite)'"):
        dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(100))
    assert dataset.advance()
    assert ids_of(loader) == list(range(20, 140))


def test_from_nothing_to_the_first_rows(catalog: Catalog) -> None:
    table = catalog.create_table("ns.t", schema=SCHEMA)
    loader, dataset = open_table(table)
    assert (ids_of(loader), dataset.snapshot, dataset.advance()) == ([], None, False)
    table.append(rows(0, 10))
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(10))
    table.append(rows(10, 20))
    assert dataset.advance(appended_only=True)
    assert ids_of(loader) == list(range(10, 20))


def test_new_columns_come_along(table: Table) -> None:
    loader, dataset = open_table(table)
    with table.update_schema() as change:
        change.add_column("y", LongType())
    assert not dataset.advance()
    table.append(rows(100, 104).append_column("y", pa.array([7] * 4)))
    assert {*next(iter(loader))} == {"id", "x"}
    assert dataset.advance(appended_only=True)
    (batch,) = loader
    assert batch["y"].tolist() == [7] * 4
    assert dataset.schema.names == ["id", "x", "y"]


def test_a_branch_moves_on_its_own(table: Table) -> None:
    table.manage_snapshots().create_branch(current(table), "side").commit()
    loader, dataset = open_table(table, ref="side")
    table.append(rows(100, 130))
    assert not dataset.advance()
    table.append(rows(200, 210), branch="side")
    assert dataset.advance()
    assert ids_of(loader) == [*range(100), *range(200, 210)]
    assert dataset.snapshot.ref == "side"


def test_filters_and_counts_stay(table: Table) -> None:
    loader, dataset = open_table(table, filters="id >= 90", count_rows=True, even="drop")
    assert len(loader) == 1
    table.append(rows(100, 130))
    assert dataset.advance()
    assert len(loader) == 5
    assert ids_of(loader) == list(range(90, 130))


def test_a_start_that_was_given_stays(table: Table) -> None:
    first = current(table)
    table.append(rows(100, 110))
    loader, dataset = open_table(table, appended=Appended(first))
    table.append(rows(110, 120))
    assert dataset.advance()
    assert ids_of(loader) == list(range(100, 120))


def test_the_folder_of_a_table(table: Table) -> None:
    loader, dataset = open_table(table.location())
    table.append(rows(100, 130))
    assert dataset.advance()
    assert ids_of(loader) == list(range(130))


@pytest.mark.parametrize("name", ["snapshot_id", "until", "as_of"])
def test_a_snapshot_that_the_user_pinned_stays(table: Table, name: str) -> None:
    value = "2999-01-01T00:00:00Z" if name == "as_of" else current(table)
    pinned = {"appended": Appended(until=value)} if name == "until" else {name: value}
    loader, dataset = open_table(table, **pinned)
    with pytest.raises(OptionError, match=f"{name}= was given"):
        dataset.advance()
    cursor = dataset._saved_cursor()
    table.append(rows(100, 130))
    dataset._restore_source({**cursor, "end": current(table)})
    assert ids_of(loader) == list(range(100))


def test_a_table_that_was_dropped(table: Table, catalog: Catalog) -> None:
    loader, dataset = open_table(table)
    catalog.drop_table("ns.t")
    with pytest.raises(DataNotFoundError, match=r"ns\.t"):
        dataset.advance()
    assert ids_of(loader) == list(range(100))


# ----------------------------------------------------------------------------------------------- copies and checkpoints


def test_a_copy_has_what_it_was_copied_with(table: Table) -> None:
    _, dataset = open_table(table)
    table.append(rows(100, 130))
    dataset.advance()
    copy = pickle.loads(pickle.dumps(dataset))
    assert ids_of(copy) == list(range(130))
    with pytest.raises(OptionError, match="copy"):
        copy.advance()
    copy._restore_source(dataset._saved_cursor())
    assert copy._saved_cursor() == dataset._saved_cursor()


def test_a_cursor_leads_a_new_dataset_to_the_same_rows(table: Table) -> None:
    made, cursors = [], []
    for appended_only in (False, True):
        _, dataset = open_table(table)
        table.append(rows(0, 10))
        dataset.advance(appended_only)
        made.append(dataset)
        cursors.append(json.loads(json.dumps(dataset._saved_cursor())))
    with table.update_schema() as change:
        change.rename_column("x", "renamed")
    table.delete("id < 100")
    loader, dataset = open_table(table)
    for one, cursor in zip([*made, made[0]], [*cursors, cursors[0]], strict=True):
        dataset._restore_source(cursor)
        assert dataset._saved_cursor() == cursor
        assert dataset.snapshot == one.snapshot
        assert dataset.schema == one.schema
        assert dataset._source.origin == one._source.origin
        assert ids_of(loader) == ids_of(one)
    assert dataset.advance()
    assert list(loader) == []


@pytest.mark.parametrize("appended_only", [False, True])
def test_a_state_leads_a_new_loader_to_its_snapshot_and_place(table: Table, appended_only: bool) -> None:
    loader, dataset = open_table(table, shuffle=True)
    table.append(rows(100, 200))
    dataset.advance(appended_only)
    dataset.set_epoch(3)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    table.append(rows(200, 300))
    assert dataset.advance()
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batch["id"].tolist() for batch in batches]
    again, other = open_table(table.refresh(), shuffle=True)
    again.load_state_dict(state)
    assert len(again) == (13 if appended_only else 25)
    assert other.advance()  # from the next epoch on
    assert [batch["id"].tolist() for batch in again] == rest
    assert dataset.snapshot == other.snapshot
    assert ids_of(again) == ids_of(loader) == list(range(300))


def test_a_state_of_a_snapshot_that_is_pinned_otherwise(table: Table) -> None:
    loader, _ = open_table(table, snapshot_id=current(table))
    table.append(rows(100, 200))
    other, _ = open_table(table)
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict(other.state_dict())


def test_the_cursor_of_a_live_pass_is_what_it_reads(table: Table) -> None:
    loader, dataset = open_table(table)
    batches = iter(loader)
    next(batches)
    before = dataset._saved_cursor()
    table.append(rows(100, 130))
    dataset.advance()
    assert dataset._saved_cursor() == before
    list(batches)
    assert dataset._saved_cursor() == {"start": None, "end": current(table), "schema": 0}


def test_a_cursor_to_an_expired_snapshot_names_it(table: Table, catalog: Catalog) -> None:
    _, old = open_table(table)
    gone = current(table)
    table.append(rows(100, 130))
    with catalog.load_table("ns.t").maintenance.expire_snapshots() as expire:
        expire.by_id(gone)
    loader, dataset = open_table(table.refresh())
    with pytest.raises(SnapshotError, match=str(gone)):
        dataset._restore_source(old._saved_cursor())
    assert ids_of(loader) == list(range(130))
    with pytest.raises(SnapshotError, match=str(gone)):  # whether rows were only appended, nobody knows any more
        old.advance(appended_only=True)
    assert old.advance()
    assert ids_of(old) == list(range(130))


# ---------------------------------------------------------------------------------------------------------- many ranks


@pytest.mark.slow
def test_all_ranks_move_to_what_rank_0_sees(table: Table, tmp_path: Path) -> None:
    """Rank 1 commits before it asks: it still reads what rank 0 found, and they go through the epochs together."""
    del table
    script = str(Path(__file__).parent / "service_jobs.py")
    subprocess.run(
        [*forkrun.command(), script, "advance", json.dumps(config_of(tmp_path)), str(tmp_path)], check=True, timeout=180
    )
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(3):
        of_each = [rank["epochs"][epoch] for rank in ranks]
        assert len({(one["snapshot"], one["steps"], one["newer"]) for one in of_each}) == 1
        ids = sorted(row for one in of_each for row in one["ids"])
        assert ids == list(range(len(ids)))
        assert len(ids) >= 100
    assert [one["error"] for one in ranks] == ["DataNotFoundError"] * 2  # the one that rank 0 met


def test_a_device_is_kept_when_the_data_move_on(table: Table) -> None:
    """Memory on a GPU is recycled by stream: a new stream for each snapshot would leave that of the old one unused."""
    loader, dataset = open_table(table, device="cpu")
    assert ids_of(loader) == list(range(100))
    before = dataset._passes.target
    table.append(rows(100, 120))
    assert dataset.advance()
    assert ids_of(loader) == list(range(120))
    assert dataset._passes.target is before
