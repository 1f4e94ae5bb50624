"""Reading manifests of all versions, what entries inherit, and which deletes apply to which file."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, NestedField

from tests.iceberg.conftest import HERE
from tests.iceberg.helpers import append_files, data_file, numbers_table
from tests.iceberg.relocate import latest_metadata, relocate
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import DamagedFileError, FileReadError
from torch_dataloader_utils.iceberg.delete_index import delete_index
from torch_dataloader_utils.iceberg.manifests import Entry, Manifest, read_manifest, read_manifest_list
from torch_dataloader_utils.iceberg.tables import IcebergRead, plan_table

ADDED, EXISTING, DELETED = 1, 0, 2


# -------------------------------------------------------------------------------------------------- reading manifests


def entry(status, rows, *, sequence_number=None, snapshot_id=None, first_row_id=None, name="f"):
    file = {
        "content": 0,
        "file_path": f"/t/{name}.parquet",
        "file_format": "PARQUET",
        "partition": {},
        "record_count": rows,
        "file_size_in_bytes": 10,
        "first_row_id": first_row_id,
    }
    return {"status": status, "snapshot_id": snapshot_id, "sequence_number": sequence_number, "data_file": file}


def optional(name, kind, number):
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def required(name, kind, number):
    return {"name": name, "type": kind, "field-id": number}


FILE = [
    required("content", "int", 134),
    required("file_path", "string", 100),
    required("file_format", "string", 101),
    required("partition", {"type": "record", "name": "r102", "fields": []}, 102),
    required("record_count", "long", 103),
    required("file_size_in_bytes", "long", 104),
    optional("first_row_id", "long", 142),
]
ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        required("status", "int", 0),
        optional("snapshot_id", "long", 1),
        optional("sequence_number", "long", 3),
        required("data_file", {"type": "record", "name": "r2", "fields": FILE}, 2),
    ],
}


def without_ids(schema):
    """An Avro schema as writers of old made it: without the ids of Iceberg's fields."""
    if isinstance(schema, dict):
        return {key: without_ids(value) for key, value in schema.items() if not key.endswith("-id")}
    return [without_ids(item) for item in schema] if isinstance(schema, list) else schema


def avro(schema, records) -> bytes:
    return avro_of("deflate", records, schema)


def avro_of(codec, records, schema=ENTRY) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec)
    return out.getvalue()


