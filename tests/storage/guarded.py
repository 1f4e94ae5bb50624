"""A store of S3's interface on loopback that lets in those who are on its list, each to a part of it.

It serves a local folder for reading, checks the access key of each request (not the signature), and lists whom it
refused. A key can be taken off the list while others read.

with guarded(folder) as store:
    store.admit("key", "bucket/table")
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.ports import HOST

_REGION = "us-east-1"


@dataclass
class GuardedStore:
    """A running store.

    Attributes:
        endpoint: its address.
        folder: what it serves: the folders in it are its buckets.
        admitted: access key -> the path below which it may read, with the bucket.
        refusal: status and code of the answer to others.
        served: (path, access key) of each request for an object that was answered.
        refused: of each that was not.
    """

    endpoint: str
    folder: Path
    admitted: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] = (403, "AccessDenied")
    served: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def admit(self, key: str, below: str) -> dict[str, str]:
        """Let a key in: the properties of a FileIO that has it."""
        self.admitted[key] = below
        return self.properties(key)

    def properties(self, key: str) -> dict[str, str]:
        """What pyiceberg's FileIO needs to come with this key."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": key,
            "s3.secret-access-key": f"secret-of-{key}",
            "s3.region": _REGION,
        }

    def lets_in(self, key: str, path: str) -> bool:
        """Whether a key may read a path."""
        below = self.admitted.get(key)
        allowed = below is not None and (path == below or path.startswith(f"{below}/"))
        (self.served if allowed else self.refused).append((path, key))
        return allowed


@contextmanager
def guarded(folder: Path) -> Iterator[GuardedStore]:
    """A store that serves the folders in `folder` as buckets, until the block ends."""

    class Bound(_Requests):
        store: GuardedStore

    with ThreadingHTTPServer((HOST, 0), Bound) as server:
        server.daemon_threads = True
        Bound.store = GuardedStore(f"http://{HOST}:{server.server_port}", folder)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Bound.store
        finally:
            server.shutdown()
            thread.join()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: GuardedStore

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path).strip("/"), parse_qs(parts.query)
        place = query.get("prefix", [""])[0] if "list-type" in query else ""
        named = f"{path}/{place}".strip("/")
        if not self.store.lets_in(self._key(), named):
            status, code = self.store.refusal
            self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
        elif "list-type" in query:
            self._answer(200, self._listed(path, place, query.get("delimiter", [""])[0]).encode())
        elif not (self.store.folder / path).is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._object((self.store.folder / path).read_bytes())

    do_HEAD = do_GET

    def _key(self) -> str:
        found = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization") or "")
        return found[1] if found else ""

    def _object(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        facts = {"ETag": f'"{md5(data).hexdigest()}"', "Last-Modified": formatdate(0, usegmt=True)}
        if wanted is None:
            self._answer(200, data, facts)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data))
        self._answer(206, data[start:stop], {**facts, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    def _listed(self, bucket: str, prefix: str, delimiter: str) -> str:
        root = self.store.folder / bucket
        keys = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        inside = {key: key[len(prefix) :].find(delimiter) if delimiter else -1 for key in keys}
        folders = sorted({key[: len(prefix) + at + 1] for key, at in inside.items() if at >= 0})
        objects = [key for key, at in inside.items() if at < 0]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{(root / key).stat().st_size}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag></Contents>"
            for key in objects
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in folders)
        return (
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(objects) + len(folders)}</KeyCount>"
            f"<MaxKeys>100000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        )

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/xml", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the log is no part of a test's output."""
