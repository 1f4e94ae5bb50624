"""Real catalogs on loopback: a REST catalog with its object store, Glue, PostgreSQL; and one that vends credentials.

with rest_tables(folder) as service:
    IcebergDataset.create_dataloader("ns.t", catalog_config=service.config)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.ports import HOST, free_ports
from tests.storage import servers
from tests.storage.servers import BUCKET, ServerMissingError, Store, running

REGION = "us-east-1"
# What a client tells the vending catalog, and what it gets.
CLIENT_SECRET, TOKEN = "secret-of-the-client", "token-of-the-catalog"
_POSTGRES = "postgres"  # the user, the database and the program


@dataclass(frozen=True)
class Service:
    """A catalog that runs.

    Attributes:
        config: what `load_catalog` takes.
        store: where its tables are; None for the local disk.
        folder: of the server, where it is SeaweedFS.
    """

    config: Mapping[str, str]
    store: Store | None = None
    folder: Path | None = None

    @property
    def catalog(self) -> Catalog:
        """A new client."""
        return load_catalog("default", **self.config)


def s3_properties(store: Store) -> dict[str, str]:
    """What pyiceberg's FileIO needs to reach a store."""
    options = store.storage_options
    return {
        "s3.endpoint": options["endpoint_url"],
        "s3.access-key-id": options["key"],
        "s3.secret-access-key": options["secret"],
        "s3.region": REGION,
    }


@contextmanager
def rest_tables(folder: Path) -> Iterator[Service]:
    """SeaweedFS's REST catalog over its own S3; it asks for a secret (OAuth2) and checks signatures."""
    [port] = free_ports(1)
    with servers.seaweed(folder, port) as store:
        properties = s3_properties(store)
        key, secret = properties["s3.access-key-id"], properties["s3.secret-access-key"]
        client = boto3.client(
            "s3tables",
            endpoint_url=properties["s3.endpoint"],
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )
        client.create_table_bucket(name="wh1")
        client.close()
        catalog = {
            "type": "rest",
            "uri": f"http://{HOST}:{port}",
            "warehouse": "s3://wh1/",
            "credential": f"{key}:{secret}",
            "oauth2-server-uri": f"http://{HOST}:{port}/v1/oauth/tokens",
        }
        yield Service({**catalog, **properties}, store, folder)


def glue_tables(store: Store) -> Service:
    """moto's Glue, which runs with its S3."""
    catalog = {
        "type": "glue",
        "warehouse": store.url("glue"),
        "glue.endpoint": store.storage_options["endpoint_url"],
        "glue.region": REGION,
        "glue.access-key-id": "anybody",
        "glue.secret-access-key": "anything",
    }
    return Service({**catalog, **s3_properties(store)}, store)


def sqlite_tables(folder: Path, store: Store) -> Service:
    """A catalog in a SQLite file whose tables are in an object store."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/{folder.name}"}
    return Service({**catalog, **s3_properties(store)}, store)


@contextmanager
def postgres_tables(warehouse: Path) -> Iterator[Service]:
    """A catalog in a PostgreSQL server of our own; its tables are in the local folder `warehouse`."""
    home = Path(tempfile.mkdtemp(prefix="postgres"))  # the server's user must get there
    try:
        user = _unprivileged(home)
        data = home / "data"
        _postgres(user, "initdb", "-D", data, "-U", _POSTGRES, "-A", "trust", "--no-sync")
        [port] = free_ports(1)
        command = [*user, _postgres_program(_POSTGRES), "-D", data, "-p", port, "-h", HOST, "-k", home]
        with running(command, home, lambda: _postgres_answers(port)):
            uri = f"postgresql+psycopg2://{_POSTGRES}@{HOST}:{port}/{_POSTGRES}"
            try:
                yield Service({"type": "sql", "uri": uri, "warehouse": f"file://{warehouse}"})
            finally:  # killed, it would leave shared memory behind
                _postgres(user, "pg_ctl", "stop", "-D", data, "-m", "immediate")
    finally:
        shutil.rmtree(home)


def _unprivileged(home: Path) -> list[Any]:
    """How a command is begun: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    try:
        shutil.chown(home, _POSTGRES, _POSTGRES)
    except LookupError as error:
        raise ServerMissingError(f"there is no user {_POSTGRES!r} to run PostgreSQL as") from error
    return ["setpriv", f"--reuid={_POSTGRES}", f"--regid={_POSTGRES}", "--clear-groups"]


