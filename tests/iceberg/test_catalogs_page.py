"""Each configuration on the page of catalogs that is marked as tried reads a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.iceberg.services import CLIENT_SECRET, TOKEN, vending
from tests.storage import servers
from tests.storage.servers import BUCKET, ServerMissingError
from torch_dataloader_utils import Iceberg, stream

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"
# A paragraph, and the configuration below it.
KINDS = re.compile(r"\*\*([^*]+)\*\*([^\n]*(?:\n[^\n`#]+)*)\n\n```yaml\n(catalog:\n  (\w+):\n.*?)```", re.DOTALL)
FOUND = {match[4]: (match[2], match[3]) for match in KINDS.finditer(PAGE.read_text())}
TRIED = {name for name, (about, _) in FOUND.items() if "not tried here" not in about}
REST = {name for name in TRIED if "type: rest" in FOUND[name][1]}
WORDS = {"TOKEN": TOKEN, "CLIENT_ID:CLIENT_SECRET": f"client:{CLIENT_SECRET}"}


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes a configuration of the page, with other words for those in capitals."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))

    def write(name: str, words: dict[str, str]) -> None:
        text = FOUND[name][1]
        for word, value in words.items():
            assert word in text
            text = text.replace(word, value)
        (tmp_path / ".pyiceberg.yaml").write_text(text)

    return write


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    with SqlCatalog("any", uri=f"sqlite:///{tmp_path}/any.db", warehouse=f"file://{tmp_path}/warehouse") as catalog:
        yield filled(catalog)


def filled(catalog: Any) -> Any:
    catalog.create_namespace("sales")
    made = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    made.append(pa.table({"id": [1, 2, 3]}))
    return made


def ids(catalog: str) -> list[int]:
    return [row for batch in stream(Iceberg("sales.orders", catalog=catalog)) for row in batch["id"].tolist()]


def test_each_kind_says_whether_it_is_tried_and_those_are_that_run_here() -> None:
    assert set(FOUND) - TRIED == {"biglake", "hive"}
    assert all("tried" in about for about, _ in FOUND.values())
    assert {"rest", "polaris", "snowflake", "unity", "nessie", "s3tables"} == REST
    assert {"sql", "glue"} == TRIED - REST


@pytest.mark.parametrize("name", sorted(REST))
def test_a_rest_catalog_is_read(
    name: str, table: Any, configured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    text = FOUND[name][1]
    uri = re.search(r" uri: (https://([^/\s]+)(\S*))", text)
    warehouse = re.search(r" warehouse: (\S+)", text)
    assert uri is not None
    with vending(table, lambda load: {}, signed=name == "s3tables") as service:
        words = {word: value for word, value in WORDS.items() if word in text}
        configured(name, {**words, f"https://{uri[2]}": service.config["uri"]})
        assert ids(name) == [1, 2, 3]
    gets = [path for method, _, path in (asked.partition(" ") for asked in service.asked) if method == "GET"]
    assert gets == [f"{uri[3]}/v1/config", f"{uri[3]}/v1/namespaces/sales/tables/orders"]
    posts = {asked for asked in service.asked if asked.startswith("POST")}
    assert posts == ({f"POST {uri[3]}/v1/oauth/tokens"} if "credential:" in text else set())
    assert service.warehouses == {warehouse[1] if warehouse else None}


def test_a_sql_catalog_is_read(table: Any, configured: Callable[..., None], tmp_path: Path) -> None:
    """PostgreSQL itself is in tests/iceberg/test_services.py."""
    warehouse = f"file://{tmp_path}/other"
    with SqlCatalog("sql", uri=f"sqlite:///{tmp_path}/sql.db", warehouse=warehouse) as catalog:
        filled(catalog)
    address = "postgresql+psycopg2://USER:PASSWORD@HOST/DATABASE"
    configured("sql", {address: f"sqlite:///{tmp_path}/sql.db", "s3://BUCKET/PATH": warehouse})
    assert ids("sql") == [1, 2, 3]


def test_glue_is_read(configured: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name, value in {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "thing"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "moto").mkdir()
    try:
        moto = servers.moto(tmp_path / "moto")
        with moto as store:
            endpoint = store.storage_options["endpoint_url"]
            configured("glue", {"REGION": "us-east-1"})
            # What stands for Amazon here is told in the environment, as for each other client of AWS.
            monkeypatch.setenv("PYICEBERG_CATALOG__GLUE__GLUE__ENDPOINT", endpoint)
            monkeypatch.setenv("PYICEBERG_CATALOG__GLUE__S3__ENDPOINT", endpoint)
            there = {"type": "glue", "glue.region": "us-east-1", "glue.endpoint": endpoint, "s3.endpoint": endpoint}
            filled(load_catalog("writer", **there, warehouse=f"s3://{BUCKET}/glue"))
            assert ids("glue") == [1, 2, 3]
    except ServerMissingError as error:
        pytest.skip(str(error))
