"""Files(path, follow=True): each pass is a round of files that no round before it had."""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tests.following.folders import NOW, add, ids_of, opened, table
from torch_dataloader_utils import Files, Follow, Hive, StructuredDataset, UnreadFilesEvent, combine, stream
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    DataNotFoundError,
    FileChangedError,
    OptionError,
    SchemaMismatchError,
)


@pytest.mark.parametrize(
    "worker", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "worker_mode": "processes"}]
)
def test_each_pass_reads_the_files_that_were_added_since_the_last(tmp_path: Path, worker: dict[str, Any]) -> None:
    add(tmp_path, "h=2/a.parquet", range(10))
    loader = opened(tmp_path, **worker)
    assert ids_of(loader) == list(range(10))
    add(tmp_path, "h=10/a.parquet", range(20, 30))
    add(tmp_path, "h=9/a.parquet", range(10, 20))
    add(tmp_path, "h=1/late.parquet", range(30, 33))  # before all that was read
    found = ids_of(loader)
    assert sorted(found) == list(range(10, 33))
    assert worker["num_workers"] or found == [30, 31, 32, *range(10, 30)]
    assert ids_of(loader) == []
    add(tmp_path, "h=2/b.parquet", [40])
    assert ids_of(loader) == [40]
    assert "round 3: 1 new file, after 4 files before it" in str(loader.describe(3))
    loader.dataset.close()


def test_a_pass_waits_for_files(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", range(4))
    loader = opened(tmp_path, {"wait": None, "poll": 0.05})
    assert ids_of(loader) == [0, 1, 2, 3]
    later = threading.Timer(0.3, add, (tmp_path, "b.parquet", [4]))
    later.start()
    assert ids_of(loader) == [4]
    later.join()


def test_a_loader_waits_for_its_first_file(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no complete data file"):
        opened(tmp_path)
    with pytest.raises(DataNotFoundError, match="there is no such folder to follow"):
        opened(tmp_path / "none", {"wait": None})
    later = threading.Timer(0.2, add, (tmp_path, "b.parquet", [4]))
    later.start()
    assert ids_of(opened(tmp_path, {"wait": None, "poll": 0.05})) == [4]
    later.join()


# ---- complete files only


def test_files_are_read_once_they_have_settled(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", [1], age=100)
    add(tmp_path, "b.parquet", [2])
    loader = opened(tmp_path, {"settle": 60})
    assert ids_of(loader) == [1]
    assert ids_of(loader) == []
    os.utime(tmp_path / "b.parquet", (time.time() - 61,) * 2)
    assert ids_of(loader) == [2]


def test_a_file_without_its_footer_is_left_alone_until_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, "a.parquet", [1])
    whole = add(tmp_path, "b.parquet", [2]).read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-20])
    loader = opened(tmp_path)
    assert ids_of(loader) == [1]
    assert ids_of(loader) == []
    assert [record.levelname for record in caplog.records if "should be complete" in record.getMessage()] == ["WARNING"]
    (tmp_path / "b.parquet").write_bytes(whole)
    assert ids_of(loader) == [2]


@pytest.mark.parametrize(
    "name",
    ["x.parquet.tmp", "x.parquet.temp", "x.parquet.part", "x.parquet._COPYING_", "x.parquet.inprogress.77.a",
     ".x.parquet", "_temporary/0/x.parquet", "x.parquet.filepart", ".x.parquet.crc", "_delta/1.parquet",
     "x.parquet.crdownload"],
)  # fmt: skip
def test_names_of_unfinished_files(tmp_path: Path, name: str) -> None:
    add(tmp_path, "a.parquet", [1])
    add(tmp_path, "b.parquet", [2]).rename((tmp_path / name) if "/" not in name else tmp_path / "c")
    if "/" in name:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / "c").rename(tmp_path / name)
    loader = opened(tmp_path)
    assert ids_of(loader) == [1]
    (tmp_path / name).rename(tmp_path / "z.parquet")
    assert ids_of(loader) == [2]


def test_markers_lie_in_the_folder_or_above(tmp_path: Path) -> None:
    for day in (1, 2):
        add(tmp_path, f"d={day}/h=1/a.parquet", [day])
    (tmp_path / "d=1/h=1/_SUCCESS").touch()
    loader = opened(tmp_path, {"marker": "_SUCCESS"})
    assert ids_of(loader) == [1]
    (tmp_path / "d=2/_SUCCESS").touch()
    assert ids_of(loader) == [2]
    add(tmp_path, "d=3/h=1/a.parquet", [3])
    assert ids_of(loader) == []
    (tmp_path / "_SUCCESS").touch()
    assert ids_of(loader) == [3]


