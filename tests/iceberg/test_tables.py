"""How a table and its files are found: catalogs, paths, storages; and what cannot be."""

import gc
import os
import re
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from torch_dataloader_utils.iceberg.table_storage import Places, check_possible, storage_options
from torch_dataloader_utils.iceberg.tables import IcebergRead, plan_table, refreshed_storage
from torch_dataloader_utils.iceberg.vended import TableAccess, Vended
from torch_dataloader_utils.storage import Storage

# ---------------------------------------------------------------------------------------------------- where a table is


def test_a_table_is_found_in_a_catalog_by_its_files_and_as_itself(catalog, tmp_path):
    table = numbers_table(catalog)
    append_files(table, [data_file(table, "a", {"x": [1, 2]})])
    config = {"name": "test", **sql_config(tmp_path)}
    folder = table.location().removeprefix("file://")
    plans = [
        plan_table("ns.t", IcebergRead(catalog=config)),
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
        plan_table("ns.absent", IcebergRead(catalog=config))
    with pytest.raises(CatalogError, match="nobody"):
        plan_table("ns.t", IcebergRead(catalog={"name": "nobody", "type": "sql"}))
    with pytest.raises(OptionError, match=r"'namespace\.table'"):
        plan_table("t", IcebergRead(catalog=config))
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
    shown = "".join(traceback.format_exception(caught.value)) + repr(IcebergRead(catalog=config))
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


def test_expiry_of_credentials():
    both = {"s3.session-token-expires-at-ms": "2000", "gcs.oauth2.token-expires-at": "1500"}
    assert TableAccess("", both).expires_at == 1.5
    assert TableAccess("", {"s3.endpoint": "http://localhost"}).expires_at is None


def test_credentials_are_fetched_anew(catalog, tmp_path):
    table = numbers_table(catalog)
    config = {"name": "test", **sql_config(tmp_path), "s3.session-token-expires-at-ms": "5000"}
    later = IcebergRead(catalog=config | {"s3.session-token-expires-at-ms": "9000"})
    access = TableAccess(table.location())
    assert refreshed_storage(access, "ns.t", later) == (Storage(), 9.0)
    for ready in (table, StaticTable.from_metadata(table.metadata_location)):
        assert refreshed_storage(access, ready, IcebergRead()) == (Storage(), None)
    catalog.drop_table("ns.t")
    with pytest.raises(DataNotFoundError, match="no such table"):
        refreshed_storage(access, table, IcebergRead())


def test_all_files_are_on_one_storage(tmp_path):
    places = Places(TableAccess(f"file://{tmp_path}"), {}, None)
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
    keys = {"s3.access-key-id": "me", "s3.secret-access-key": "secret"}
    places = Places(TableAccess("s3a://bucket/table", keys), {}, None)
    assert places.storage.protocol == "s3"
    assert places.path("s3://bucket/table/a") == places.path("s3n://bucket/table/a") == "bucket/table/a"
    assert "secret" not in repr(places.storage)


SIGNING = [{"s3.remote-signing-enabled": "true"}, {"s3.signer": "S3V4RestSigner"}]


@pytest.mark.parametrize("properties", SIGNING, ids=lambda properties: next(iter(properties)))
def test_remote_signing_is_refused_by_name_unless_there_is_a_key(properties):
    pytest.importorskip("s3fs")
    name, access = next(iter(properties)), TableAccess("s3://bucket/table", properties)
    with pytest.raises(OptionError, match=rf"{re.escape(name)}= .*signs each request itself.*storage_options="):
        Places(access, {}, None)
    assert Places(access, {"key": "me", "secret": "s"}, None).storage.recipe[2]["key"] == "me"  # as the error says
    assert Places(access, {}, fsspec.filesystem("memory")).storage.protocol == "memory"
    keys = {"s3.access-key-id": "me", "s3.secret-access-key": "secret"}
    assert Places(replace(access, properties=properties | keys), {}, None).storage.recipe[2]["key"] == "me"
    of_prefix = Places(replace(access, vended=(Vended("s3://bucket", keys),)), {}, None).storage
    assert of_prefix.at("bucket/table/a").recipe[2]["key"] == "me"


def test_what_is_no_remote_signing_is_not_refused():
    check_possible("s3", {"s3.remote-signing-enabled": "false"})
    check_possible("gs", {"s3.remote-signing-enabled": "true"})
    with pytest.raises(OptionError, match=r"adls\.token= for the table's files: that is not supported"):
        check_possible("abfs", {"adls.token": "t0ken"})


# -------------------------------------------------------------------------------------- credentials of several prefixes


def keys(name):
    return {"s3.access-key-id": name, "s3.secret-access-key": f"secret of {name}"}


def test_credentials_are_those_of_the_longest_prefix_at_the_border_of_a_path():
    pytest.importorskip("s3fs")
    prefixes = {"s3": "any", "s3://bucket/t": "table", "s3a://bucket/t/data/": "data", "s3://bucket/t/d": "d"}
    vended = tuple(Vended(prefix, keys(name)) for prefix, name in prefixes.items())
    storage = Places(TableAccess("s3://bucket/t", {"s3.region": "eu-west-1"}, vended), {}, None).storage
    used = {
        "bucket/t": "table",
        "bucket/t/metadata/1.avro": "table",
        "bucket/t/data/1.parquet": "data",
        "bucket/t/data": "data",
        "bucket/t/data2/1.parquet": "table",  # Java's client and pyiceberg would take those of "s3://bucket/t/d"
        "bucket/t2/1.parquet": "any",
        "other/t": "any",
    }
    assert {path: storage.at(path).recipe[2]["key"] for path in used} == used
    assert {storage.at(path).recipe[2]["client_kwargs"]["region_name"] for path in used} == {"eu-west-1"}
    assert "secret of" not in repr(storage)


def test_credentials_of_a_prefix_are_not_mixed_with_those_of_the_table():
    pytest.importorskip("s3fs")
    table = {**keys("table"), "s3.session-token": "of the table"}
    access = TableAccess("s3://bucket/t", table, (Vended("s3://bucket/t/data", keys("data")),))
    storage = Places(access, {}, None).storage
    assert storage.at("bucket/t/metadata/1.avro").recipe[2]["token"] == "of the table"
    assert "token" not in storage.at("bucket/t/data/1.parquet").recipe[2]
    own = Places(access, {"key": "me", "secret": "mine"}, None).storage
    assert (own.vended, own.recipe[2]["key"]) == ((), "me")


@given(
    st.dictionaries(
        st.lists(st.sampled_from("ab"), max_size=3).map("/".join), st.text(min_size=1, max_size=3), max_size=6
    ),
    st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4).map("/".join),
)
def test_a_path_has_the_credentials_of_the_deepest_folder_that_has_any(prefixes, path):
    pytest.importorskip("s3fs")
    vended = tuple(Vended(f"s3://bucket/{prefix}", keys(name)) for prefix, name in prefixes.items())
    storage = Places(TableAccess("s3://bucket", keys("table"), vended), {}, None).storage
    parts = path.split("/")
    folders = ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
    expected = next((prefixes[folder] for folder in folders if folder in prefixes), "table")
    assert storage.at(f"bucket/{path}").recipe[2]["key"] == expected
