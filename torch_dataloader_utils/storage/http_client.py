"""The client of web servers: what was given for one server is not sent to another to which it redirects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

# Headers that hold nothing of the user's, and that other servers need.
_OPEN = frozenset({"accept", "accept-encoding", "if-match", "if-range", "range", "user-agent"})
_PORTS = {"http": 80, "https": 443}


async def home_client(*, loop: Any, **arguments: Any) -> Any:
    """An `aiohttp.ClientSession`, as fsspec creates it, that sends its headers, password and cookies to one server.

    aiohttp itself leaves out the header `Authorization` when it follows a redirect to another server, but sends all
    other headers, the session's `auth` and its cookies.
    """
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_redirected)
    traces = [*(arguments.pop("trace_configs", None) or ()), trace]
    return aiohttp.ClientSession(loop=loop, trace_configs=traces, **_as_headers(arguments))


def _as_headers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with `auth` and `cookies` as headers, which can be left out."""
    others = {name: value for name, value in arguments.items() if name not in ("auth", "cookies", "headers")}
    headers = dict(arguments.get("headers") or {})
    auth, cookies = arguments.get("auth"), arguments.get("cookies")
    if auth is not None:
        headers["Authorization"] = auth.encode()
    if cookies:
        pairs = cookies.items() if isinstance(cookies, Mapping) else cookies
        headers["Cookie"] = "; ".join(f"{name}={getattr(value, 'value', value)}" for name, value in pairs)
    return {**others, "headers": headers}


async def _redirected(session: Any, context: Any, redirect: Any) -> None:
    """Remove the user's headers from a request that continues at another server."""
    answer = redirect.response
    target = urljoin(str(answer.url), answer.headers.get("Location") or answer.headers.get("URI") or "")
    if origin(target) != origin(str(answer.url)):
        for name in [name for name in redirect.headers if name.lower() not in _OPEN]:
            redirect.headers.popall(name, None)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """The scheme, host and port of a URL: what one server is."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
