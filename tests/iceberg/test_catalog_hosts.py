"""A REST catalog's token, secret and headers go to the hosts in its configuration, wherever it sends its client."""

from __future__ import annotations

import gc
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.ports import HOST
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import CatalogError, DataNotFoundError
from torch_dataloader_utils.iceberg import clients

# pyiceberg leaves the connections of its session to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Connections are collected here, not with a warning within some later test of another module."""
    yield
    gc.collect()


class Catalog(http.server.BaseHTTPRequestHandler):
    """Answers with what is planned for a path: a value, or a location to redirect to."""

    protocol_version = "HTTP/1.1"
    answers: dict[str, Any]
    seen: list[str]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.seen.append(f"{self.path} {dict(self.headers.items())} {body}")
        answer = self.answers.get(urlsplit(self.path).path)
        if isinstance(answer, str):
            self.send_response(307)
            self.send_header("Location", answer)
            content = b"moved"
        else:
            self.send_response(404 if answer is None else 200)
            missing = {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
            content = json.dumps(missing if answer is None else answer).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET
    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def catalog(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """A running catalog: its address, and what it was asked."""
    seen: list[str] = []
    running = http.server.ThreadingHTTPServer(
        (HOST, 0), type("Handler", (Catalog,), {"answers": answers, "seen": seen})
    )
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{running.server_address[1]}", seen
    finally:
        running.shutdown()
        running.server_close()


CONFIG = {"/v1/config": {"defaults": {}, "overrides": {}}}
TOKEN = {"access_token": "fresh", "token_type": "bearer", "expires_in": 3600}


def load(uri: str, **given: str) -> None:
    config = {"name": "hosts", "type": "rest", "uri": uri, "header.X-Api-Key": "mellon", **given}
    IcebergDataset.create_dataloader("a.b", catalog_config=config, num_ranks=1, rank=0)


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/v1/config", {"token": "sesame"}),
        ("/v1/namespaces/a/tables/b", {"token": "sesame"}),
        ("/v1/oauth/tokens", {"credential": "id:sesame"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*OAuth2:DeprecationWarning")
def test_a_redirect_to_another_host_gets_nothing(path: str, given: dict[str, str]) -> None:
    with catalog({**CONFIG, "/v1/oauth/tokens": TOKEN}) as (other, there):
        answers: dict[str, Any] = {**CONFIG, "/v1/oauth/tokens": TOKEN}
        with catalog({**answers, path: f"{other}{path}"}) as (first, here):
            with pytest.raises(CatalogError, match=f"it redirects to {other}.*set 'uri'") as caught:
                load(first, **given)
            assert "sesame" not in str(caught.value)
        assert any("sesame" in asked for asked in here)
        assert there == []


def test_the_connection_of_a_refused_answer_is_closed() -> None:
    answers: list[requests.Response] = []
    with catalog({"/v1/config": "http://elsewhere.test/v1/config"}) as (uri, _), requests.Session() as session:
        session.hooks["response"] += [lambda answer, **_: answers.append(answer), clients._stay]
        with pytest.raises(CatalogError, match="it redirects to"):
            session.get(f"{uri}/v1/config")
        assert answers[0].raw.closed


@pytest.mark.parametrize("name", ["uri", "oauth2-server-uri"])
@pytest.mark.parametrize("part", ["defaults", "overrides"])
@pytest.mark.filterwarnings("ignore:.*OAuth2:DeprecationWarning")
def test_a_configuration_that_names_another_host_is_refused(name: str, part: str) -> None:
    with catalog({**CONFIG, "/v1/oauth/tokens": TOKEN}) as (other, there):
        config = {"defaults": {}, "overrides": {}, part: {name: other}}
        with catalog({"/v1/config": config, "/v1/oauth/tokens": TOKEN}) as (first, _):
            with pytest.raises((CatalogError, DataNotFoundError)) as caught:
                load(first, credential="id:sesame")
            # What the client has set, a default does not replace.
            assert (type(caught.value) is DataNotFoundError) == ((name, part) == ("uri", "defaults"))
        assert there == []


def test_a_redirect_within_the_host_is_followed() -> None:
    with catalog({**CONFIG, "/v1/namespaces/a/tables/b": "/v1/elsewhere"}) as (only, seen):
        with pytest.raises(DataNotFoundError, match="has no such table"):
            load(only, token="sesame")
        assert any(asked.startswith("/v1/elsewhere") and "mellon" in asked for asked in seen)
