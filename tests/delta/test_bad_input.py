"""What cannot be read is an error at construction that says why, without secrets."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.delta.by_hand import commit, delete_rows, entries, live, require, rewrite
from tests.delta.reading import ids, opened
from torch_dataloader_utils import (
    ColumnNotFoundError,
    DamagedFileError,
    FileReadError,
    OptionError,
    SnapshotError,
    StructuredDataset,
    UnknownOptionError,
)
from torch_dataloader_utils.delta.store_options import data_options, log_options


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "t", pa.table({"id": range(10), "p": ["a", "b"] * 5}), partition_by=["p"])
    return tmp_path / "t"


@pytest.mark.parametrize("feature", ["wings", "checkpointProtection"])
def test_what_the_table_requires_of_readers_is_named(table: Path, feature: str) -> None:
    require(table, feature)
    for options in ({}, {"version": 0}):
        with pytest.raises(
            (FileReadError, SnapshotError), match=f"requires {feature} of its readers.*Drop the feature"
        ):
            opened(table, **options)


def test_a_later_reader_version_is_an_error(table: Path) -> None:
    rewrite(table, lambda line: line.get("protocol", {}).update(minReaderVersion=4))
    with pytest.raises(FileReadError, match="its log"):
        opened(table)


@pytest.mark.parametrize("features", [["timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"], ["typeWidening"], []])
def test_features_that_are_supported_are_read(table: Path, features: list[str]) -> None:
    require(table, *features)
    assert sorted(ids(opened(table)[0])) == list(range(10))


@pytest.mark.parametrize("damage", ["{", "\x00\xff", '{"add": {"path": 5}}', '{"metaData": {"schemaString": "{"}}'])
def test_a_damaged_log_is_an_error(table: Path, damage: str) -> None:
    entries(table)[0].with_name(f"{1:020}.json").write_text(damage)
    with pytest.raises(FileReadError, match=r"t: its log"):
        opened(table)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (5, {}, OptionError, "table=5: expected the path"),
        ("", {}, OptionError, "expected the path"),
        (None, {"format": "parquet"}, UnknownOptionError, "the table's metadata"),
        (None, {"filesystem": "local"}, UnknownOptionError, "storage_options"),
        (None, {"snapshot_id": 1}, UnknownOptionError, "version= or as_of="),
        (None, {"versions": 1}, UnknownOptionError, "did you mean 'version'"),
        (None, {"columns": ["nope"]}, ColumnNotFoundError, "nope"),
        (None, {"filters": [("nope", "==", 1)]}, ColumnNotFoundError, "nope"),
    ],
    ids=str,
)
def test_wrong_arguments(
    table: Path, given: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(table if given is None else given, **options)


def test_version_is_no_option_of_files(table: Path) -> None:
    with pytest.raises(UnknownOptionError, match="DeltaDataset"):
        StructuredDataset.create_dataloader(str(table), version=1)


def test_secrets_of_the_store_are_in_no_error(tmp_path: Path) -> None:
    secrets = {"AWS_ACCESS_KEY_ID": "AKIASPOTTED", "AWS_SECRET_ACCESS_KEY": "Qx7spottedspottedspotted9"}
    options = {**secrets, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "eu-west-1", "max_retries": "0"}
    with pytest.raises(FileReadError, match=r"s3://bucket/t: its log cannot be read: .*127\.0\.0\.1:9") as caught:
        opened("s3://bucket/t", storage_options=options, timeout=60)
    assert not any(secret in f"{caught.value!r} {caught.value.__cause__}" for secret in secrets.values())


def test_options_of_a_store_in_the_names_of_either_client() -> None:
    pytest.importorskip("s3fs")
    expected = {
        "aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_region": "r",
        "aws_endpoint_url": "http://h", "allow_http": "true",
    }  # fmt: skip
    given = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "r"}, "endpoint_url": "http://h"}
    assert log_options("s3://b/t", given) == expected
    named = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "r", "AWS_ENDPOINT_URL": "http://h"}
    assert log_options("s3://b/t", {**named, "AWS_S3_ALLOW_UNSAFE_RENAME": True}) == {
        **expected, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"
    }  # fmt: skip
    assert data_options({**named, "AWS_S3_ALLOW_UNSAFE_RENAME": True}) == named
    assert log_options("s3://b/t", {"anon": True}) == {"aws_skip_signature": "true"}
    assert log_options("/local", {"anything": 1}) == {}
    with pytest.raises(OptionError, match="'profile'"):
        log_options("s3://b/t", {"profile": "me"})


def test_a_file_on_another_storage_is_an_error(table: Path) -> None:
    add = next(iter(live(table).values()))
    commit(table, [{"add": {**add, "path": "memory://elsewhere/x.parquet"}}])
    with pytest.raises((OptionError, FileReadError), match=r"elsewhere|its log"):
        opened(table)


def said(folder: Path, **stats: Any) -> None:
    """Have the log say this of all files of version 0."""

    def change(line: dict[str, Any]) -> None:
        if "add" in line:
            line["add"]["stats"] = json.dumps({**json.loads(line["add"]["stats"]), **stats})

    rewrite(folder, change)


@pytest.mark.parametrize("options", [{}, {"filters": [("id", ">", 3)]}, {"split_rows": 2}], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_wrong_number_of_rows_is_an_error_also_zero(tmp_path: Path, rows: int, options: dict[str, Any]) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(10)}))
    said(tmp_path, numRecords=rows)
    with pytest.raises(DamagedFileError, match=f"has 10 rows, but the table's metadata says {rows}"):
        ids(opened(tmp_path, **options)[0])


@pytest.mark.parametrize("rows", [-1, None])
def test_a_number_of_rows_that_is_not_known_is_counted(tmp_path: Path, rows: Any) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(10)}))
    said(tmp_path, numRecords=rows)
    loader, dataset = opened(tmp_path, filters=[("id", ">", 3)])
    assert ids(loader) == [4, 5, 6, 7, 8, 9]
    assert [item["records"] for item in dataset.partitions] == [0]


def test_a_file_without_rows_gives_none(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(10)}))
    (path,) = live(tmp_path)
    pq.write_table(pq.read_table(tmp_path / path).slice(0, 0), tmp_path / path)
    said(tmp_path, numRecords=0)
    loader, _ = opened(tmp_path)
    assert (ids(loader), len(loader)) == ([], 0)


OTHER_NAMES = [
    "./{}",
    ".//{}",
    "x/../{}",
    "{}/../{}",
    "{folder}/{}",
    "file:{folder}/{}",
    "file://{folder}/{}",
    "%2E/{}",
    "link/{}",
    "link.parquet",
]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_file_listed_by_two_names_is_an_error(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"id": range(10)}))
    ((path, add),) = live(folder).items()
    (folder / "link").symlink_to(folder)
    (folder / "link.parquet").symlink_to(folder / path)
    commit(folder, [{"add": {**add, "path": name.replace("{}", path).replace("{folder}", str(folder))}}])
    with pytest.raises(FileReadError, match="lists this file 2 times"):
        opened(folder)


@pytest.mark.parametrize(
    "name", ["../outside.parquet", "x/../../outside.parquet", "%2e%2e/outside.parquet", "./../outside.parquet", ".."]
)
def test_a_relative_path_out_of_the_table_is_an_error(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"id": range(10)}))
    (path,) = live(folder)
    (folder / path).rename(tmp_path / "outside.parquet")
    rewrite(folder, lambda line: line.get("add", {}).update(path=name) if "add" in line else None)
    with pytest.raises(FileReadError, match="leads out of the table's folder"):
        opened(folder)
    rewrite(folder, lambda line: line["add"].update(path=str(tmp_path / "outside.parquet")) if "add" in line else None)
    assert ids(opened(folder)[0]) == list(range(10))  # as in a shallow clone


def test_a_vector_of_a_file_whose_path_is_spelled_oddly_applies(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(10)}), configuration={"delta.enableDeletionVectors": "true"})
    (path,) = live(tmp_path)
    rewrite(tmp_path, lambda line: line["add"].update(path=f"./{path}") if "add" in line else None)
    delete_rows(tmp_path, {f"./{path}": [1, 3]})
    assert ids(opened(tmp_path)[0]) == [0, 2, 4, 5, 6, 7, 8, 9]
