"""Stores that accept connections and then hang: an error that names what was waited for, within `timeout`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torch_dataloader_utils import Processes, StructuredDataset
from torch_dataloader_utils.errors import BatchTimeoutError

ROWS = 40_000
TIMEOUT = 1.5  # seconds
SLACK = 20.0  # seconds: the machine may be busy

PROCESSES = {"num_workers": 1, "worker_mode": Processes(context="fork")}


class HangingStore(ThreadingHTTPServer):
    """Serves files by HTTP, with ranges.

    Attributes:
        hangs: the requests that are not answered: their method, and whether it is after some bytes of the body.
        after: how many of these requests are answered before.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.hangs: tuple[str, bool] | None = None
        self.after = 0
        self.released = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def hang(self, method: str, amid: bool = False, after: int = 0) -> None:
        self.hangs, self.after = (method, amid), after

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has gone."""


class Handler(BaseHTTPRequestHandler):
    server: HangingStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hangs = self.hangs()
        if hangs and self.server.hangs == (self.command, False):
            self.server.released.wait()
            return
        path = self.server.folder / self.path.strip("/")
        data = self.index() if path.is_dir() else path.read_bytes()
        size, span = len(data), self.headers.get("Range")
        first, last = 0, size - 1
        if span:
            first, _, end = span.removeprefix("bytes=").partition("-")  # type: ignore[assignment]
            first, last = int(first), min(int(end or last), last)
        self.send_response(206 if span else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if span:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command == "GET":
            body = data[first : last + 1]
            self.wfile.write(body[: len(body) // 2] if hangs else body)
            if hangs:
                self.server.released.wait()

    def hangs(self) -> bool:
        if self.server.hangs is None or self.command != self.server.hangs[0]:
            return False
        self.server.after -= 1
        return self.server.after < 0

    def index(self) -> bytes:
        names = sorted(path.name for path in self.server.folder.iterdir())
        return "".join(f'<a href="{name}">{name}</a>' for name in names).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    table = pa.table({"id": range(ROWS)})
    options: dict[str, Any] = {"row_group_size": 10_000, "compression": "none", "use_dictionary": False}
    pq.write_table(table, folder / "rows.parquet", **options)
    with (folder / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": row}) + "\n" for row in range(1000))
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[HangingStore]:
    with HangingStore(folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


def loader_of(store: HangingStore, name: str, **options: Any) -> Any:
    given = {"timeout": TIMEOUT, "batch_size": 1000, "split_rows": 10_000}
    return StructuredDataset.create_dataloader(store.url(name), **given | options)[0]


@pytest.mark.parametrize(
    ("method", "amid", "name", "what"),
    [
        ("HEAD", False, "rows.parquet", "listing .*rows.parquet"),  # the size of a file that was named
        ("GET", False, "", "listing http"),  # the index page of a folder
        ("GET", True, "", "listing http"),
        ("GET", False, "rows.parquet", "reading .*rows.parquet"),  # the footer
        ("GET", True, "rows.parquet", "reading .*rows.parquet"),
        ("GET", False, "rows.jsonl", "reading .*rows.jsonl"),  # its first lines, for the schema
    ],
)
def test_construction_waits_no_longer_than_timeout(
    store: HangingStore, method: str, amid: bool, name: str, what: str
) -> None:
    store.hang(method, amid)
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=rf"{what}.*: the store did not answer within timeout=1.5 s"):
        loader_of(store, name, format="parquet" if name == "" else None)
    assert time.monotonic() - began < TIMEOUT + SLACK


class Unwritable(MemoryFileSystem):  # type: ignore[misc]
    """A store that takes no file of one name."""

    store: ClassVar[dict[str, Any]] = {}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode and "kept" in path:
            threading.Event().wait()
        return super()._open(path, mode, **options)


def test_writing_a_manifest_waits_no_longer_than_timeout() -> None:
    store = Unwritable(skip_instance_cache=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1]}), sink)
    store.pipe_file("/data/x.parquet", sink.getvalue().to_pybytes())
    begun = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"writing .*kept: the store did not answer within timeout=1.5 s"):
        StructuredDataset.create_dataloader(
            "memory://data", filesystem=store, manifest="memory://kept", timeout=TIMEOUT, batch_size=1
        )
    assert time.monotonic() - begun < TIMEOUT + SLACK


@pytest.mark.parametrize("amid", [False, True])
def test_counting_waits_no_longer_than_timeout(store: HangingStore, amid: bool) -> None:
    plain = loader_of(store, "rows.jsonl", split_rows=None)
    assert sum(len(batch["id"]) for batch in plain) == 1000
    store.hang("GET", amid, after=1)  # the request for the first lines is answered
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"reading .*rows.jsonl.*: the store did not answer within timeout=1.5"):
        loader_of(store, "rows.jsonl", split_rows=None, count_rows=True)
    assert time.monotonic() - began < TIMEOUT + SLACK


@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize("driver", [{"num_workers": 0}, {"num_workers": None}, {"num_workers": 2}, PROCESSES], ids=str)
def test_a_pass_waits_no_longer_than_timeout_and_the_next_one_has_every_row(
    store: HangingStore, driver: dict[str, Any], amid: bool
) -> None:
    loader = loader_of(store, "rows.parquet", **driver)
    store.hang("GET", amid)
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"reading .*rows.parquet"):
        list(loader)
    assert time.monotonic() - began < TIMEOUT + SLACK
    store.hangs = None
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(ROWS))
    loader.dataset.close()


def test_without_a_limit_a_slow_store_is_waited_for(store: HangingStore) -> None:
    loader = loader_of(store, "rows.parquet", timeout=0, num_workers=0)
    assert sum(len(batch["id"]) for batch in loader) == ROWS


def test_the_exit_of_the_interpreter_waits_for_no_hanging_store(store: HangingStore, tmp_path: Path) -> None:
    """The default timeout is ten minutes: a user who ends the program does not wait for it."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            from torch_dataloader_utils import StructuredDataset

            loader, _ = StructuredDataset.create_dataloader({store.url("rows.parquet")!r}, split_rows=10_000)
            from threading import Thread
            Thread(target=lambda: next(iter(loader)), daemon=True).start()
            time.sleep(3)
            print("ends", flush=True)
            """
        )
    )
    # Planning needs one request for the footer, and reading hangs.
    store.hang("GET", after=1)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ends\n"
        began = time.monotonic()
        assert job.wait(timeout=60) == 0
    assert time.monotonic() - began < 10 + SLACK  # decode threads are waited for, at most 10 seconds


def test_opening_an_archive_of_a_hanging_store_waits_no_longer_than_timeout(store: HangingStore, folder: Path) -> None:
    """The client of an archive reads it when it is created."""
    with zipfile.ZipFile(folder / "rows.zip", "w") as archive:
        archive.writestr("a.csv", "id\n1\n")
    url = f"zip://a.csv::{store.url('rows.zip')}"
    assert [batch["id"].tolist() for batch in StructuredDataset.create_dataloader(url, timeout=TIMEOUT)[0]] == [[1]]
    store.hang("GET")
    begin = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"opening zip://a\.csv::.*did not answer within timeout=1\.5 s"):
        StructuredDataset.create_dataloader(url, timeout=TIMEOUT, storage_options={"http": {"block_size": 10}})
    assert time.monotonic() - begin < TIMEOUT + SLACK
