"""Tables of a Unity Catalog by name: two requests, and credentials that are renewed, on threads and in processes.

The catalog is a server on loopback with the two requests that are made; the store lets in the latest key alone.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.ports import HOST
from tests.storage.guarded import GuardedStore, guarded
from torch_dataloader_utils import Delta, stream
from torch_dataloader_utils.errors import CatalogError, DataNotFoundError, FileReadError, OptionError

pytest.importorskip("s3fs")

NAME, TOKEN = "main.sales.orders", "dapi-SECRET-0123456789"
URL = f"uc://{NAME}"
ROWS = 6_000
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "worker_mode": "processes"},
}
API = "/api/2.1/unity-catalog"


@dataclass
class Unity:
    """A running catalog.

    Attributes:
        address: of the server.
        store: where the table is.
        answers: what it answers to requests that are not for credentials: path -> status and JSON.
        kind: of the credentials that it gives.
        lasts: seconds until they expire; None: it does not say.
        asked: the requests that it got: method, path and body.
    """

    address: str
    store: GuardedStore
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    kind: str = "aws_temp_credentials"
    lasts: float | None = 3600
    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    @property
    def loads(self) -> int:
        """How often credentials were given."""
        return sum(path.endswith("credentials") for _, path, _ in self.asked)

    @property
    def options(self) -> dict[str, Any]:
        """How a user names it, and the store, which is none of Amazon's."""
        return {"databricks_host": self.address, "databricks_token": TOKEN, "endpoint_url": self.store.endpoint}

    def credentials(self) -> dict[str, Any]:
        key = f"key{self.loads}"
        self.store.admit(key, "bucket/orders")
        parts = {"access_key_id": key, "secret_access_key": f"secret-of-{key}", "session_token": "session"}
        ends = {} if self.lasts is None else {"expiration_time": int((time.time() + self.lasts) * 1000)}
        return {self.kind: parts, "url": "s3://bucket/orders", **ends}


