"""Stores that do not answer for one kind of a table's files: an error within `timeout`, whoever asks for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from tests.delta import by_hand
from tests.delta.reading import ids, opened
from tests.storage.proxy import Faults, Proxy, faulty
from tests.storage.servers import Store
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import BatchTimeoutError

TIMEOUT = 2.0  # seconds
SLACK = 20.0  # seconds: the machine may be busy


@pytest.fixture(scope="module")
def proxy(moto_s3: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A store with a table of a checkpoint, an entry after it, and rows deleted by vectors."""
    folder = tmp_path_factory.mktemp("table") / "t"
    for first in (0, 10):
        write_deltalake(folder, pa.table({"id": range(first, first + 10)}), mode="append")
    by_hand.require(folder, "deletionVectors")
    by_hand.delete_rows(folder, {path: [1, 2] for path in by_hand.live(folder)})
    DeltaTable(folder).create_checkpoint()
    by_hand.commit(folder, [])
    moto_s3.put(folder, "hanging")
    with faulty(moto_s3, tmp_path_factory.mktemp("proxy")) as running:
        yield running


def iceberg_config(store: Store, folder: Path) -> dict[str, Any]:
    given = store.storage_options
    keys = {"s3.access-key-id": given["key"], "s3.secret-access-key": given["secret"], "s3.region": "us-east-1"}
    place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{store.root}/warehouse"}
    return {"name": "c", "type": "sql", **place, "s3.endpoint": given["endpoint_url"], **keys}


@pytest.fixture(scope="module")
def iceberg_table(moto_s3: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a catalog with a table of two files, of which rows are deleted."""
    folder = tmp_path_factory.mktemp("catalog")
    with load_catalog(**iceberg_config(moto_s3, folder)) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", pa.schema({"id": pa.int64()}))
        for first in (0, 10):
            table.append(pa.table({"id": range(first, first + 10)}))
        table.delete("id in (1, 2, 11, 12)")
    return folder


@pytest.fixture(autouse=True)
def answering(proxy: Proxy) -> Iterator[None]:
    yield
    proxy.inject(Faults())


def read(proxy: Proxy, **options: Any) -> list[int]:
    store = proxy.store
    given = {"storage_options": store.storage_options, "batch_size": 4, "timeout": TIMEOUT, **options}
    return sorted(ids(opened(store.url("hanging"), **given)[0]))


def read_iceberg(proxy: Proxy, folder: Path, **options: Any) -> list[int]:
    given = {"catalog_config": iceberg_config(proxy.store, folder), "batch_size": 4, "timeout": TIMEOUT, **options}
    return sorted(ids(IcebergDataset.create_dataloader("ns.t", **given)[0]))


def test_the_table_has_its_rows(proxy: Proxy) -> None:
    assert read(proxy, timeout=SLACK) == [row for row in range(20) if row % 10 not in (1, 2)]
    counts = proxy.counts()
    for kind in ("_last_checkpoint", ".checkpoint.parquet", "deletion_vector_", "part-"):
        assert counts.of(kind)["gets"], f"no request for {kind}: what hangs below is not read"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"version": 3}, {"num_workers": 1, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize(
    "file", ["list-type", "_last_checkpoint", ".checkpoint.parquet", "3.json", "4.json", "deletion_vector_", "part-"]
)
def test_no_file_of_a_table_is_waited_for_longer_than_the_timeout(
    proxy: Proxy, file: str, options: dict[str, Any]
) -> None:
    proxy.inject(Faults("silent", match=file))
    begin = time.monotonic()
    try:
        found = read(proxy, **options)
    except BatchTimeoutError:
        assert time.monotonic() - begin < 3 * TIMEOUT + SLACK
        return
    assert found == [row for row in range(20) if row % 10 not in (1, 2)]
    assert not proxy.counts().faults, "it was answered although the store was silent"


ICEBERG_FILES = [".metadata.json", "snap-", "-m0.avro", "/data/"]


def test_the_iceberg_table_has_its_rows(proxy: Proxy, iceberg_table: Path) -> None:
    assert read_iceberg(proxy, iceberg_table, timeout=SLACK) == [row for row in range(20) if row % 10 not in (1, 2)]
    for kind in ICEBERG_FILES:
        assert proxy.counts().of(kind)["gets"], f"no request for {kind}: what hangs below is not read"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "worker_mode": "processes"}], ids=str)
@pytest.mark.parametrize("file", ICEBERG_FILES)
def test_no_file_of_an_iceberg_table_is_waited_for_longer_than_the_timeout(
    proxy: Proxy, iceberg_table: Path, file: str, options: dict[str, Any]
) -> None:
    proxy.inject(Faults("silent", match=file))
    begin = time.monotonic()
    with pytest.raises(BatchTimeoutError):
        read_iceberg(proxy, iceberg_table, **options)
    assert time.monotonic() - begin < 3 * TIMEOUT + SLACK
