"""HTTP servers that misbehave, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# What a server does to its n-th request, before it serves it: an answer (status, headers), "reset", or None to serve.
Behave = Callable[[int, Any], tuple[int, dict[str, str]] | str | None]


class Handler(BaseHTTPRequestHandler):
    """Serves a folder by ranges, with a page of links for a folder."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, behave: Behave, count: list[int], *given: Any) -> None:
        self.folder, self.behave, self.count = folder, behave, count
        super().__init__(*given)

    def do_GET(self) -> None:
        self.count[0] += 1
        what = self.behave(self.count[0], self.headers)
        if what == "reset":
            self.close_connection = True
        elif isinstance(what, tuple):
            self._answer(what[0], b"", what[1])
        else:
            self._serve(self.folder / self.path.lstrip("/"))

    do_HEAD = do_GET

    def _serve(self, path: Path) -> None:
        if path.is_dir():
            names = "".join(f'<a href="{entry.name}">{entry.name}</a>' for entry in sorted(path.iterdir()))
            return self._answer(200, names.encode(), {"Content-Type": "text/html"})
        if not path.is_file():
            return self._answer(404, b"", {})
        data, headers = path.read_bytes(), {"ETag": f'"{path.stat().st_mtime_ns}"', "Accept-Ranges": "bytes"}
        if (given := self.headers.get("Range")) is None:
            return self._answer(200, data, headers)
        first, last = given.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
        return self._answer(206, data[begin : end + 1], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet."""


def serve(
    folder: Path, behave: Behave = lambda number, headers: None, port: int = 0
) -> tuple[str, ThreadingHTTPServer]:
    """The URL at which a thread serves the folder, and the server."""
    server = Server(("127.0.0.1", port), partial(Handler, folder, behave, [0]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", server
