"""A Hub on this machine: the requests that huggingface_hub's file system makes, for data sets with several commits."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Files = Mapping[str, bytes]  # path in the repository -> content


@dataclass
class Hub:
    """The repositories of a server.

    Attributes:
        commits: id of a commit -> its files.
        branches: (repository, branch) -> id of its commit.
        token: what a request must bring.
        requests: how many there were of each kind.
        faults: statuses to answer with next.
        next_page: where listings say that their second half is; {path} and {query} are those of the request.
        tokens: the headers with tokens that were sent.
    """

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    token: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    faults: list[int] = field(default_factory=list)
    endpoint: str = ""
    next_page: str = ""
    tokens: list[str | None] = field(default_factory=list)

    def commit(self, files: Files, repository: str = "org/name", branch: str = "main") -> str:
        """Make these files the newest commit of a branch; returns its id."""
        commit = f"{len(self.commits) + 1:040x}"
        self.commits[commit] = dict(files)
        self.branches[repository, branch] = commit
        return commit

    def at(self, repository: str, revision: str) -> str | None:
        """The id of the commit."""
        known = repository in {name for name, _ in self.branches}
        found = self.branches.get((repository, unquote(revision)), revision)
        return found if known and found in self.commits else None


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, url = self.served, urlsplit(self.path)
        hub.tokens.append(self.headers.get("Authorization"))
        if hub.faults:
            return self._send(hub.faults.pop(0), b"{}")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._missing("RepoNotFound", 401)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "datasets"]:
            repository, rest = "/".join(parts[2:4]), parts[4:]
            return self._api(repository, rest, "true" in parse_qs(url.query).get("recursive", [""])[0].lower())
        repository, commit, path = "/".join(parts[1:3]), parts[4], "/".join(parts[5:])
        found = hub.at(repository, commit)
        data = None if found is None else hub.commits[found].get(path)
        hub.requests["resolve"] += 1
        if data is None:
            return self._missing("EntryNotFound")
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._send(200, data)
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        piece = data[first : last + 1]
        return self._send(206, piece, {"Content-Range": f"bytes {first}-{first + len(piece) - 1}/{len(data)}"})

    def _api(self, repository: str, rest: list[str], recursive: bool) -> None:
        kind, revision, path = (rest or ["revision"])[0], (rest[1:2] or ["main"])[0], "/".join(rest[2:])
        commit = self.served.at(repository, revision)
        self.served.requests[kind] += 1
        if commit is None:
            known = repository in {name for name, _ in self.served.branches}
            return self._missing("RevisionNotFound" if known else "RepoNotFound")
        if kind == "revision":
            return self._json({"id": repository, "sha": commit, "private": False, "tags": [], "downloads": 0})
        tree = list(_tree(self.served.commits[commit], path, recursive))
        if not self.served.next_page:
            return self._json(tree)
        half, second = len(tree) // 2, "page=2" in self.path
        link = self.served.next_page.format(path=urlsplit(self.path).path, query=urlsplit(self.path).query)
        return self._json(
            tree[half:] if second else tree[:half], {} if second else {"Link": f'<{link}&page=2>; rel="next"'}
        )

    def _json(self, answer: Any, headers: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _missing(self, code: str, status: int = 404) -> None:
        self._send(status, b"{}", {"X-Error-Code": code})

    def _send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _tree(files: Files, folder: str, recursive: bool) -> Iterator[dict[str, Any]]:
    base, seen = f"{folder}/" if folder else "", set()
    for path, data in sorted(files.items()):
        if not path.startswith(base):
            continue
        below = path.removeprefix(base).split("/")
        for depth in range(1, len(below) if recursive else min(len(below), 2)):
            name = base + "/".join(below[:depth])
            if name not in seen:
                seen.add(name)
                yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        if recursive or len(below) == 1:
            yield {"type": "file", "oid": "1" * 40, "size": len(data), "path": path}