def encoded(number) -> bytes:
    """A long as Avro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def manifest(**more) -> Manifest:
    record = ManifestFile.from_args(_table_format_version=3, partition_spec_id=0)
    defaults = {"path": "/t/m.avro", "spec_id": 0, "deletes": False, "sequence_number": 5, "snapshot_id": 9}
    return Manifest(**(defaults | {"first_row_id": None, "record": record} | more))


@pytest.mark.parametrize("schema", [ENTRY, without_ids(ENTRY)], ids=["by id", "by name"])
def test_what_entries_inherit(schema):
    records = [
        entry(ADDED, 10, name="a"),
        entry(EXISTING, 20, sequence_number=2, snapshot_id=3, name="b"),
        entry(DELETED, 30, sequence_number=2, snapshot_id=3, name="c"),
        entry(ADDED, 40, sequence_number=4, first_row_id=7, name="d"),
        entry(ADDED, 50, name="e"),
    ]
    found = list(read_manifest(avro(schema, records), manifest(first_row_id=1000)))
    assert [one.file.file_path[3] for one in found] == ["a", "b", "d", "e"]
    assert [one.sequence_number for one in found] == [5, 2, 4, 5]
    assert [one.snapshot_id for one in found] == [9, 3, 9, 9]
    assert [one.added for one in found] == [True, False, True, True]
    # Those without a number follow one another; neither deleted ones nor those that have one count.
    assert [one.first_row_id for one in found] == [1000, 1010, 7, 1030]


@pytest.mark.parametrize("length", [-1, 2**31, 2**62, -(2**63)])
def test_a_length_beyond_the_end_of_a_manifest_is_an_error(length):
    # In a process of its own, which another reader would crash.
    whole = avro_of("null", [entry(ADDED, 10, name="a")])
    damaged = whole.replace(b"\x18/t/a.parquet", encoded(length) + b"/t/a.parquet")
    assert damaged != whole
    code = "import sys; from tests.iceberg.test_manifests import manifest, read_manifest\n"
    code += f"try: list(read_manifest({damaged!r}, manifest()))\nexcept (EOFError, ValueError): sys.exit(7)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 7


@pytest.mark.parametrize("deletes", [True, False])
def test_a_manifest_whose_files_are_not_what_its_list_says_is_an_error(deletes):
    record = entry(ADDED, 10, name="a")
    record["data_file"]["content"] = 0 if deletes else 1
    listed = "a data file, but .* delete files" if deletes else "a delete file, but .* data files"
    with pytest.raises(ValueError, match=f"/t/a.parquet, {listed}"):
        list(read_manifest(avro(ENTRY, [record]), manifest(deletes=deletes)))


def test_without_row_ids_of_the_manifest_there_are_none():
    data = avro(ENTRY, [entry(ADDED, 10), entry(ADDED, 10, first_row_id=5)])
    assert [one.first_row_id for one in read_manifest(data, manifest())] == [None, None]


LIST_V1 = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        required("manifest_path", "string", 500),
        required("manifest_length", "long", 501),
        required("partition_spec_id", "int", 502),
        optional("added_snapshot_id", "long", 503),
        optional("added_data_files_count", "int", 504),
    ],
}


@pytest.mark.parametrize("schema", [LIST_V1, without_ids(LIST_V1)], ids=["by id", "by name"])
def test_a_list_of_version_one_has_neither_content_nor_counts(schema):
    (found,) = read_manifest_list(
        avro(schema, [{"manifest_path": "/t/m.avro", "manifest_length": 5, "partition_spec_id": 3}])
    )
    assert (found.path, found.spec_id, found.deletes, found.sequence_number) == ("/t/m.avro", 3, False, 0)
    assert (found.snapshot_id, found.first_row_id, found.record.added_files_count) == (None, None, None)


def test_a_list_of_version_three_tells_row_ids(spark_tables):
    metadata = json.loads(Path(spark_tables("v3_dv_lineage")).read_text())
    found = read_manifest_list(Path(metadata["snapshots"][-1]["manifest-list"]).read_bytes())
    assert sorted(one.first_row_id for one in found if not one.deletes) == [0, 300, 400, 450, 451]
    assert {one.first_row_id for one in found if one.deletes} == {None}


# -------------------------------------------------------------------------------------------------- tables of version 1


@pytest.fixture
def old_table(tmp_path):
    """The metadata of a table of version 1, as a dict, and its folder."""
    path = Path(relocate(latest_metadata(HERE / "db" / "v1_table"), HERE, tmp_path))
    return json.loads(path.read_text()), path


def files_of(path):
    return [
        (one.file.table_path, one.file.constants, one.file.record_count)
        for one in plan_table(path, IcebergRead()).files
    ]


def test_manifests_listed_inline(old_table):
    metadata, path = old_table
    expected = files_of(path)
    for snapshot in metadata["snapshots"]:
        listed = read_manifest_list(Path(snapshot.pop("manifest-list")).read_bytes())
        snapshot["manifests"] = [one.path for one in listed]
    path.write_text(json.dumps(metadata))
    assert files_of(path) == expected
    assert len(expected) == 1


def test_the_singular_of_old_and_no_current_snapshot(old_table):
    metadata, path = old_table
    expected = files_of(path)
    metadata["schema"], metadata["partition-spec"] = metadata["schemas"][0], metadata["partition-specs"][0]["fields"]
    for key in ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"):
        metadata.pop(key, None)
    path.write_text(json.dumps(metadata))
    assert files_of(path) == expected
    metadata["current-snapshot-id"] = -1
    metadata["refs"] = {}
    path.write_text(json.dumps(metadata))
    assert files_of(path) == []


def test_manifests_without_field_ids(old_table):
    _, path = old_table
    expected = files_of(path)
    for data in path.parent.glob("*.avro"):
        reader = fastavro.reader(io.BytesIO(data.read_bytes()))
        records = list(reader)
        data.write_bytes(avro(without_ids(reader.writer_schema), records))
    assert files_of(path) == expected


@pytest.mark.parametrize("name", ["v9.gz.metadata.json", "v9.metadata.json.gz", "00009-abc.gz.metadata.json"])
def test_compressed_metadata(name, old_table):
    _, path = old_table
    expected = files_of(path)
    (path.parent / name).write_bytes(gzip.compress(path.read_bytes()))
    assert files_of(path.parent / name) == expected
    path.write_text("{}")  # the highest version is the latest
    assert files_of(path.parent.parent) == expected


def test_a_damaged_manifest_is_named(catalog):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1]})])
    found = table.current_snapshot().manifests(table.io)[0].manifest_path.removeprefix("file://")
    data = Path(found).read_bytes()
    for broken in (data[: len(data) // 2], data[:-1], data[:-30], b"", b"PAR1" + data):
        Path(found).write_bytes(broken)
        with pytest.raises(FileReadError, match=Path(found).name):
            plan_table(table, IcebergRead())


def rewrite(path, change) -> None:
    """Write an Avro file again, with its records changed in place."""
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    records = list(reader)
    for record in records:
        change(record)
    path.write_bytes(avro(reader.writer_schema, records))


def lists_and_manifests(table):
    """The path of the manifest list, and that of its one manifest."""
    snapshot = table.current_snapshot()
    (manifest,) = snapshot.manifests(table.io)
    return [Path(path.removeprefix("file://")) for path in (snapshot.manifest_list, manifest.manifest_path)]


@pytest.mark.parametrize("filters", [None, "x = 1"])
def test_a_manifest_of_a_spec_that_the_table_does_not_have_is_named(catalog, filters):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1]})])
    listed, manifest = lists_and_manifests(table)
    rewrite(listed, lambda record: record.update(partition_spec_id=7))
    with pytest.raises(FileReadError, match=rf"{manifest.name}: .*partition spec 7.*table has the specs \[0\]"):
        plan_table(table, IcebergRead(filters=filters))


@pytest.mark.parametrize("which", ["list", "manifest"])
def test_an_encrypted_manifest_is_named_as_such(catalog, which):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1]})])
    path = dict(zip(("list", "manifest"), lists_and_manifests(table), strict=True))[which]
    path.write_bytes(b"AGS1" + bytes(100))  # the magic of Iceberg's encrypted streams
    with pytest.raises(FileReadError, match=f"{path.name}.* is encrypted"):
        plan_table(table, IcebergRead())


def test_key_metadata_says_that_a_manifest_is_encrypted(catalog):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1]})])
    listed, manifest = lists_and_manifests(table)
    rewrite(listed, lambda record: record.update(key_metadata=b"key"))
    assert len(plan_table(table, IcebergRead()).files) == 1  # a store may have deciphered it
    manifest.write_bytes(b"cipher" + bytes(100))
    with pytest.raises(FileReadError, match=f"{manifest.name}.* is encrypted"):
        plan_table(table, IcebergRead())


@pytest.mark.parametrize("filters", [None, "x > 1"])
@pytest.mark.parametrize("said", [0, 1, 7])
def test_a_wrong_number_of_rows_is_an_error_also_zero(catalog, filters, said):
    table = catalog.create_table("ns.t", pa.schema({"x": pa.int64()}))
    table.append(pa.table({"x": [1, 2, 3]}))
    rewrite(lists_and_manifests(table)[1], lambda entry: entry["data_file"].update(record_count=said))
    with pytest.raises(DamagedFileError, match=f"has 3 rows, but the table's metadata says {said}"):
        list(IcebergDataset.create_dataloader(table, filters=filters)[0])


def test_value_counts_of_zero_rule_nothing_out(catalog):
    table = catalog.create_table("ns.t", pa.schema({"x": pa.int64()}))
    table.append(pa.table({"x": [1, 2, 3]}))
    zero = {name: [{"key": 1, "value": 0}] for name in ("value_counts", "null_value_counts", "nan_value_counts")}
    rewrite(lists_and_manifests(table)[1], lambda entry: entry["data_file"].update(zero))
    for filters in ("x > 1", pc.field("x") > 1):
        rows = [
            row for batch in IcebergDataset.create_dataloader(table, filters=filters)[0] for row in batch["x"].tolist()
        ]
        assert rows == [2, 3]


def test_a_file_without_rows_gives_none(catalog):
    table = catalog.create_table("ns.t", pa.schema({"x": pa.int64()}))
    table.append(pa.table({"x": [1, 2, 3]}))
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    rewrite(lists_and_manifests(table)[1], lambda entry: entry["data_file"].update(record_count=0))
    loader, _ = IcebergDataset.create_dataloader(table)
    assert (list(loader), len(loader)) == ([], 0)


# ------------------------------------------------------------------------------------------ which deletes apply to what


def delete(content, sequence_number, *, name="d", spec_id=0, partition=(), form="PARQUET", **more):
    file = DataFile.from_args(
        _table_format_version=3,
        content=content,
        file_path=name,
        file_format=FileFormat[form],
        partition=Record(*partition),
        record_count=1,
        file_size_in_bytes=1,
        **more,
    )
    return Entry(file, spec_id, sequence_number, 1, True, None)


POSITIONS, EQUALITY = DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES


def applied(deletes, path="/t/a", sequence_number=5, place=(0, ())):
    index = delete_index(
        deletes, lambda one: (one.spec_id, tuple(one.file.partition._data)), frozenset({0}), lambda url: url
    )
    return [found.path for found in index.of(path, sequence_number, place)]


def test_positions_count_from_their_own_commit_on_and_equality_from_the_next():
    both = [
        delete(kind, n, name=f"{kind.value}-{n}", equality_ids=[1]) for kind in (POSITIONS, EQUALITY) for n in (4, 5, 6)
    ]
    assert applied(both) == ["1-5", "1-6", "2-6"]


def test_a_partition_is_a_spec_and_values():
    deletes = [
        delete(kind, 9, name=f"{kind.value}-{spec}{value}", spec_id=spec, partition=(value,), equality_ids=[1])
        for kind in (POSITIONS, EQUALITY)
        for spec in (1, 2)
        for value in "xy"
    ]
    assert applied(deletes, place=(1, ("y",))) == ["1-1y", "2-1y"]
    assert applied(deletes, place=(0, ())) == []


def test_equality_deletes_of_an_unpartitioned_spec_apply_everywhere_and_positions_do_not():
    deletes = [delete(POSITIONS, 9, name="positions"), delete(EQUALITY, 9, name="equality", equality_ids=[1])]
    assert applied(deletes, place=(1, ("x",))) == ["equality"]
    assert applied(deletes) == ["positions", "equality"]


def test_positions_that_name_one_file_apply_to_it_alone():
    named = [delete(POSITIONS, 9, name="one", referenced_data_file="/t/a")]
    assert (applied(named), applied(named, path="/t/b")) == (["one"], [])


def test_bounds_of_paths_tell_which_files_are_meant():
    def bounded(first, last):
        bounds = [{2147483546: value.encode()} for value in (first, last)]
        return [delete(POSITIONS, 9, lower_bounds=bounds[0], upper_bounds=bounds[1])]

    assert applied(bounded("/t/a", "/t/a")) == ["d"]
    assert applied(bounded("/t/a", "/t/a"), path="/t/b") == []
    assert applied(bounded("/t/", "/t0"), path="/t/b") == ["d"]  # cut off, as statistics are
    assert applied(bounded("/t/a", "/t/c"), path="/t/d") == []


def test_a_vector_takes_the_place_of_files_of_positions():
    vector = delete(POSITIONS, 9, name="v", form="PUFFIN", referenced_data_file="/t/a", content_offset=4)
    older = [delete(POSITIONS, 6, name="p"), delete(EQUALITY, 7, name="e", equality_ids=[1])]
    assert applied([vector, *older]) == ["v", "e"]
    assert applied([vector, *older], path="/t/b") == ["p", "e"]
    assert applied([vector, *older], sequence_number=10) == []


def test_partitions_of_nan_are_one(catalog):
    schema = Schema(NestedField(1, "x", DoubleType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    table = catalog.create_table("ns.nan", schema, partition_spec=spec)
    append_files(table, [data_file(table, name, {"x": [1.0]}, (float("nan"),)) for name in "ab"])
    assert [one["files"] for one in plan_table(table, IcebergRead()).partitions] == [2]


@pytest.mark.parametrize("more", [{"form": "PUFFIN"}, {"content": EQUALITY}], ids=["vector", "equality"])
def test_deletes_that_do_not_say_what_they_delete_are_an_error(more):
    more = {"content": POSITIONS, **more}
    with pytest.raises(FileReadError, match=r"/t/d: is listed as .* without '(referenced_data_file|equality_ids)'"):
        applied([delete(more.pop("content"), 9, name="/t/d", **more)])


@pytest.mark.parametrize(
    "name", ["{folder}/./{}", "{folder}//{}", "{folder}/x/../{}", "file:{folder}/{}", "{folder}/link.parquet"]
)
def test_a_file_listed_by_two_names_is_an_error(catalog, name):
    table = catalog.create_table("ns.t", pa.schema({"x": pa.int64()}))
    table.append(pa.table({"x": [1, 2, 3]}))
    table.append(pa.table({"x": [4]}))
    manifests = [
        Path(one.manifest_path.removeprefix("file://")) for one in table.current_snapshot().manifests(table.io)
    ]
    path = Path(next(iter(table.scan().plan_files())).file.file_path.removeprefix("file://"))
    (path.parent / "link.parquet").symlink_to(path)
    other = name.replace("{}", path.name).replace("{folder}", str(path.parent))
    rewrite(manifests[0], lambda entry: entry["data_file"].update(file_path=str(path)))
    rewrite(manifests[1], lambda entry: entry["data_file"].update(file_path=other))
    with pytest.raises(FileReadError, match="lists this file 2 times"):
        plan_table(table, IcebergRead())


SPELLINGS = ["file:///t/a", "file:/t/a", "/t/a", "/t//a", "/t/x/../a", "/t/./a"]


@pytest.mark.parametrize("named", SPELLINGS)
@pytest.mark.parametrize("path", SPELLINGS)
def test_deletes_apply_to_their_file_however_it_is_spelled(path, named):
    bounds = {2147483546: named.encode()}
    assert applied([delete(POSITIONS, 9, name="p", lower_bounds=bounds, upper_bounds=bounds)], path=path) == ["p"]
    assert applied([delete(POSITIONS, 9, name="p", referenced_data_file=named)], path=path) == ["p"]
    vector = delete(POSITIONS, 9, name="v", form="PUFFIN", referenced_data_file=named, content_offset=4)
    assert applied([vector], path=path) == ["v"]
    assert applied([vector], path="/t/b") == []
