"""How a table and its files are found: catalogs, paths, storages; and what cannot be."""

import gc
import os
import subprocess
import sys
import traceback
from pathlib import Path

import fsspec
import pytest
from pyiceberg.table import StaticTable

from tests.iceberg.conftest import HERE, sql_config
from tests.iceberg.helpers import append_files, data_file, names_of, numbers_table
from tests.iceberg.relocate import latest_metadata, relocate
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import (
    CatalogError,
    DataNotFoundError,
    FileReadError,
    OptionError,
)
from torch_dataloader_utils.iceberg.table_storage import Places, expires_at, storage_options
from torch_dataloader_utils.iceberg.tables import IcebergRead, plan_table, refreshed_storage
from torch_dataloader_utils.storage import Storage

# ---------------------------------------------------------------------------------------------------- where a table is


def test_a_table_is_found_in_a_catalog_by_its_files_and_as_itself(catalog, tmp_path):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1, 2]})])
    config = {"name": "test", **sql_config(tmp_path)}
    folder = table.location().removeprefix("file://")
    plans = [
        plan_table("ns.t", IcebergRead(catalog_config=config)),
        plan_table(table, IcebergRead()),
        plan_table(table.metadata_location, IcebergRead()),
        plan_table(folder, IcebergRead()),
        plan_table(Path(folder), IcebergRead()),
    ]
    assert {plan.files for plan in plans} == {plans[0].files}
    assert plans[0].storage == Storage()
    assert [planned.info.record_count for planned in plans[0].files] == [2]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="finds open files as Linux lists them")
def test_a_catalog_is_left_once_its_table_is_known(catalog, tmp_path):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1, 2]})])
    catalog.close()
    config = {"name": "test", **sql_config(tmp_path)}
    gc.disable()
    try:
        IcebergDataset.create_dataloader(table="ns.t", catalog_config=config, num_ranks=1, rank=0)
        opened = {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}
    finally:
        gc.enable()
    assert str(tmp_path / "catalog.db") not in opened


def test_no_such_table_or_catalog(tmp_path, catalog):
    config = sql_config(tmp_path)
    with pytest.raises(DataNotFoundError, match="no such table"):
        plan_table("ns.absent", IcebergRead(catalog_config=config))
    with pytest.raises(CatalogError, match="nobody"):
        plan_table("ns.t", IcebergRead(catalog_config={"name": "nobody", "type": "sql"}))
    with pytest.raises(OptionError, match=r"'namespace\.table'"):
        plan_table("t", IcebergRead(catalog_config=config))
    with pytest.raises(OptionError, match="expected"):
        plan_table(5, IcebergRead())
    with pytest.raises(DataNotFoundError, match="there is no such"):
        plan_table(str(tmp_path / "nowhere"), IcebergRead())
    with pytest.raises(DataNotFoundError, match="is not an Iceberg table"):
        plan_table(str(tmp_path), IcebergRead())


@pytest.mark.parametrize("module", ["iceberg.tables", "filters.sql"])
def test_what_to_install_is_said(module):
    code = f"import sys; sys.modules['pyiceberg'] = None; import torch_dataloader_utils.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError" in done.stderr
    assert "torch-dataloader-utils[iceberg]" in done.stderr


def test_errors_of_catalogs_tell_no_secret(tmp_path):
    config = {"type": "rest", "uri": "http://user:hunter2@127.0.0.1:9", "credential": "id:s3cr3t", "token": "t0ken"}
    with pytest.raises(CatalogError) as caught:
        IcebergDataset.create_dataloader("ns.t", catalog_config=config)
    shown = "".join(traceback.format_exception(caught.value)) + repr(IcebergRead(catalog_config=config))
    for secret in ("hunter2", "s3cr3t", "t0ken"):
        assert secret not in shown


def test_what_is_no_metadata_is_refused_by_name(tmp_path):
    for name, text in {"a": "not json", "b": "[]", "c": "{}", "d": '{"format-version": 9}'}.items():
        path = tmp_path / f"{name}.metadata.json"
        path.write_text(text)
        with pytest.raises(FileReadError, match=path.name):
            plan_table(path, IcebergRead())


def test_two_metadata_files_of_one_version_are_not_chosen_between(catalog):
    table = numbers_table(catalog)
    folder = Path(table.metadata_location.removeprefix("file://")).parent
    (folder / "00000-other.metadata.json").write_text("{}")
    with pytest.raises(OptionError, match="2 metadata files of version 0"):
        plan_table(str(folder.parent), IcebergRead())
    (folder / "version-hint.text").write_text(Path(table.metadata_location).name.removesuffix(".metadata.json"))
    assert plan_table(str(folder.parent), IcebergRead()).files == ()


