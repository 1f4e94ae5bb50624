"""An HTTP proxy in front of a store that counts requests, makes them slow and makes some of them fail.

    with faulty(store, folder) as proxy:
        proxy.inject(Faults("truncated", every=10))
        ... read from proxy.store ...
        assert proxy.counts().faults > 0

It runs in a process of its own. Clients sign requests for the proxy's address, and it passes their `Host` header on, so
that signatures hold at the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, TCPConnector, hdrs, web
from yarl import URL

from tests.ports import HOST, free_ports
from tests.storage.servers import Store, answers, running

# Fault -> what is answered instead.
ANSWERS = {
    "slow down": (503, "SlowDown"),
    "unavailable": (503, "ServiceUnavailable"),
    "error": (500, "InternalError"),
    "forbidden": (403, "AccessDenied"),
    "missing": (404, "NoSuchKey"),
}
CONTROL = "/-/"  # no bucket is called "-"
# These belong to one connection, not to the answer.
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}


@dataclass(frozen=True)
class Faults:
    """What happens to reading requests (GET and HEAD).

    The choice of failing requests depends on the seed and on what is asked for the how-manieth time, not on when: so it
    is the same however threads race.

    Attributes:
        kind: a key of `ANSWERS`; "reset" (connection); "truncated" or "stalled" (half of the body, then the end of the
            connection, or that after `stall` seconds; what has no body passes); "silent" (nothing, and the end of the
            connection after `stall` seconds); or "" for none.
        every: one request in so many fails; with 1, all do.
        match: only requests whose path contains this.
        seed: of the choice.
        stall: seconds.
        latency: seconds that each request waits, whether it fails or not.
        rate: bytes a second of all bodies together; 0 for as many as come.
    """

    kind: str = ""
    every: int = 1
    match: str = ""
    seed: int = 0
    stall: float = 120.0
    latency: float = 0.0
    rate: float = 0.0

    def hit(self, asked: str, times: int) -> bool:
        """Whether this request fails, which is asked for the `times`-th time."""
        if not self.kind or self.match not in asked:
            return False
        digest = hashlib.blake2b(f"{self.seed} {times} {asked}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.every == 0


@dataclass
class Counts:
    """What went through since the faults were last set.

    Attributes:
        gets, heads, lists: requests by path of the object (of the bucket for lists), failed ones included.
        bytes: of bodies sent, by path.
        faults: failed requests by path.
    """

    gets: Counter[str] = field(default_factory=Counter)
    heads: Counter[str] = field(default_factory=Counter)
    lists: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, request: web.BaseRequest) -> None:
        """Count a request by its kind."""
        if request.method == hdrs.METH_HEAD:
            self.heads[request.path] += 1
        elif request.method == hdrs.METH_GET:
            kind = self.lists if {"list-type", "prefix", "comp"} & request.query.keys() else self.gets
            kind[request.path] += 1

    def of(self, name: str) -> dict[str, int]:
        """The sums over paths that contain `name`."""
        return {kind: sum(n for path, n in paths.items() if name in path) for kind, paths in vars(self).items()}


@dataclass(frozen=True)
class Proxy:
    """A running proxy: the store as clients reach it by the proxy, and the proxy's controls."""

    store: Store

    def inject(self, faults: Faults) -> None:
        """Let these faults happen from now on, and count from zero."""
        self._control("faults", json.dumps(asdict(faults)).encode())

    def counts(self) -> Counts:
        """What went through so far."""
        return Counts(**{kind: Counter(paths) for kind, paths in json.loads(self._control("counts")).items()})

    def _control(self, name: str, data: bytes | None = None) -> bytes:
        url = f"http://{HOST}:{self.store.port}{CONTROL}{name}"
        with urllib.request.urlopen(url, data, timeout=30) as answer:
            body: bytes = answer.read()
        return body


@contextmanager
def faulty(store: Store, folder: Path) -> Iterator[Proxy]:
    """A proxy in front of the store; without faults, until they are injected."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.storage.proxy", store.port, port]
    with running(command, folder, lambda: answers(port), PYTHONPATH=str(Path(__file__).parents[2])):
        proxy = Proxy(store.through(port))
        proxy.inject(Faults())  # the question whether it answers was counted, too
        yield proxy


# ------------------------------------------------------------------------------------------- in the proxy's process


class Handler:
    """Passes requests on to the server at `target`."""

    def __init__(self, target: int) -> None:
        self.target = f"http://{HOST}:{target}"
        self.faults, self.counts = Faults(), Counts()
        self.free = 0.0  # when the next byte may leave, with a rate
        self.times: Counter[str] = Counter()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request."""
        if request.path.startswith(CONTROL):
            return await self.control(request)
        faults, fault = self.faults, ""
        self.counts.add(request)
        if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
            asked = f"{request.method} {request.raw_path} {request.headers.get(hdrs.RANGE, '')}"
            self.times[asked] += 1
            if faults.hit(asked, self.times[asked]):
                fault = faults.kind
        await asyncio.sleep(faults.latency)
        if fault == "silent":
            await asyncio.sleep(faults.stall)
        if fault in ANSWERS or fault in ("reset", "silent"):
            self.counts.faults[request.path] += 1
            return error(request, *ANSWERS[fault]) if fault in ANSWERS else reset(request)
        return await self.forward(request, faults if fault else None)

    async def control(self, request: web.BaseRequest) -> web.Response:
        """Set the faults, or tell the counts."""
        if request.method == hdrs.METH_POST:
            self.faults, self.counts = Faults(**await request.json()), Counts()
            self.times.clear()
        return web.json_response(vars(self.counts))

    async def forward(self, request: web.BaseRequest, cut: Faults | None) -> web.StreamResponse:
        """The server's answer; half of its body if it is to be cut."""
        url = URL(self.target + request.raw_path, encoded=True)
        body = await request.read() if request.body_exists else None
        async with self.session.request(
            request.method, url, headers=kept(request.headers), data=body, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept(answer.headers))
            await response.prepare(request)
            left = None if cut is None else (answer.content_length or 0) // 2
            async for chunk in answer.content.iter_any():
                piece = chunk[:left]
                await response.write(piece)
                self.counts.bytes[request.path] += len(piece)
                if self.faults.rate:
                    now = time.monotonic()
                    self.free = max(now, self.free) + len(piece) / self.faults.rate
                    await asyncio.sleep(self.free - now)
                if left is not None and cut is not None:
                    left -= len(piece)
                    if len(piece) < len(chunk):
                        self.counts.faults[request.path] += 1
                        await asyncio.sleep(cut.stall if cut.kind == "stalled" else 0)
                        return reset(request)
        return response

    async def serve(self, port: int) -> None:
        """Listen until the process ends."""
        connector = TCPConnector(limit=0)
        async with ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding")
        ) as self.session:
            runner = web.ServerRunner(web.Server(self))
            await runner.setup()
            await web.TCPSite(runner, HOST, port).start()
            await asyncio.Event().wait()


def kept(headers: Any) -> list[tuple[str, str]]:
    """The headers that travel on; those of an answer without a repeated `Server`."""
    return [(name, value) for name, value in headers.items() if name.lower() not in OWN_HEADERS | {"server"}]


def error(request: web.BaseRequest, status: int, code: str) -> web.Response:
    """An error as S3 tells it; in answer to HEAD, by its status alone."""
    if request.method == hdrs.METH_HEAD:
        return web.Response(status=status)
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")


def reset(request: web.BaseRequest) -> web.Response:
    """Nothing: the connection is reset."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    return web.Response()


if __name__ == "__main__":
    asyncio.run(Handler(int(sys.argv[1])).serve(int(sys.argv[2])))
