"""What a new user gets wrong with tables: each a clear error of its own kind, and no secret in any of them."""

import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import Appended, Iceberg, IcebergDataset, StructuredDataset, stream
from torch_dataloader_utils.errors import (
    CatalogError,
    ColumnNotFoundError,
    DataLoaderUtilsError,
    DataNotFoundError,
    FileReadError,
    MissingExtraError,
    OptionError,
    SnapshotError,
    UnknownOptionError,
    UnsupportedTypeError,
)

SECRETS = ("hunter2", "s3cr3t", "t0ken", "AKIAVERY")
CREDENTIALS = {
    "credential": "client:s3cr3t",
    "token": "t0ken",
    "s3.access-key-id": "AKIAVERY",
    "s3.secret-access-key": "hunter2",
}


def open_table(table: Any, **options: Any) -> tuple[Any, IcebergDataset]:
    return IcebergDataset.create_dataloader(table, **{"num_ranks": 1, "rank": 0, **options})


def error_of(call: Callable[[], Any], kind: type[DataLoaderUtilsError]) -> str:
    """What the user sees: the message, once the error is of this kind and travels to other processes."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
    return str(error)


def shown(error: BaseException) -> str:
    """All that a traceback prints of an error, without the lines of source."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()) + repr(error)


@pytest.fixture
def numbers(catalog: Catalog) -> Table:
    """A table of one row, with one snapshot."""
    schema = pa.schema({"id": pa.int64(), "s": pa.string()})
    table = catalog.create_table("ns.numbers", schema=schema)
    table.append(pa.table({"id": [1], "s": ["a"]}, schema=schema))
    return table