@contextmanager
def serving(store: GuardedStore) -> Iterator[Unity]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            unity.asked.append((self.command, self.path, body))
            status, answer = 401, {"error_code": "UNAUTHENTICATED", "message": "no such token"}
            if self.headers["Authorization"] == f"Bearer {TOKEN}":
                missing = 404, {"error_code": "TABLE_DOES_NOT_EXIST", "message": "Table does not exist."}
                status, answer = unity.answers.get(self.path, missing)
                if self.path == f"{API}/temporary-table-credentials" and self.path not in unity.answers:
                    status, answer = 200, unity.credentials()
            data = json.dumps(answer).encode()
            self.send_response(status)
            if status == 307:
                self.send_header("Location", answer)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Nothing: the log is no part of a test's output."""

    with ThreadingHTTPServer((HOST, 0), Answers) as server:
        unity = Unity(f"http://{HOST}:{server.server_port}", store)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield unity
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table of the ids below `ROWS` in three files; each of them has three row groups."""
    for first in range(0, ROWS, 2000):
        rows = pa.table({"id": range(first, first + 2000)})
        write_deltalake(tmp_path / "served/bucket/orders", rows, mode="append")
    return tmp_path / "served"


@pytest.fixture
def unity(orders: Path) -> Iterator[Unity]:
    with guarded(orders) as store, serving(store) as catalog:
        place = {"storage_location": "s3://bucket/orders", "table_id": "id-7", "data_source_format": "DELTA"}
        catalog.answers[f"{API}/tables/{NAME}"] = 200, place
        yield catalog


def ids(batches: Any) -> list[int]:
    return sorted(row for batch in batches for row in batch["id"].tolist())


@pytest.mark.parametrize("lasts", [3600, None], ids=["expiry told", "no expiry told"])
@pytest.mark.parametrize("worker", WORKERS.values(), ids=WORKERS)
def test_a_table_is_read_by_its_name_and_its_credentials_are_renewed(
    unity: Unity, worker: dict[str, Any], lasts: float | None
) -> None:
    unity.lasts = lasts
    reading = {"batch_size": 500, "prefetch_bytes": 1, "split_rows": 500, **worker}
    with closing(stream(Delta(URL), storage_options=unity.options, **reading)) as loader:
        assert [(method, path.removeprefix(API), body) for method, path, body in unity.asked] == [
            ("GET", f"/tables/{NAME}", None),
            ("POST", "/temporary-table-credentials", {"table_id": "id-7", "operation": "READ"}),
        ]
        batches = iter(loader)
        first = next(batches)
        unity.store.admitted.clear()
        assert ids([first, *batches]) == list(range(ROWS))
        assert unity.loads == 2
        unity.store.admitted.clear()
        assert ids(loader) == list(range(ROWS))
        assert unity.loads == 3


def test_the_log_is_read_with_credentials_that_are_valid_then(unity: Unity, orders: Path) -> None:
    """deltalake cannot ask: they are asked for before, if half of their time is over or nobody knows."""
    for lasts in (0.0, None):
        unity.lasts = lasts
        loader = stream(Delta(URL), storage_options=unity.options)
        unity.store.admitted.clear()
        write_deltalake(orders / "bucket/orders", pa.table({"id": [ROWS]}), mode="append")
        assert loader.advance()
        assert len(ids(loader)) == DeltaTable(orders / "bucket/orders").to_pyarrow_table().num_rows
    unity.lasts = 3600
    loader, loads = stream(Delta(URL), storage_options=unity.options), unity.loads
    assert not loader.advance()
    assert unity.loads == loads


def test_a_version_is_chosen_as_of_a_path(unity: Unity) -> None:
    assert ids(stream(Delta(URL, version=0), storage_options=unity.options)) == list(range(2000))
    source = Delta(URL, version=1)
    assert ids(stream(source.to_dict(), storage_options=unity.options)) == list(range(4000))


def test_the_catalog_is_found_in_the_environment(unity: Unity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", unity.address)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    assert ids(stream(Delta(URL), storage_options={"AWS_ENDPOINT_URL": unity.store.endpoint})) == list(range(ROWS))
    with pytest.raises(CatalogError, match="refuses: 401 UNAUTHENTICATED no such token") as caught:
        stream(Delta(URL), storage_options={**unity.options, "DATABRICKS_TOKEN": "dapi-OTHER-0123456789"})
    assert "OTHER" not in str(caught.value)


def test_a_table_on_the_local_disk_needs_no_credentials(unity: Unity, orders: Path) -> None:
    unity.answers[f"{API}/tables/{NAME}"] = 200, {"storage_location": f"file://{orders}/bucket/orders", "table_id": "7"}
    assert ids(stream(Delta(URL), storage_options={"databricks_host": unity.address, "databricks_token": TOKEN}))
    assert unity.loads == 0


def test_the_users_own_credentials_take_precedence(unity: Unity) -> None:
    unity.store.admit("own", "bucket/orders")
    own = {**unity.options, "AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "any", "allow_http": "true"}
    assert ids(stream(Delta(URL), storage_options=own)) == list(range(ROWS))
    assert unity.loads == 0


def test_no_secret_is_in_a_state_or_a_description(unity: Unity) -> None:
    loader = stream(Delta(URL), storage_options=unity.options)
    shown = f"{loader.state_dict()} {loader.describe()} {loader.dataset!r} {loader.dataset.partitions}"
    assert "secret-of" not in shown
    assert TOKEN not in shown


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["uc://orders", "uc://sales.orders", "uc://a.b.c.d", "uc://a..c", "uc://a.b.c/d"])
def test_what_is_no_name_is_told_its_form(name: str) -> None:
    with pytest.raises(OptionError, match=r"expected uc://catalog\.schema\.table"):
        stream(Delta(name), storage_options={"databricks_host": "nowhere"})


def test_what_the_catalog_cannot_give_is_told_by_name(unity: Unity) -> None:
    def error(kind: type[Exception], answer: Any = None, name: str = URL) -> str:
        if answer is not None:
            unity.answers[f"{API}/tables/{NAME}"] = answer
        with pytest.raises(kind) as caught:
            stream(Delta(name), storage_options=unity.options)
        assert TOKEN not in str(caught.value)
        return str(caught.value)

    here = f"the catalog at {unity.address}"
    assert f"uc://a.b.c: {here} has no such table: 404 TABLE_DOES_NOT_EXIST" in error(
        DataNotFoundError, name="uc://a.b.c"
    )
    location = {"storage_location": "s3://bucket/orders", "table_id": "7"}
    assert "format ICEBERG, not of Delta Lake" in error(
        OptionError, (200, {**location, "data_source_format": "ICEBERG"})
    )
    assert "is a VIEW, which has no files" in error(OptionError, (200, {"table_type": "VIEW"}))
    assert "does not answer as a Unity Catalog does" in error(CatalogError, (200, []))
    refused = (403, {"error_code": "PERMISSION_DENIED", "message": "User lacks EXTERNAL USE SCHEMA."})
    unity.answers[f"{API}/temporary-table-credentials"] = refused
    message = error(CatalogError, (200, location))
    assert f"{here} refuses: 403 PERMISSION_DENIED User lacks EXTERNAL USE SCHEMA. Check its token" in message
    unity.answers[f"{API}/temporary-table-credentials"] = 200, {"gcp_oauth_token": {"oauth_token": "SECRETtoken0"}}
    message = error(OptionError)
    assert "gives credentials that deltalake, which reads the log, does not take (gcp_oauth_token)" in message
    assert "SECRET" not in message


def test_a_redirect_gets_no_token(unity: Unity) -> None:
    with serving(unity.store) as other:
        unity.answers[f"{API}/tables/{NAME}"] = 307, f"{other.address}{API}/tables/{NAME}"
        with pytest.raises(CatalogError, match=f"redirects to {HOST}: if you trust that host, name it instead"):
            stream(Delta(URL), storage_options=unity.options)
        assert other.asked == []


def test_options_are_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABRICKS_HOST", "DATABRICKS_WORKSPACE_URL", "UNITY_WORKSPACE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="DATABRICKS_HOST and DATABRICKS_TOKEN, or pass storage_options="):
        stream(Delta(URL))
    with pytest.raises(
        OptionError, match=r"'unity_client_secret' cannot be used here.* only 'databricks_host' and"
    ) as raised:
        stream(Delta(URL), storage_options={"UNITY_CLIENT_SECRET": "SECRET0123", "databricks_host": "nowhere"})
    assert "SECRET0" not in str(raised.value)
    with pytest.raises(OptionError, match=rf"is read by Delta\('{URL}'\)"):
        stream(URL)


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_a_table_whose_catalog_alone_knows_its_versions_is_told_the_other_way(
    unity: Unity, orders: Path, feature: str
) -> None:
    shutil.rmtree(orders / "bucket/orders")
    write_deltalake(orders / "bucket/orders", pa.table({"id": [1]}))
    log = orders / "bucket/orders/_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            features = {"readerFeatures": [feature], "writerFeatures": [feature]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(FileReadError, match=rf"requires {feature} .*Iceberg endpoint, as Iceberg\('schema\.table'"):
        stream(Delta(URL), storage_options=unity.options)