# ---- changed, deleted, late


def test_changed_files_are_errors_or_left_unread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, "a.parquet", [1])
    strict, lax = opened(tmp_path), opened(tmp_path, {"changed": "ignore"})
    assert ids_of(strict) == ids_of(lax) == [1]
    events: list[Any] = []
    lax.on_event(lambda event: events.append(event) if isinstance(event, UnreadFilesEvent) else None)
    add(tmp_path, "a.parquet", [1, 2])
    with pytest.raises(FileChangedError, match=r"a\.parquet in .* was read .* changed since.*; it was [0-9a-f]{8}\)"):
        ids_of(strict)
    assert ids_of(lax) == ids_of(lax) == []
    assert sum("are not read again: a.parquet" in record.getMessage() for record in caplog.records) == 1
    assert events == [UnreadFilesEvent("changed", ("a.parquet",), 1)]
    add(tmp_path, "b.parquet", [3])
    assert ids_of(lax) == [3]


def test_deleted_files(tmp_path: Path) -> None:
    first = add(tmp_path, "a.parquet", [1])
    loader = opened(tmp_path)
    assert ids_of(loader) == [1]
    first.unlink()  # after reading: retention
    second, third = add(tmp_path, "b.parquet", [2]), add(tmp_path, "c.parquet", [3])
    strict, lax = opened(tmp_path), opened(tmp_path, on_error="skip")
    states = [strict.state_dict(), lax.state_dict()]
    second.unlink()  # between decision and reading
    for again, state in zip((opened(tmp_path), opened(tmp_path, on_error="skip")), states, strict=True):
        if again.dataset._options.read.on_error == "raise":
            with pytest.raises(FileChangedError, match="must stay as they are until they are read"):
                again.load_state_dict(state)
        else:
            again.load_state_dict(state, strict=False)
            assert ids_of(again) == [3]
    assert ids_of(loader) == [3]
    del third


def test_files_of_forgotten_folders_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for hour in range(4):
        add(tmp_path, f"h={hour}/a.parquet", [hour])
    loader = opened(tmp_path, {"forget": 2})
    assert ids_of(loader) == [0, 1, 2, 3]
    events: list[Any] = []
    loader.on_event(lambda event: events.append(event) if isinstance(event, UnreadFilesEvent) else None)
    loader.preview(1)  # by another loader of the same folder
    add(tmp_path, "h=1/late.parquet", [10])
    add(tmp_path, "h=2/in_time.parquet", [20])
    assert ids_of(loader) == [20]
    assert ids_of(loader) == []
    told = [record.getMessage() for record in caplog.records if "no longer looked at" in record.getMessage()]
    (only,) = told
    assert "h=1 (1)" in only
    assert events == [UnreadFilesEvent("late", ("h=1",), 1)]
    state = json.loads(json.dumps(loader.state_dict()))
    again = opened(tmp_path, {"forget": 2})
    again.load_state_dict(state)
    assert ids_of(again) == []


# ---- what a round is