def _postgres_program(name: str) -> str:
    found = shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    if found is None:
        raise ServerMissingError(f"{name} is not installed: it comes with PostgreSQL")
    return found


def _postgres(user: list[Any], name: str, *options: Any) -> None:
    command = [*user, _postgres_program(name), *options]
    subprocess.run(command, check=True, capture_output=True, cwd="/")


def _postgres_answers(port: int) -> bool:
    done = subprocess.run([_postgres_program("pg_isready"), "-q", "-h", HOST, "-p", str(port)], check=False)
    return done.returncode == 0


ALONE = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
_OTHERS = [f"GET /v1/{{prefix}}/namespaces/{{namespace}}{rest}" for rest in ("", "/tables", "/tables/{table}")]


@dataclass(frozen=True)
class Vending(Service):
    """A REST catalog of one table.

    Attributes:
        asked: the requests that it got, such as "POST /v1/oauth/tokens".
        warehouses: for which its configuration was asked.
    """

    asked: list[str] = field(default_factory=list)
    warehouses: set[str | None] = field(default_factory=set)


@contextmanager
def vending(
    table: Table,
    credentials: Callable[[int], Mapping[str, str] | Sequence[tuple[str, Mapping[str, str]]] | None],
    alone: bool = False,
    signed: bool = False,
) -> Iterator[Vending]:
    """A REST catalog of one table that gives credentials of its own with each load: `credentials(0)`, `(1)`, ...

    Args:
        table: the table.
        credentials: those of a load, for the table, or as (prefix, properties), which come as `storage-credentials`;
            None: the catalog fails.
        alone: whether the catalog has a request for credentials alone.
        signed: whether requests are signed as those to AWS, instead of having a token.
    """
    loads = iter(range(1_000_000))
    asked: list[str] = []
    warehouses: set[str | None] = set()
    login = "AWS4-HMAC-SHA256 Credential=" if signed else f"Bearer {TOKEN}"

    def vended() -> dict[str, Any] | None:
        given = credentials(next(loads))
        if given is None:
            return None
        if not isinstance(given, Mapping):
            return {"storage-credentials": [{"prefix": prefix, "config": dict(own)} for prefix, own in given]}
        return {"config": dict(given), "storage-credentials": []}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            asked.append(f"GET {path}")
            if not (self.headers["Authorization"] or "").startswith(login):
                self._answer({}, 401)
            elif path.endswith("/v1/config"):
                warehouses.add(parse_qs(query).get("warehouse", [None])[0])
                self._answer({"defaults": {}, "overrides": {}, **({"endpoints": [*_OTHERS, ALONE]} if alone else {})})
            elif (given := vended()) is None:
                self._answer({"error": {"message": "out of order", "type": "any", "code": 500}}, 500)
            elif self.path.endswith("/credentials"):
                self._answer(given)
            else:
                metadata = json.loads(table.metadata.model_dump_json())
                self._answer({"metadata-location": table.metadata_location, "metadata": metadata, **given})

        def do_POST(self) -> None:
            asked.append(f"POST {self.path}")
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            known = form["client_secret"] == [CLIENT_SECRET]
            self._answer({"access_token": TOKEN, "token_type": "bearer"} if known else {}, 200 if known else 401)

        def _answer(self, answer: Mapping[str, Any], status: int = 200) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: the log is no part of a test's output."""

    with ThreadingHTTPServer((HOST, 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            uri = f"http://{HOST}:{server.server_port}"
            secret = {"credential": f"client:{CLIENT_SECRET}", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}
            yield Vending({"type": "rest", "uri": uri, **secret}, asked=asked, warehouses=warehouses)
        finally:
            server.shutdown()
            thread.join()
