"""Delta(table, follow=True): each pass reads what was appended since the pass before it, by the log's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.by_hand import commit, delete_rows, entries, live, require
from tests.delta.reading import ids, opened
from torch_dataloader_utils import Follow
from torch_dataloader_utils.errors import FileReadError, OptionError, SnapshotError

NOW = {"wait": 0}


def append(folder: Path, first: int, last: int, **options: Any) -> None:
    write_deltalake(str(folder), table(first, last), mode="append", **options)


def table(first: int, last: int) -> pa.Table:
    days = [f"2026-01-{1 + row % 3:02d}" for row in range(first, last)]
    return pa.table({"id": range(first, last), "day": days})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(tmp_path, 0, 10, partition_by=["day"])
    return tmp_path


def following(folder: Path, **follow: Any) -> Any:
    return opened(folder, follow=Follow(**{**NOW, **follow}), batch_size=4)[0]


def test_each_pass_reads_what_was_appended_since_the_last(folder: Path) -> None:
    loader = following(folder)
    assert sorted(ids(loader)) == list(range(10))
    append(folder, 10, 20)
    append(folder, 20, 30)
    assert sorted(ids(loader)) == list(range(10, 30))
    assert "version 2, what was appended after version 0" in str(loader.describe(1))
    assert ids(loader) == []
    state = json.loads(json.dumps(loader.state_dict()))
    append(folder, 30, 40)
    again = following(folder)
    again.load_state_dict(state)
    assert sorted(ids(again)) == list(range(30, 40))


def test_compactions_are_no_appends_and_hide_none(folder: Path) -> None:
    loader = following(folder)
    ids(loader)
    append(folder, 10, 20)
    append(folder, 20, 30)
    DeltaTable(str(folder)).optimize.compact()
    append(folder, 30, 33)
    state = loader.state_dict()
    assert sorted(ids(loader)) == list(range(10, 33))
    DeltaTable(str(folder)).optimize.compact()
    assert ids(loader) == []
    again = opened(folder, follow=Follow(wait=0), filters=[("id", "<", 12), ("day", "==", "2026-01-02")])[0]
    again.load_state_dict(state, strict=False)
    assert ids(again) == [10]


@pytest.mark.parametrize("kind", ["overwrite", "delete", "vector"])
def test_other_changes_are_errors_or_left_out(folder: Path, kind: str) -> None:
    if kind == "vector":
        require(folder, "deletionVectors")
    strict, lax = following(folder), following(folder, non_appends="ignore")
    ids(strict)
    ids(lax)
    if kind != "vector":  # deltalake does not write such tables
        append(folder, 10, 20)
    if kind == "overwrite":
        write_deltalake(str(folder), table(50, 60), mode="overwrite")
    elif kind == "delete":
        DeltaTable(str(folder)).delete("id = 12")
    else:
        delete_rows(folder, {next(iter(live(folder))): [0]})
    with pytest.raises(SnapshotError, match=r"version \d is not an append but '(WRITE|DELETE)'"):
        ids(strict)
    expected = [] if kind == "vector" else list(range(10, 20))
    assert sorted(ids(lax)) == expected  # also rows that were deleted later
    if kind != "vector":
        append(folder, 20, 22)
        assert sorted(ids(lax)) == [20, 21]


def test_a_log_that_was_cleaned_up_is_an_error(folder: Path) -> None:
    loader = following(folder)
    ids(loader)
    append(folder, 10, 20)
    append(folder, 20, 30)
    DeltaTable(str(folder)).create_checkpoint()
    entries(folder)[1].unlink()
    with pytest.raises(SnapshotError, match="the log of version 1 was cleaned up"):
        ids(loader)


def test_a_damaged_commit_is_an_error(folder: Path) -> None:
    loader = following(folder)
    ids(loader)
    append(folder, 10, 20)
    DeltaTable(str(folder)).create_checkpoint()
    entries(folder)[1].write_text('{"add": {"dataChange": true}}\n')
    with pytest.raises(FileReadError, match="not a file of a Delta log"):
        ids(loader)


def test_after_and_replay(folder: Path) -> None:
    append(folder, 10, 110)
    append(folder, 110, 120)
    assert sorted(ids(following(folder, after=1))) == list(range(110, 120))
    with pytest.raises(SnapshotError, match="expected a version of at most 2"):
        following(folder, after=9)
    loader = following(folder, replay=1)
    ids(loader)
    append(folder, 120, 140)
    found = ids(loader)
    assert sorted(row for row in found if row >= 120) == list(range(120, 140))
    assert 5 < len({row for row in found if row < 120}) == len(found) - 20 < 60


def test_advance_can_read_appended_rows_alone(folder: Path) -> None:
    loader, dataset = opened(folder)
    append(folder, 10, 20)
    assert dataset.advance(appended_only=True)
    assert sorted(ids(loader)) == list(range(10, 20))
    DeltaTable(str(folder)).delete("id = 12")
    with pytest.raises(SnapshotError, match="is not an append"):
        dataset.advance(appended_only=True)
    assert dataset.advance(appended_only=True, non_appends="ignore")
    assert ids(loader) == []
    commit(folder, [])


def test_options_that_exclude_each_other(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"follow=True: version= was given"):
        opened(folder, follow=True, version=0)
    with pytest.raises(OptionError, match="a Delta table has no settle"):
        opened(folder, follow=Follow(settle=3))
