"""A web server on loopback that refuses, lies and repeats the secrets it was sent, as real ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import unquote


class Hostile(BaseHTTPRequestHandler):
    """Answers by the first folder of the path: 401, 403, 404, damaged, good."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        kind = next((part for part in path.split("/") if part in ("401", "403", "404", *self.files)), "403")
        if kind in self.files:
            self._send(206 if self.headers.get("Range") else 200, self._ranged(self.files[kind]))
        else:
            told = f"{self.path} {dict(self.headers)}"
            xml = f"<Error><Code>InvalidAccessKeyId</Code><Message>who is {told}?</Message></Error>"
            json = '{"error": {"message": "who is %s?", "type": "NotAuthorizedException", "code": 401}}'
            rest = "/v1/" in path
            self._send(401 if rest else int(kind), (json % told.replace('"', "'") if rest else xml).encode())

    do_POST = do_PUT = do_GET

    def do_HEAD(self) -> None:
        self.do_GET()

    def _ranged(self, data: bytes) -> bytes:
        self.whole = data
        span = self.headers.get("Range", "").removeprefix("bytes=")
        if not span:
            return data
        first, _, last = span.partition("-")
        self.begin = int(first) if first else len(data) - int(last)
        return data[self.begin : int(last) + 1 if first and last else None]

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status, f"no {self.path} for {self.headers.get('Authorization')}" if status > 400 else None)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {self.begin}-{self.begin + len(body) - 1}/{len(self.whole)}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def hostile_server(good: bytes) -> Iterator[int]:
    """A context with the server; gives its port."""

    Hostile.files = {
        "good": good,
        "damaged": good[:40] + b"\xff" * (len(good) - 80) + good[-40:],
        "garbage": b"no" * 99,
    }

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
