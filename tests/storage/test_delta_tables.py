"""Delta tables of a store: deltalake reads the log and this package the data files, both with the same options."""

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.delta.reading import ids, opened
from tests.storage.servers import Store
from torch_dataloader_utils import DataNotFoundError, SnapshotError


@pytest.fixture(scope="module")
def options(moto_s3: Store) -> dict[str, str]:
    """The store's options, as deltalake spells them."""
    given = moto_s3.storage_options
    return {
        "AWS_ACCESS_KEY_ID": given["key"],
        "AWS_SECRET_ACCESS_KEY": given["secret"],
        "AWS_ENDPOINT_URL": given["endpoint_url"],
        "AWS_REGION": "us-east-1",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        "allow_http": "true",
    }


@pytest.fixture(scope="module")
def table(moto_s3: Store, options: dict[str, str]) -> str:
    url = moto_s3.url("a table")
    for first in (0, 10):
        rows = pa.table({"id": range(first, first + 10), "p": ["a b", "ü%"] * 5})
        write_deltalake(url, rows, mode="append", partition_by=["p"], storage_options=options)
    return url


def test_a_table_is_read_with_the_options_of_either_client(table: str, options: dict[str, str], moto_s3: Store) -> None:
    for given in (options, moto_s3.storage_options):
        loader, dataset = opened(table, storage_options=given, batch_size=4)
        assert (dataset.version, len(loader)) == (1, 5)
        assert sorted(ids(loader)) == list(range(20))
        assert sorted(ids(opened(table, storage_options=given, version=0)[0])) == list(range(10))
    workers: dict[str, Any] = {"num_workers": 2, "worker_mode": "processes"}
    assert sorted(ids(opened(table, storage_options=options, **workers)[0])) == list(range(20))


def test_a_table_that_deltalake_opened_brings_its_options(table: str, options: dict[str, str]) -> None:
    loader, dataset = opened(DeltaTable(table, version=0, storage_options=options))
    assert sorted(ids(loader)) == list(range(10))
    assert dataset.advance()


def test_what_is_not_there_is_an_error(table: str, options: dict[str, str]) -> None:
    with pytest.raises(DataNotFoundError, match="no Delta table"):
        opened(f"{table}/nothing", storage_options=options)
    with pytest.raises(SnapshotError, match="is before version 0"):
        opened(table, storage_options=options, as_of="2024-01-01T00:00:00Z")