def test_a_file_listed_twice_is_refused(catalog):
    table = numbers_table(catalog)
    for _ in range(2):
        append_files(table, [data_file(table, "a", {"x": [1]})])
    with pytest.raises(FileReadError, match=r"a\.parquet: the table lists this file 2 times"):
        plan_table(table, IcebergRead())


# -------------------------------------------------------------------------------------------------------------- storage


def test_options_of_storages():
    properties = {
        "s3.endpoint": "http://localhost:9000",
        "s3.access-key-id": "me",
        "s3.secret-access-key": "secret",
        "client.region": "eu-west-1",
        "s3.force-virtual-addressing": "true",
        "s3.connect-timeout": "3",
        "credential": "catalog-secret",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "gcs.oauth2.token": "g",
        "adls.sas-token.me.dfs.core.windows.net": "sas",
    }
    assert storage_options("s3", properties) == {
        "key": "me",
        "secret": "secret",
        "endpoint_url": "http://localhost:9000",
        "client_kwargs": {"region_name": "eu-west-1"},
        "config_kwargs": {"connect_timeout": 3.0, "s3": {"addressing_style": "virtual"}},
    }
    assert storage_options("s3", {"s3.anonymous": "true"}) == {"anon": True}
    assert storage_options("gs", properties) == {"token": "g"}
    assert storage_options("abfs", properties) == {"account_name": "me", "sas_token": "sas"}
    assert storage_options("file", properties) == {}
    with pytest.raises(OptionError, match=r"s3\.signer"):
        storage_options("s3", {"s3.signer": "S3V4RestSigner"})


def test_expiry_of_credentials():
    assert expires_at({"s3.session-token-expires-at-ms": "2000", "gcs.oauth2.token-expires-at": "1500"}) == 1.5
    assert expires_at({"s3.endpoint": "http://localhost"}) is None


def test_credentials_are_fetched_anew(catalog, tmp_path):
    table = numbers_table(catalog)
    config = {"name": "test", **sql_config(tmp_path), "s3.session-token-expires-at-ms": "5000"}
    later = IcebergRead(catalog_config=config | {"s3.session-token-expires-at-ms": "9000"})
    assert refreshed_storage("ns.t", later) == (Storage(), 9.0)
    for ready in (table, StaticTable.from_metadata(table.metadata_location)):
        assert refreshed_storage(ready, IcebergRead()) == (Storage(), None)
    catalog.drop_table("ns.t")
    with pytest.raises(DataNotFoundError, match="no such table"):
        refreshed_storage(table, IcebergRead())


def test_all_files_are_on_one_storage(tmp_path):
    places = Places(f"file://{tmp_path}", {}, {}, None)
    assert places.path(f"file://{tmp_path}/a b%20c.parquet") == f"{tmp_path}/a b%20c.parquet"
    assert places.path(f"file:{tmp_path}/a") == places.path(f"{tmp_path}/a") == f"{tmp_path}/a"
    with pytest.raises(OptionError, match=r"memory://x/a is on another storage"):
        places.path("memory://x/a")


def test_tables_of_remote_stores(tmp_path, spark_tables):
    fs = fsspec.filesystem("memory")
    relocate(latest_metadata(HERE / "db" / "v3_dv_lineage"), HERE, tmp_path, new="memory://tables")
    fs.put(f"{tmp_path}/db", "/tables/db", recursive=True)
    try:
        plans = [
            plan_table("memory://tables/db/v3_dv_lineage", IcebergRead()),
            plan_table("memory://tables/db/v3_dv_lineage/metadata/v9.metadata.json", IcebergRead(filesystem=fs)),
        ]
    finally:
        fs.rm("/tables", recursive=True)
    local = plan_table(spark_tables("v3_dv_lineage"), IcebergRead())
    for plan in plans:
        assert plan.storage.protocol == "memory"
        assert names_of(plan) == names_of(local)
        assert [one.file.deletes[0].path for one in plan.files[:1]] == [
            "/tables" + local.files[0].file.deletes[0].path.partition("/spark0")[2]
        ]


def test_names_of_s3_are_one_storage():
    pytest.importorskip("s3fs")
    places = Places("s3a://bucket/table", {"s3.access-key-id": "me", "s3.secret-access-key": "secret"}, {}, None)
    assert places.storage.protocol == "s3"
    assert places.path("s3://bucket/table/a") == places.path("s3n://bucket/table/a") == "bucket/table/a"
    assert "secret" not in repr(places.storage)


def test_remote_signing_is_refused_also_without_a_signer():
    with pytest.raises(OptionError, match=r"s3\.remote-signing-enabled.*storage_options="):
        storage_options("s3", {"s3.remote-signing-enabled": "true"})
    assert storage_options("s3", {"s3.remote-signing-enabled": "false"}) == {}
    assert storage_options("gs", {"s3.remote-signing-enabled": "true"}) == {}
