"""The version is resolved once: by number, by time or as the newest; a state holds it."""

import os
import pickle
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.by_hand import delete_rows, entries, live
from tests.delta.reading import ids, opened
from torch_dataloader_utils import (
    CheckpointMismatchError,
    DataNotFoundError,
    FileReadError,
    OptionError,
    SnapshotError,
    TableSource,
)
from torch_dataloader_utils.delta.tables import DeltaSource
from torch_dataloader_utils.options import Delta

HOUR = 3600
NOON = int(datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp())


def append(folder: Path, first: int, last: int) -> None:
    write_deltalake(folder, pa.table({"id": range(first, last)}), mode="append")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0 to 2, of noon and an hour and two later, with 10, 20 and 30 rows."""
    for first in (0, 10, 20):
        append(tmp_path, first, first + 10)
    for hour, entry in enumerate(entries(tmp_path)):
        os.utime(entry, (NOON + hour * HOUR,) * 2)
    return tmp_path


def test_the_table_is_a_source(table: Path) -> None:
    assert isinstance(DeltaSource(Delta(str(table))), TableSource)


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({}, 2),
        ({"version": 0}, 0),
        ({"version": 1}, 1),
        ({"as_of": NOON * 1000}, 0),
        ({"as_of": (NOON + HOUR) * 1000 - 1}, 0),
        ({"as_of": "2024-01-01T13:00:00Z"}, 1),
        ({"as_of": datetime(2024, 1, 1, 13, 59, tzinfo=UTC)}, 1),
        ({"as_of": "2030-01-01T00:00:00+02:00"}, 2),
    ],
    ids=str,
)
def test_the_version_that_was_asked_for_is_read(table: Path, options: dict[str, Any], version: int) -> None:
    loader, dataset = opened(table, **options)
    assert dataset.version == version
    assert sorted(ids(loader)) == list(range(10 * (version + 1)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"version": 3}, SnapshotError, "has no version 3; its newest is 2"),
        ({"version": -1}, OptionError, "at least 0"),
        ({"version": True}, OptionError, "version=True"),
        ({"version": 1, "as_of": 5}, OptionError, "expected one of the two"),
        ({"as_of": "2024-01-01T11:59:59Z"}, SnapshotError, "is before version 0, the oldest"),
        ({"as_of": "2024-01-01T12:00:00"}, OptionError, "has no time zone"),
        ({"as_of": 10**18}, OptionError, "between the years"),
        ({"as_of": "yesterday"}, OptionError, "expected ISO form"),
    ],
    ids=str,
)
def test_a_version_that_is_not_there_is_an_error(
    table: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        opened(table, **options)


def test_a_table_that_deltalake_opened_is_read_at_its_version(table: Path) -> None:
    loaded = DeltaTable(table, version=1)
    loader, dataset = opened(loaded)
    assert sorted(ids(loader)) == list(range(20))
    assert opened(loaded, version=2)[1].version == 2
    assert dataset.advance()
    assert dataset.version == 2


def test_commits_change_nothing_until_the_loader_moves(table: Path) -> None:
    loader, dataset = opened(table, batch_size=8)
    batches = iter(loader)
    first = ids([next(batches)])
    append(table, 30, 40)
    assert dataset.advance()
    assert sorted(first + ids(batches)) == list(range(30))
    assert (dataset.version, sorted(ids(loader))) == (3, list(range(40)))
    assert not dataset.advance()
    append(table, 40, 50)
    copy = pickle.loads(pickle.dumps(dataset))
    assert sorted(ids(copy)) == list(range(40))
    with pytest.raises(OptionError, match="copy"):
        copy.advance()
    assert dataset.advance(appended_only=True)
    assert ids(loader) == list(range(40, 50))


@pytest.mark.parametrize("options", [{"version": 2}, {"as_of": "2030-01-01T00:00:00Z"}], ids=str)
def test_a_pinned_table_stays(table: Path, options: dict[str, Any]) -> None:
    _, dataset = opened(table, **options)
    append(table, 30, 40)
    with pytest.raises(OptionError, match="pins the version"):
        dataset.advance()


def test_a_state_brings_its_version_back(table: Path) -> None:
    loader, _ = opened(table, batch_size=8)
    batches = iter(loader)
    first = ids([next(batches)])
    state = loader.state_dict()
    assert state["source"] == {"end": 2, "start": None, "schema": None}
    delete_rows(table, {next(iter(live(table))): [1, 2]})
    append(table, 30, 40)
    resumed, dataset = opened(table, batch_size=8)
    assert dataset.version == 4
    resumed.load_state_dict(state)
    assert dataset.version == 2
    assert sorted(first + ids(resumed)) == list(range(30))
    with pytest.raises(CheckpointMismatchError, match="version 2"):
        opened(table, batch_size=8, version=4)[0].load_state_dict(state)


def test_files_that_a_vacuum_removed_are_named(table: Path) -> None:
    state = opened(table)[0].state_dict()
    DeltaTable(table).delete("id < 15")
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert sorted(ids(opened(table)[0])) == list(range(15, 30))
    for options in ({}, {"split_rows": 5}):
        with pytest.raises(FileReadError, match=r"\.parquet.*vacuum"):
            ids(opened(table, version=1, **options)[0])
    loader, _ = opened(table)
    loader.load_state_dict(state)
    with pytest.raises(FileReadError, match=r"\.parquet.*vacuum"):
        ids(loader)


def test_a_version_whose_log_was_cleaned_up_is_an_error(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for entry in entries(table)[:2]:
        entry.unlink()
    with pytest.raises(SnapshotError, match=r"version 1 cannot be read, unlike version 2"):
        opened(table, version=1)
    assert opened(table)[1].version == 2
    with pytest.raises(SnapshotError, match="is before version 2"):
        opened(table, as_of=(NOON + HOUR) * 1000)


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataNotFoundError, match=r"no Delta table here: .*holds _delta_log.*StructuredDataset"):
            opened(path)


def test_the_version_is_described(table: Path) -> None:
    shown = opened(table, version=1)[1].describe()
    assert (shown.snapshot, shown.follow, shown.replay) == ("version 1", "", "")
