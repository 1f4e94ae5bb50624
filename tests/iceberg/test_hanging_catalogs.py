"""Catalogs, and stores of their metadata, that accept connections and never answer: an error within `timeout`."""

from __future__ import annotations

import gc
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.iceberg.conftest import sql_config
from tests.iceberg.test_catalog_hosts import CONFIG
from tests.iceberg.test_catalog_hosts import catalog as serving
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import BatchTimeoutError
from torch_dataloader_utils.iceberg import plan
from torch_dataloader_utils.iceberg.plan import IcebergRead, refreshed_storage
from torch_dataloader_utils.iceberg.vended import TableAccess
from torch_dataloader_utils.storage import Storage

TIMEOUT = 1.0  # seconds
SLACK = 20.0  # seconds: the machine may be busy

# pyiceberg leaves the connections of its session to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that never answers. Calls that wait for it end with it, and their connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    for thread in threading.enumerate():
        if thread.name == "calls":
            thread.join(SLACK)
    gc.collect()  # else connections are collected, with a warning, within some later test


def test_a_catalog_that_never_answers_is_named_within_the_timeout(silent: str) -> None:
    begin = monotonic()
    with pytest.raises(BatchTimeoutError, match=rf"table 'a\.b': the catalog did not answer within timeout={TIMEOUT}"):
        IcebergDataset.create_dataloader("a.b", catalog_config={"type": "rest", "uri": silent}, timeout=TIMEOUT)
    assert monotonic() - begin < TIMEOUT + SLACK


def test_a_store_that_never_answers_a_database_s_catalog_is_named_within_the_timeout(
    catalog: Catalog, silent: str, tmp_path: Path
) -> None:
    catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("UPDATE iceberg_tables SET metadata_location = 's3://bucket/v1.metadata.json'")
    store = {"s3.endpoint": silent, "s3.region": "a", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    begin = monotonic()
    with pytest.raises(BatchTimeoutError, match=rf"table 'ns\.t': the catalog did not answer within timeout={TIMEOUT}"):
        IcebergDataset.create_dataloader(
            "ns.t", catalog_config={"name": "test", **sql_config(tmp_path), **store}, timeout=TIMEOUT
        )
    assert monotonic() - begin < TIMEOUT + SLACK


def test_a_catalog_that_does_not_answer_a_reading_thread_is_named_within_the_timeout(
    catalog: Catalog, silent: str
) -> None:
    made = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
    with serving(CONFIG) as (uri, _):
        rest = RestCatalog("rest", uri=uri)
    table = Table(("ns", "t"), made.metadata, made.metadata_location, made.io, rest)
    storage = Storage("memory", filesystem=MemoryFileSystem(), timeout=TIMEOUT)
    access = TableAccess(made.location(), {"token": "first"})
    renewal = plan._renewing(storage, access, table, IcebergRead()).renewal
    rest.uri = rest.properties["uri"] = silent
    begin = monotonic()
    with pytest.raises(BatchTimeoutError, match=r"table 'ns\.t': the catalog did not answer"):
        renewal.instead_of(storage, storage)
    assert monotonic() - begin < TIMEOUT + SLACK


def test_a_renewed_storage_has_the_limit_of_the_first(catalog: Catalog) -> None:
    made = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
    access = TableAccess(made.location())
    assert refreshed_storage(access, made, IcebergRead(), TIMEOUT)[0].timeout == TIMEOUT


def test_a_table_s_catalog_that_stops_answering_is_named_within_the_timeout(catalog: Catalog, silent: str) -> None:
    made = catalog.create_table("ns.t", schema=pa.schema({"id": pa.int64()}))
    made.append(pa.table({"id": [1, 2, 3]}))
    with serving(CONFIG) as (uri, _):
        rest = RestCatalog("rest", uri=uri)
    table = Table(("ns", "t"), made.metadata, made.metadata_location, made.io, rest)
    loader, dataset = IcebergDataset.create_dataloader(table, num_ranks=1, rank=0, timeout=TIMEOUT)
    rest.uri = rest.properties["uri"] = silent
    begin = monotonic()
    with pytest.raises(BatchTimeoutError, match=r"table 'ns\.t': the catalog did not answer"):
        dataset.advance()
    assert monotonic() - begin < TIMEOUT + SLACK
    assert sum(len(batch["id"]) for batch in loader) == 3
