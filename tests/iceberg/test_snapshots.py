"""Which snapshot is meant: by id, branch, tag, time; what was appended; and what is no longer there."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from tests.iceberg.helpers import append_files, data_file, names_of
from torch_dataloader_utils import Appended, Iceberg
from torch_dataloader_utils.errors import FileReadError, OptionError, SnapshotError
from torch_dataloader_utils.iceberg.tables import IcebergRead, SnapshotChoice, plan_table
from torch_dataloader_utils.options.times import milliseconds

FIRST, SECOND, THIRD = 5166297512385563613, 6926071201604378463, 6134254114693200625  # of the table "refs"
OVERWRITE, LAST = 8371003708631259510, 2242582891304747886


def planned(path, **choice):
    return plan_table(path, IcebergRead(snapshot=SnapshotChoice(**choice)))


@pytest.fixture
def refs(spark_tables):
    return spark_tables("refs")


@pytest.fixture
def metadata(refs):
    return json.loads(Path(refs).read_text())


def changed(tmp_path, metadata):
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps(metadata))
    return path


def test_a_tag_and_a_snapshot_are_read_with_their_schema_and_a_branch_with_the_tables(refs):
    assert planned(refs, ref="t1").table.schema.names == ["id", "s"]
    assert planned(refs, snapshot_id=SECOND).table.schema.names == ["id", "s"]
    assert planned(refs, ref="br").table.schema.names == ["id", "s2"]
    assert planned(refs).table.schema.names == ["id", "s2"]


def test_what_is_told_of_a_snapshot(refs):
    tag = planned(refs, ref="t1").snapshot
    assert (tag.snapshot_id, tag.schema_id, tag.ref, tag.operation) == (FIRST, 0, "t1", "append")
    head = planned(refs, ref="main").snapshot
    assert (head.snapshot_id, head.schema_id, head.operation) == (LAST, 1, "append")
    assert planned(refs).snapshot.snapshot_id == LAST
    assert planned(refs, appended=Appended(FIRST, until=THIRD)).snapshot.start_snapshot_id == FIRST


def test_as_of_is_what_was_current_then(refs, metadata):
    for entry in metadata["snapshot-log"]:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=entry["timestamp-ms"])
        same = [entry["timestamp-ms"], moment, moment.astimezone(timezone(timedelta(hours=5))), moment.isoformat()]
        assert {planned(refs, as_of=at).snapshot.snapshot_id for at in same} == {entry["snapshot-id"]}
    log = metadata["snapshot-log"]
    before = planned(refs, as_of=log[2]["timestamp-ms"] - 1).snapshot
    assert before.snapshot_id == log[1]["snapshot-id"]
    assert planned(refs, as_of="2999-01-01T00:00:00Z").snapshot.snapshot_id == LAST
    with pytest.raises(SnapshotError, match="no snapshot yet; available are 2242582891304747886"):
        planned(refs, as_of=log[0]["timestamp-ms"] - 1)


def test_a_log_may_be_missing(metadata, tmp_path):
    stamps = {one["snapshot-id"]: one["timestamp-ms"] for one in metadata["snapshots"]}
    metadata.pop("snapshot-log")
    path = changed(tmp_path, metadata)
    assert planned(path, as_of=stamps[THIRD]).snapshot.snapshot_id == THIRD


def test_times_in_milliseconds():
    assert milliseconds("1970-01-01T00:00:01.001999Z") == 1001
    assert milliseconds(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1000
    assert milliseconds(datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)) == 253402300799999


@pytest.mark.parametrize(
    "choice",
    [
        {"snapshot_id": 1, "ref": "main"},
        {"ref": "main", "as_of": 5},
        {"snapshot_id": 1, "appended": Appended(2)},
        {"ref": "main", "appended": Appended(until=2)},
        {"snapshot_id": "1"},
        {"snapshot_id": True},
        {"ref": ""},
        {"as_of": datetime(2025, 1, 1)},
        {"as_of": "2025-01-01"},
        {"as_of": "yesterday"},
        {"as_of": 1.5},
        {"as_of": True},
    ],
)
def test_choices_that_cannot_work(choice):
    with pytest.raises(OptionError, match=next(iter(choice))):
        Iceberg("db.t", **choice)


def test_what_is_not_there_is_named(refs):
    with pytest.raises(
        SnapshotError, match=r"snapshot 77 is not in the table, or no longer: available are 2242582891304747886"
    ):
        planned(refs, snapshot_id=77)
    with pytest.raises(SnapshotError, match=r"ref='nobody'.*\['br', 'main', 't1'\]"):
        planned(refs, ref="nobody")
    with pytest.raises(SnapshotError, match="snapshot 77 is not in the table"):
        planned(refs, appended=Appended(until=77))
    with pytest.raises(SnapshotError, match="after=77: is not an ancestor of snapshot"):
        planned(refs, appended=Appended(77, until=THIRD))


def test_the_first_snapshot_that_is_no_append_is_named(refs):
    with pytest.raises(SnapshotError, match=f"snapshot {OVERWRITE} .* is not an append but 'overwrite'"):
        planned(refs, appended=Appended(THIRD))
    with pytest.raises(SnapshotError, match=str(OVERWRITE)):
        planned(refs, appended=Appended(THIRD, until=OVERWRITE))
    assert len(planned(refs, appended=Appended(OVERWRITE)).files) == 2  # what came after it


def test_an_expired_start_is_known_to_its_successor(metadata, tmp_path):
    metadata["snapshots"] = [one for one in metadata["snapshots"] if one["snapshot-id"] != FIRST]
    metadata["refs"].pop("t1")
    path = changed(tmp_path, metadata)
    assert len(planned(path, appended=Appended(FIRST, until=THIRD)).files) == 1
    with pytest.raises(SnapshotError, match=f"snapshot {FIRST} is not in the table"):
        planned(path, snapshot_id=FIRST)


def test_a_branch_whose_snapshot_has_expired(metadata, tmp_path):
    metadata["snapshots"] = [one for one in metadata["snapshots"] if one["snapshot-id"] != SECOND]
    with pytest.raises(SnapshotError, match=f"ref='br': snapshot {SECOND} is not in the table"):
        planned(changed(tmp_path, metadata), ref="br")


def test_appends_are_the_files_of_each_commit_however_manifests_were_merged(catalog):
    properties = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "true"}
    table = catalog.create_table("ns.t", Schema(NestedField(1, "x", LongType())), properties=properties)
    ids = []
    for name in "abcd":
        with table.transaction() as change, change.update_snapshot().merge_append() as snapshot:
            snapshot.append_data_file(data_file(table, name, {"x": [1]}))
        ids.append(table.current_snapshot().snapshot_id)
    assert len(plan_table(table, IcebergRead()).files) == 4
    for start in range(4):
        for end in range(start, 4):
            found = planned(table, appended=Appended(ids[start], until=ids[end]))
            assert names_of(found) == list("abcd"[start + 1 : end + 1])
    assert names_of(planned(table, appended=Appended(until=ids[1]))) == ["a", "b"]
    assert names_of(planned(table, appended=Appended(ids[1]))) == ["c", "d"]


def test_deletes_do_not_touch_what_was_appended_before_them(spark_tables):
    path = spark_tables("v2_mor_rowgroups")
    found = planned(path, appended=Appended(840818509150887898, until=4144275730541011507))
    assert [(one.file.record_count, one.file.deletes) for one in found.files] == [(300, ())]


def test_a_table_without_a_snapshot_has_no_files(spark_tables):
    path = spark_tables("empty_no_snapshot")
    for choice in ({}, {"ref": "main"}):
        found = planned(path, **choice)
        assert found.files == ()
        assert found.snapshot is None
        assert len(found.table.schema) > 0
    with pytest.raises(SnapshotError, match="it has no snapshots"):
        planned(path, snapshot_id=1)


def test_only_the_snapshot_whose_manifest_list_is_gone_fails(metadata, tmp_path):
    (gone,) = [one for one in metadata["snapshots"] if one["snapshot-id"] == SECOND]
    gone["manifest-list"] = str(tmp_path / "gone.avro")
    path = changed(tmp_path, metadata)
    with pytest.raises(FileReadError, match=rf"gone\.avro.*manifest list of snapshot {SECOND}"):
        planned(path, snapshot_id=SECOND)
    assert len(planned(path).files) == 5


def test_a_snapshot_stays_while_the_table_goes_on(catalog):
    table = catalog.create_table("ns.t", Schema(NestedField(1, "x", LongType())))
    append_files(table, [data_file(table, "a", {"x": [1]})])
    pinned = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.rename_column("x", "y")
    append_files(table, [data_file(table, "b", {"y": [1]})])
    old = planned(table, snapshot_id=pinned)
    assert (names_of(old), old.table.schema.names) == (["a"], ["x"])
    # Filters mean the columns of the schema that is read.
    filtered = plan_table(table, IcebergRead(snapshot=SnapshotChoice(snapshot_id=pinned), filters="x = 5"))
    assert (filtered.files, filtered.pruned.files_before) == ((), 1)
