"""Headers, passwords and cookies go to the server they were given for: not to one that it redirects to."""

from __future__ import annotations

import http.server
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ports import HOST
from torch_dataloader_utils import StructuredDataset

pytestmark = pytest.mark.filterwarnings("ignore:.*auth:DeprecationWarning")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and what fsspec's documentation names
    AUTH = aiohttp.BasicAuth("user", "mellon")
SECRETS = ("sesame", "Basic", "mellon")
GIVEN: dict[str, dict[str, Any]] = {
    "headers": {"headers": {"Authorization": "Bearer sesame", "X-Api-Key": "mellon", "Cookie": "id=sesame"}},
    "session headers": {"client_kwargs": {"headers": {"Authorization": "Bearer sesame", "X-Api-Key": "mellon"}}},
    "auth": {"auth": AUTH},
    "session auth": {"client_kwargs": {"auth": AUTH}},
    "cookies": {"cookies": {"id": "sesame"}},
    "session cookies": {"client_kwargs": {"cookies": {"id": "sesame"}}},
}


class Served(http.server.SimpleHTTPRequestHandler):
    """Files, and what was asked for them."""

    protocol_version = "HTTP/1.1"
    data: bytes
    target = ""
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.answer(body=self.command == "GET")

    do_HEAD = do_GET

    def answer(self, body: bool) -> None:
        self.seen.append(dict(self.headers.items()))
        if self.target:
            self.send_response(307)
            self.send_header("Location", self.target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range")
        start, stop = 0, len(self.data)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"1"')
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(self.data)}")
        self.end_headers()
        if body:
            self.wfile.write(self.data[start:stop])

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def server(data: bytes, target: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server of one file, or one that redirects to `target`: its address, and the headers of each request."""
    seen: list[dict[str, str]] = []
    handler = type("Handler", (Served,), {"data": data, "target": target, "seen": seen})
    running = http.server.ThreadingHTTPServer((HOST, 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{running.server_address[1]}", seen
    finally:
        running.shutdown()
        running.server_close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("redirects") / "x.parquet"
    pq.write_table(pa.table({"x": range(100)}), path)
    return path.read_bytes()


def rows(url: str, options: dict[str, Any]) -> list[int]:
    loader, _ = StructuredDataset.create_dataloader(
        url, storage_options=options, batch_size=100, num_workers=0, num_ranks=1, rank=0
    )
    return [row for batch in loader for row in batch["x"].tolist()]


@pytest.mark.parametrize("given", GIVEN)
def test_what_was_given_for_one_server_is_not_sent_to_another(given: str, data: bytes) -> None:
    options = GIVEN[given]
    with server(data) as (other, there), server(data, other) as (first, here):
        assert rows(f"{first}/x.parquet", options) == list(range(100))
    assert here
    assert there
    assert all(any(secret in str(headers) for secret in SECRETS) for headers in here)
    for headers in there:
        assert not any(secret in str(headers) for secret in SECRETS), headers
        assert not {"Authorization", "Cookie", "X-Api-Key"} & headers.keys()


def test_without_a_redirect_everything_arrives(data: bytes) -> None:
    for options in GIVEN.values():
        with server(data) as (only, seen):
            assert rows(f"{only}/x.parquet", options) == list(range(100))
        assert all(any(secret in str(headers) for secret in SECRETS) for headers in seen)


def test_an_archive_behind_a_redirect(data: bytes, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x.parquet", data)
    content = (tmp_path / "x.zip").read_bytes()
    options = {"http": {"headers": {"X-Api-Key": "mellon"}}}
    with server(content) as (other, there), server(content, other) as (first, here):
        assert rows(f"zip://x.parquet::{first}/x.zip", options) == list(range(100))
    assert all("mellon" in str(headers) for headers in here)
    assert there
    assert not any("mellon" in str(headers) for headers in there)