def test_a_round_has_as_many_files_and_bytes_as_it_may(tmp_path: Path) -> None:
    for number in range(5):
        add(tmp_path, f"{number}.parquet", [number])
    loader = opened(tmp_path, {"max_files": 2})
    assert [ids_of(loader) for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    size = (tmp_path / "0.parquet").stat().st_size
    loader = opened(tmp_path, {"max_bytes": 3 * size})
    assert [ids_of(loader) for _ in range(3)] == [[0, 1, 2], [3, 4], []]
    loader = opened(tmp_path, {"max_bytes": 1})
    assert [ids_of(loader) for _ in range(2)] == [[0], [1]]


@pytest.mark.parametrize(
    ("after", "first"),
    [("h=9", [10]), ("h=9/", [10]), ("h=09", [10]), ("h=9/a.parquet", [11, 10]), ("h=10", []), ("h=2/b", [9, 11, 10])],
)
def test_the_first_round_begins_after_a_folder_or_name(tmp_path: Path, after: str, first: list[int]) -> None:
    for hour in (2, 9, 10):
        add(tmp_path, f"h={hour}/a.parquet", [hour])
    add(tmp_path, "h=9/b.parquet", [11])
    loader = opened(tmp_path, {"after": after})
    assert ids_of(loader) == first
    add(tmp_path, "h=1/late.parquet", [1])
    add(tmp_path, "h=11/a.parquet", [12])
    assert ids_of(loader) == [12]


def test_older_rows_are_read_again_beside_new_ones(tmp_path: Path) -> None:
    for number in range(8):
        add(tmp_path, f"h={number}/a.parquet", range(100 * number, 100 * number + 100))
    loader = opened(tmp_path, {"replay": 0.5})
    assert sorted(ids_of(loader)) == list(range(800))
    add(tmp_path, "h=8/a.parquet", range(800, 900))
    (tmp_path / "h=0/a.parquet").unlink()  # is not drawn
    state = json.loads(json.dumps(loader.state_dict()))
    ids = ids_of(loader)
    assert [row for row in ids if row >= 800] == list(range(800, 900))
    old = [row for row in ids if row < 800]
    assert 20 < len(set(old)) == len(old) < 80
    assert min(old) >= 100
    assert "rows of 1 file" in str(loader.describe(1))
    again = opened(tmp_path, {"replay": 0.5})
    again.load_state_dict(state)
    assert ids_of(again) == ids


def test_several_entries_and_globs(tmp_path: Path) -> None:
    add(tmp_path, "one/h=1/a.parquet", [1])
    add(tmp_path, "two/h=1/a.parquet", [2])  # the same name below another entry
    paths = [str(tmp_path / "one"), str(tmp_path / "two/*/*.parquet")]
    loader = stream(Files(paths, follow=Follow(**NOW)), batch_size=4)
    assert sorted(ids_of(loader)) == [1, 2]
    add(tmp_path, "two/h=2/a.parquet", [3])
    add(tmp_path, "two/a.parquet", [9])  # the glob does not match it
    assert ids_of(loader) == [3]


def test_the_first_files_decide_about_columns(tmp_path: Path) -> None:
    add(tmp_path, "h=1/a.parquet", [1])
    loader = opened(tmp_path)
    assert [sorted(batch) for batch in loader] == [["h", "id"]]
    folder = tmp_path / "h=x"
    folder.mkdir()
    pq.write_table(pa.table({"id": [2], "more": [1.0]}), folder / "b.parquet")
    with pytest.raises(SchemaMismatchError, match="the folder h=x has no value for a column of type int32"):
        list(loader)
    folder.rename(tmp_path / "h=2")
    assert [sorted(batch) for batch in loader] == [["h", "id"]]
    add(tmp_path, "plain.parquet", [3])
    with pytest.raises(SchemaMismatchError, match=r"plain\.parquet lies in folders with the keys \[\]"):
        list(loader)
    typed = opened(tmp_path / "h=2", source={"partitioning": Hive(schema={"h": "string"})}, output_format="arrow")
    assert [batch.schema.field("h").type for batch in typed] == [pa.string()]


def test_text_files_are_read_with_the_types_of_the_first(tmp_path: Path) -> None:
    pacsv.write_csv(table([1, 2]), tmp_path / "1.csv")
    loader = opened(tmp_path)
    assert ids_of(loader) == [1, 2]
    for values in ([3], []):
        pacsv.write_csv(table(values), tmp_path / f"of {len(values)}.csv")
        assert ids_of(loader) == values


def test_a_round_without_a_file_keeps_its_columns(tmp_path: Path) -> None:
    add(tmp_path, "h=1/a.parquet", [1])
    loader = opened(tmp_path, filters=[("h", ">", 0)], count_rows=True, even="pad")
    ids_of(loader)
    assert ids_of(loader) == []
    state = json.loads(json.dumps(loader.state_dict()))
    again = opened(tmp_path, filters=[("h", ">", 0)], count_rows=True, even="pad")
    again.load_state_dict(state)
    assert again.dataset.schema.names == ["id", "h"]
    add(tmp_path, "h=0/b.parquet", [2])  # the filter rules it out: the pass goes on with what is new after it
    assert ids_of(again) == []
    add(tmp_path, "h=2/c.parquet", [3])
    assert set(ids_of(again)) == {3}  # padded


# ---- states and ranks


def test_a_restart_after_any_step_repeats_and_loses_nothing(tmp_path: Path) -> None:
    add(tmp_path, "h=0/a.parquet", range(100))
    read: list[int] = []
    loader = opened(tmp_path, shuffle=True, batch_size=7)
    for number in range(30):
        state = json.loads(json.dumps(loader.state_dict()))
        loader = opened(tmp_path, shuffle=True, batch_size=7)
        loader.load_state_dict(state)
        for batch in loader:
            read += batch["id"].tolist()
            break
        if number < 6:
            add(tmp_path, f"h={number}/b.parquet", [100 + number])
    assert sorted(read) == list(range(106))


def test_ranks_agree_by_a_folder_of_rounds(tmp_path: Path) -> None:
    data, rounds = tmp_path / "data", tmp_path / "rounds"
    add(data, "a.parquet", range(10))

    def ranks(number: int) -> list[Any]:
        follow = {"rounds": str(rounds)}
        return [opened(data, follow, num_ranks=number, rank=rank, even="pad", batch_size=2) for rank in range(number)]

    def real(loader: Any) -> list[int]:
        return [row for batch in loader for row in batch["id"][batch["valid"]].tolist()]

    two = ranks(2)
    assert sorted(real(two[0]) + real(two[1])) == list(range(10))
    assert real(two[0]) == []  # it decides that the pass is empty
    add(data, "b.parquet", range(10, 20))
    assert real(two[1]) == []  # for this rank, too
    first = real(two[0])
    add(data, "c.parquet", range(20, 30))
    assert sorted(first + real(two[1])) == list(range(10, 20))
    states = [loader.state_dict() for loader in two]
    assert [path.name for path in sorted(rounds.iterdir())] == [f"{number:08d}.json" for number in range(3)]
    three = ranks(3)  # after a restart, on other ranks
    for loader in three:
        loader.load_state_dict(states[0])
    assert sorted(row for loader in three for row in real(loader)) == list(range(20, 30))
    with pytest.raises(CheckpointMismatchError, match=r"round 0 was decided after 0 file\(s\), but this loader has"):
        opened(data, {"rounds": str(rounds), "after": "a.parquet"})


def test_ranks_that_cannot_agree_are_refused(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", [1])
    with pytest.raises(OptionError, match="all ranks must read the same files"):
        opened(tmp_path, num_ranks=2, rank=1)
    with pytest.raises(OptionError, match="memory:// cannot create a file only if there is none"):
        opened(tmp_path, {"rounds": "memory://rounds"})
    with pytest.raises(OptionError, match="lies in the folder that is followed, so its files would be read as data"):
        opened(tmp_path, {"rounds": str(tmp_path / "rounds")})
    assert ids_of(opened(tmp_path, {"rounds": str(tmp_path / "_rounds")})) == [1]


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", [1])
    with pytest.raises(OptionError, match="manifest= with follow"):
        opened(tmp_path, source={"manifest": str(tmp_path / "manifest")})
    with pytest.raises(OptionError, match="follow=True with steps_per_epoch=3"):
        opened(tmp_path, steps_per_epoch=3)
    with pytest.raises(OptionError, match="a folder has no non_appends"):
        opened(tmp_path, {"non_appends": "ignore"})
    with pytest.raises(OptionError, match="of a folder, after= is the name of a folder or file"):
        opened(tmp_path, {"after": 3})
    with pytest.raises(OptionError, match="after= is the name of a folder or file below the path"):
        opened(tmp_path, {"after": f"{tmp_path}/h=1"})
    with pytest.raises(OptionError, match="is a file, to which no files are added"):
        opened(tmp_path / "a.parquet")
    with pytest.raises(OptionError, match="leave the call out"):
        opened(tmp_path).dataset.advance()
    with pytest.raises(OptionError, match="has follow=True"):
        combine({"live": opened(tmp_path)})
    with pytest.raises(OptionError, match="has follow=True"):
        combine({"live": Files(str(tmp_path), follow=True)})


def test_other_forms_of_the_loader(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", range(6))
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), follow=Follow(**NOW), batch_size=4)
    assert isinstance(dataset, StructuredDataset)
    assert len(loader) == 2
    assert loader.head(3)["id"].tolist() == [0, 1, 2]
    assert loader.preview(2).table["id"].to_pylist() == [0, 1]
    assert ids_of(loader.replace(batch_size=3)) == ids_of(loader)
    with pytest.raises(OptionError, match="this dataset is a copy"):
        next(iter(pickle.loads(pickle.dumps(dataset))))


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "a.parquet", [1])
    loader = opened(tmp_path)
    state = loader.state_dict()
    rng = np.random.default_rng(0)
    for name in ("files", "seen", "schema", "end"):
        for value in ("", "x", None, 3.5, bytes(rng.integers(0, 256, 40, np.uint8)).decode("latin1")):
            if name == "seen" and value == "":
                continue
            broken = {**state, "source": {**state["source"], name: value}}
            with pytest.raises(CheckpointMismatchError):
                loader.load_state_dict(broken)
    plain = {name: value for name, value in state["source"].items() if name != "files"}
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict({**state, "source": plain})
    loader.load_state_dict(state)
    assert ids_of(loader) == [1]


def test_nothing_is_logged_above_info_for_what_is_normal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, "a.parquet", [1])
    (tmp_path / "notes.md").write_text("no data")
    loader = opened(tmp_path, source={"format": "parquet"})
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            ids_of(loader)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