@pytest.fixture
def closed_port() -> int:
    """A port at which nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class _Refuses(BaseHTTPRequestHandler):
    """A catalog that knows nobody, and repeats in its answer what it was told."""

    def do_GET(self) -> None:
        message = self.headers.get("Authorization", "")
        body = (
            f'{{"error": {{"message": "who is {message}?", "type": "NotAuthorizedException", "code": 401}}}}'.encode()
        )
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def refusing() -> Any:
    """The address of a catalog that refuses all."""
    server = HTTPServer(("127.0.0.1", 0), _Refuses)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


# ------------------------------------------------------------------------------------------------------- which table


def test_no_such_table(numbers: Table, tmp_path: Path) -> None:
    config = {"name": "local", **sql_config(tmp_path)}
    for name in ("ns.absent", "nowhere.numbers"):
        message = error_of(lambda name=name: open_table(name, catalog_config=config), DataNotFoundError)
        assert name in message
        assert "'local'" in message
    message = error_of(lambda: open_table("numbers", catalog_config=config), OptionError)
    assert "namespace.table" in message
    assert str(tmp_path) in error_of(lambda: open_table(tmp_path / "absent"), DataNotFoundError)


def test_a_name_without_a_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no configuration of this machine's user
    message = error_of(lambda: open_table("ns.numbers"), OptionError)
    assert "table='ns.numbers' without a catalog, so of the default one, 'default'" in message


def test_a_name_that_is_kept_under_another_catalogs_name(numbers: Table, tmp_path: Path) -> None:
    message = error_of(lambda: open_table("ns.numbers", catalog_config=sql_config(tmp_path)), DataNotFoundError)
    assert "it is 'name' beside 'uri'" in message


def test_a_path_and_a_catalog(numbers: Table, tmp_path: Path) -> None:
    config = {"name": "test", "token": "t0ken", **sql_config(tmp_path)}
    for path in (numbers.metadata_location, numbers.location(), Path("numbers"), "v1.metadata.json"):
        message = error_of(lambda path=path: open_table(path, catalog_config=config), OptionError)
        assert "a path needs no catalog" in message
        assert "Leave out catalog_config." in message
        assert "t0ken" not in message
        message = error_of(lambda path=path: Iceberg(path, catalog=config), OptionError)
        assert "Leave out catalog." in message
        assert "t0ken" not in message


def test_a_path_and_a_catalog_without_the_catalog(numbers: Table) -> None:
    given: dict[str, Any] = {"table": numbers.metadata_location, "catalog": {"type": "sql"}}
    with pytest.raises(OptionError, match=r"^catalog= with table=") as caught:
        Iceberg(**given)
    (remedy,) = caught.value.remedies
    loader = stream(Iceberg(**remedy.applied(given)), num_ranks=1, rank=0)
    assert [batch["id"].tolist() for batch in loader] == [[1]]


def test_a_folder_that_is_called_as_a_table_in_a_catalog(
    numbers: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ns.numbers").mkdir()
    monkeypatch.chdir(tmp_path)
    loader, _ = open_table("ns.numbers", catalog_config={"name": "test", **sql_config(tmp_path)})
    assert [batch["id"].tolist() for batch in loader] == [[1]]


@pytest.mark.skipif(find_spec("thrift") is not None, reason="the client of Hive's metastore is installed")
def test_a_catalog_whose_client_is_not_installed(closed_port: int) -> None:
    config = {"type": "hive", "uri": f"thrift://127.0.0.1:{closed_port}"}
    assert "pyiceberg[hive]" in error_of(lambda: open_table("ns.t", catalog_config=config), MissingExtraError)


@pytest.mark.skipif(find_spec("thrift") is None, reason="the client of Hive's metastore is not installed")
def test_a_hive_metastore_that_is_not_there(closed_port: int) -> None:
    config = {"type": "hive", "name": "far", "uri": f"thrift://127.0.0.1:{closed_port}"}
    message = error_of(lambda: open_table("ns.t", catalog_config=config), CatalogError)
    assert "'far'" in message
    assert str(closed_port) in message


@pytest.mark.parametrize("table", [None, 5, "", ["ns.numbers"], b"ns.numbers"])
def test_what_is_no_table(table: Any) -> None:
    assert "table=" in error_of(lambda: open_table(table), OptionError)


@pytest.mark.parametrize("catalog", ["sqlite://t0ken", "", 5, ["t0ken"], {5: "t0ken"}, object()])
def test_what_is_no_catalog(catalog: Any) -> None:
    message = error_of(lambda: open_table("ns.t", catalog_config=catalog), OptionError)
    assert "catalog: expected the name of a catalog" in message
    assert "t0ken" not in message


# ------------------------------------------------------------------------------------------------- unreachable, denied


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{}", "http://user:hunter2@127.0.0.1:{}/t0ken"])
def test_a_catalog_that_is_not_there(closed_port: int, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    config = {"name": "far", "type": "rest", "uri": uri.format(closed_port), **CREDENTIALS}
    begin = time.monotonic()
    with caplog.at_level(logging.DEBUG, "torch_dataloader_utils"), pytest.raises(CatalogError) as caught:
        open_table("ns.numbers", catalog_config=config)
    assert time.monotonic() - begin < 60
    assert "'far'" in str(caught.value)
    text = shown(caught.value) + caplog.text
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("given", [["token"], ["credential"], list(CREDENTIALS)])
def test_wrong_credentials(refusing: str, given: list[str]) -> None:
    config = {"name": "far", "type": "rest", "uri": refusing, **{name: CREDENTIALS[name] for name in given}}
    with pytest.raises(CatalogError, match="catalog 'far'") as caught:
        open_table("ns.numbers", catalog_config=config)
    text = shown(caught.value)
    assert not [secret for secret in SECRETS if secret in text]
    pickle.loads(pickle.dumps(caught.value))


def test_wrong_credentials_of_a_database(tmp_path: Path) -> None:
    config = {"name": "far", "type": "sql", "uri": f"sqlite:///{tmp_path}/none/db?password=hunter2", **CREDENTIALS}
    with pytest.raises(CatalogError, match="catalog 'far'") as caught:
        open_table("ns.numbers", catalog_config=config)
    assert not [secret for secret in SECRETS if secret in shown(caught.value)]


def test_secrets_of_a_catalog_are_nowhere(numbers: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"name": "test", **sql_config(tmp_path), **CREDENTIALS}
    with caplog.at_level(logging.DEBUG, "torch_dataloader_utils"):
        loader, dataset = open_table("ns.numbers", catalog_config=config)
        assert [batch["id"].tolist() for batch in loader] == [[1]]
        message = error_of(
            lambda: open_table("ns.numbers", catalog_config=config, filters="nope > 1"), ColumnNotFoundError
        )
        message += error_of(lambda: open_table("ns.absent", catalog_config=config), DataNotFoundError)
        message += error_of(lambda: open_table("ns.numbers", catalog_config=config, snapshot_id=7), SnapshotError)
    source = dataset._source
    text = (
        message + caplog.text + repr((loader, dataset, source, dataset.snapshot, dataset.partitions, dataset.plan(0)))
    )
    data = pickle.dumps(dataset)
    for secret in SECRETS:
        assert secret not in text
        assert secret.encode() not in data


# ------------------------------------------------------------------------------------------------ columns and options


@pytest.mark.parametrize("filters", ["nope > 1", [("nope", ">", 1)], pc.field("nope") > 1])
@pytest.mark.parametrize("option", ["filters", "scan_filter"])
def test_an_unknown_column_in_a_filter(numbers: Table, option: str, filters: Any) -> None:
    message = error_of(lambda: open_table(numbers, **{option: filters}), ColumnNotFoundError)
    assert "nope" in message
    assert "id" in message


@pytest.mark.parametrize("filters", ["id >", "", "id = 'x'", [("id", "~", 1)], [("id", "=", "x")], 5])
def test_a_filter_that_is_none(numbers: Table, filters: Any) -> None:
    error_of(lambda: open_table(numbers, filters=filters), OptionError)


def test_unknown_columns(numbers: Table) -> None:
    message = error_of(lambda: open_table(numbers, columns=["id", "nope"]), ColumnNotFoundError)
    assert "nope" in message
    message = error_of(lambda: open_table(numbers, columns=["id", "_pos"]), ColumnNotFoundError)
    assert "metadata_columns=('_pos',)" in message
    assert "_nope" in error_of(lambda: open_table(numbers, metadata_columns=["_nope"]), OptionError)
    assert "version 3" in error_of(lambda: open_table(numbers, metadata_columns=["_row_id"]), OptionError)
    error_of(lambda: open_table(numbers, metadata_columns="_pos"), OptionError)


@pytest.mark.parametrize(
    ("name", "value"), [("format", "parquet"), ("schema", pa.schema([])), ("partitioning", "hive"), ("manifest", "m")]
)
def test_options_of_files_are_refused_by_name(numbers: Table, name: str, value: Any) -> None:
    assert repr(name) in error_of(lambda: open_table(numbers, **{name: value}), UnknownOptionError)


@pytest.mark.parametrize(
    "given", [{"catalog_config": {"token": "t0ken"}}, {"snapshot_id": 1}, {"scan_filter": "id > 1"}]
)
def test_options_of_tables_are_refused_for_files(tmp_path: Path, given: dict[str, Any]) -> None:
    message = error_of(lambda: StructuredDataset.create_dataloader(tmp_path, **given), UnknownOptionError)
    assert "IcebergDataset" in message
    assert "t0ken" not in message


def test_a_misspelled_option(numbers: Table) -> None:
    assert "'snapshot_id'" in error_of(lambda: open_table(numbers, snapshot=1), UnknownOptionError)
    assert "takes snapshot_id= or as_of=" in error_of(lambda: open_table(numbers, version=1), UnknownOptionError)


def test_a_pattern_that_matches_no_column(numbers: Table) -> None:
    message = error_of(lambda: open_table(numbers, columns=["id", "_p*"]), ColumnNotFoundError)
    assert "no column matches '_p*'" in message


@pytest.mark.parametrize("kind", ["variant", "geometry"])
def test_a_type_that_cannot_be_read_matters_only_where_it_is_read(numbers: Table, kind: str) -> None:
    path = Path(numbers.metadata_location.removeprefix("file://"))
    text = path.read_text()
    assert '"type":"string"' in text
    path.write_text(text.replace('"type":"string"', f'"type":"{kind}"'))
    for options, error in (
        ({}, UnsupportedTypeError),
        ({"columns": ["s"]}, UnsupportedTypeError),
        ({"columns": ["i*", "s*"]}, UnsupportedTypeError),
        ({"columns": ["id"], "filters": "s is null"}, ColumnNotFoundError),
    ):
        message = error_of(lambda options=options: open_table(path, **options), error)
        assert "'s'" in message
        assert kind in message
    for columns in (["id"], ["i*"]):
        loader, _ = open_table(path, columns=columns)
        assert [batch["id"].tolist() for batch in loader] == [[1]]


# ---------------------------------------------------------------------------------------------------------- snapshots


@pytest.mark.parametrize(
    "given",
    [{"snapshot_id": 1, "ref": "main"}, {"ref": "main", "as_of": 5}, {"snapshot_id": 1, "appended": Appended(2)}],
)
def test_two_choices_of_a_snapshot(numbers: Table, given: dict[str, Any]) -> None:
    message = error_of(lambda: open_table(numbers, **given), OptionError)
    assert all(name in message for name in given)


@pytest.mark.parametrize("as_of", [datetime(2030, 1, 1), "2030-01-01", "yesterday", 1.5, True])
def test_a_time_that_is_none(numbers: Table, as_of: Any) -> None:
    assert "as_of" in error_of(lambda: open_table(numbers, as_of=as_of), OptionError)


def test_a_time_before_the_table(numbers: Table) -> None:
    assert "no snapshot yet" in error_of(lambda: open_table(numbers, as_of=0), SnapshotError)


def test_an_expired_snapshot_is_named(numbers: Table, catalog: Catalog) -> None:
    old = numbers.current_snapshot().snapshot_id
    numbers.append(pa.table({"id": [2], "s": ["b"]}))
    new = numbers.current_snapshot().snapshot_id
    with catalog.load_table("ns.numbers").maintenance.expire_snapshots() as expire:
        expire.by_id(old)
    message = error_of(lambda: open_table(catalog.load_table("ns.numbers"), snapshot_id=old), SnapshotError)
    assert str(old) in message
    assert str(new) in message
    message = error_of(lambda: open_table(numbers, ref="nope"), SnapshotError)
    assert "'nope'" in message
    assert "main" in message


def test_only_appends_are_read_between_snapshots(numbers: Table) -> None:
    first = numbers.current_snapshot().snapshot_id
    numbers.append(pa.table({"id": [2], "s": ["b"]}))
    loader, _ = open_table(numbers, appended=Appended(first))
    assert [batch["id"].tolist() for batch in loader] == [[2]]
    numbers.delete("id = 1")
    deleting = numbers.current_snapshot().snapshot_id
    message = error_of(lambda: open_table(numbers, appended=Appended(first)), SnapshotError)
    assert str(deleting) in message


# -------------------------------------------------------------------------------------------------------------- files


def test_a_missing_or_damaged_data_file_is_named(numbers: Table) -> None:
    (task,) = numbers.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    whole = path.read_bytes()
    for left in (whole[: len(whole) // 2], b"x" * len(whole), None):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(left)
        for options in ({}, {"split_bytes": 8}):  # what is read when it is planned, and when it is read
            message = error_of(lambda options=options: list(open_table(numbers, **options)[0]), FileReadError)
            assert path.name in message


def test_a_missing_manifest_list_is_an_error_of_its_snapshot(numbers: Table) -> None:
    first = numbers.current_snapshot()
    numbers.append(pa.table({"id": [2], "s": ["b"]}))
    Path(first.manifest_list.removeprefix("file://")).unlink()
    message = error_of(lambda: open_table(numbers, snapshot_id=first.snapshot_id), FileReadError)
    assert str(first.snapshot_id) in message
    assert sorted(i for batch in open_table(numbers)[0] for i in batch["id"].tolist()) == [1, 2]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("catalog:\n  prod: {type: rest, token: SECRETtoken12345}\n", "line 2"),
        ("catalog:\n  prod:\n    token: SECRETtoken12345\n    token: SECRETtoken12345\n", "line 4"),
        ("catalog:\n  prod:\n  - [SECRETtoken12345\n", "line 3"),
    ],
)
def test_a_configuration_that_pyiceberg_cannot_read_is_named_without_its_text(
    tmp_path: Path, text: str, line: str
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    script = "from torch_dataloader_utils import IcebergDataset as I; I.create_dataloader('a.b')"
    environment = {**os.environ, "PYICEBERG_HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "SECRET" not in ended.stderr
    assert f"OptionError: {tmp_path}/.pyiceberg.yaml, {line}: pyiceberg cannot read" in ended.stderr
