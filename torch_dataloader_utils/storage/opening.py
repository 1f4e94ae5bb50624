"""From a path, URL or filesystem to a `Storage`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import pyarrow.fs as pafs
from fsspec.core import split_protocol, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import available_protocols
from fsspec.spec import AbstractFileSystem

from torch_dataloader_utils.errors import (
    DataLoaderUtilsError,
    DataNotFoundError,
    FileReadError,
    MissingExtraError,
    OptionError,
)
from torch_dataloader_utils.redaction import printable, remember_secrets, user_and_password
from torch_dataloader_utils.storage.hub_client import Commits, at_commit, is_hub
from torch_dataloader_utils.storage.option_names import client_options
from torch_dataloader_utils.storage.retries import retried
from torch_dataloader_utils.storage.storage import Storage
from torch_dataloader_utils.storage.waiting import answered, limit
from torch_dataloader_utils.values import url_of

# The client of web servers: what was given for one server is not sent to another to which it redirects.


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


_WEB = frozenset({"http", "https"})
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("http", "https"), "http"),
    "hf": "hf",
}


def open_storage(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    commits: Commits | None = None,
) -> tuple[Storage, str]:
    """The storage that holds `path`, and the path as that storage names it (absolute on the local disk).

    Args:
        path: a local path or a URL such as "s3://bucket/folder".
        storage_options: options of the fsspec filesystem for the URL's protocol (credentials, endpoints), as it or
            other libraries spell them.
        filesystem: a ready fsspec or pyarrow filesystem, used instead.
        commits: the commits of repositories of the Hub, shared by paths that are opened together: all are read at the
            same commit, which is requested once.

    Raises:
        MissingExtraError: the protocol's client is not installed.
        OptionError: the protocol is unknown, its client has no such option, refuses a value or takes no password in
            URLs, or `filesystem` is not a filesystem.
        DataNotFoundError: the URL is about an archive that does not exist.
        FileReadError: the client cannot reach its store, or open the archive.
    """
    url = url_of(path)
    remember_secrets(storage_options, getattr(filesystem, "storage_options", None))
    found = _storage(url, storage_options or {}) if filesystem is None else _given_storage(url, filesystem)
    storage, inner, hub = found
    if hub is not None:
        inner = _at_commit(hub, inner, url, {} if commits is None else commits)
    _reject_password(url, inner)
    return storage, inner


def _reject_password(url: str, inner: str) -> None:
    """Reject a URL whose user and password its client takes for a part of the path, which errors and plans show."""
    secret = user_and_password(url)
    if secret and secret in inner and "://" not in inner:
        raise OptionError(
            f"{printable(url)} was given with a password, but its client takes none in URLs: pass it in "
            "storage_options=, or in the environment."
        )


def _storage(url: str, options: Mapping[str, Any]) -> tuple[Storage, str, Any]:
    """The storage, the path, and the client if it is the Hub's."""
    protocol = split_protocol(url.rpartition("::")[2])[0] or "file"
    fs, inner = _url_to_fs(url, protocol, options)
    if type(fs) is LocalFileSystem:
        return Storage(), inner, None
    storage = Storage(protocol, (type(fs), tuple(fs.storage_args), dict(fs.storage_options)))
    return storage, inner, fs if is_hub(fs) else None


def _at_commit(fs: Any, path: str, url: str, commits: Commits) -> str:
    """The path in a repository of the Hub at the commit that it names now, at which all files are then read."""
    try:
        return retried(lambda: at_commit(fs, path, commits), f"resolving {printable(url)}", limit())
    except DataLoaderUtilsError:
        raise
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"{printable(url)}: the Hub has no such repository or revision, or it is private: pass its token by "
            "storage_options={'token': ...}, or set HF_TOKEN. A slash in the name of a revision is written %2F."
        ) from error
    except (ValueError, NotImplementedError) as error:
        example = "such as hf://datasets/org/name@revision/folder"
        raise OptionError(f"{printable(url)}: expected a path in a repository, {example}: {error}") from error
    except Exception as error:  # the Hub's client also raises errors of its HTTP client
        raise _unreachable(url, "hf", error) from error


def _url_to_fs(url: str, protocol: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    def connect() -> tuple[Any, str]:
        found: tuple[Any, str] = url_to_fs(url, **_with_home_clients(url, client_options(url, options)))
        return found

    local = protocol in ("file", "local") and "::" not in url
    try:
        fs, path = answered(connect, 0 if local else limit(), f"opening {printable(url)}")
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        raise _failure(url, protocol, error) from error
    return fs, path


def _with_home_clients(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with our HTTP client for each part of the URL that is on a web server."""
    first, *others = [split_protocol(part)[0] or part for part in url.split("::")]
    chosen = dict(options)
    if first in _WEB:
        chosen.setdefault("get_client", home_client)
    for protocol in _WEB.intersection(others):
        chosen[protocol] = {"get_client": home_client, **chosen.get(protocol, {})}
    return chosen


def _failure(url: str, protocol: str, error: Exception) -> DataLoaderUtilsError:
    """The error for a client that cannot be created; some connect, or open an archive, when they are."""
    problem = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'torch-dataloader-utils[{extra}]'" if extra else str(error)
        return MissingExtraError(f"{protocol}:// needs a client that is not installed: {remedy}")
    if protocol == "uc":
        return OptionError(f"{printable(url)}: a table of a Unity Catalog is read by Delta({printable(url)!r}).")
    if isinstance(error, ValueError) and protocol not in available_protocols():
        return OptionError(f"{protocol}:// is an unknown protocol: register it with fsspec, or pass filesystem=.")
    if isinstance(error, FileNotFoundError) and "::" in url:
        return DataNotFoundError(f"{printable(url)}: there is no such archive.")
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return _unreachable(url, protocol, error)
    if "::" in url and not isinstance(error, (TypeError, ValueError)):
        return FileReadError(f"{printable(url)}: the archive cannot be opened: {problem}.")
    return OptionError(
        f"{printable(url)}: the client of {protocol}:// refuses the given options: {problem}. Correct "
        "storage_options=, or pass filesystem=."
    )


def _unreachable(url: str, protocol: str, error: Exception) -> FileReadError:
    return FileReadError(
        f"{printable(url)}: the client of {protocol}:// cannot reach its store: {type(error).__name__}: {error}. Check "
        "the address, the network, and the credentials in storage_options=."
    )


def _given_storage(url: str, filesystem: Any) -> tuple[Storage, str, Any]:
    """As `_storage`."""
    if isinstance(filesystem, pafs.LocalFileSystem) or type(filesystem) is LocalFileSystem:
        return Storage(), url_to_fs(url)[1], None
    if isinstance(filesystem, pafs.PyFileSystem) and isinstance(filesystem.handler, pafs.FSSpecHandler):
        filesystem = filesystem.handler.fs
    if isinstance(filesystem, pafs.FileSystem):
        path = split_protocol(url)[1].rstrip("/")
        return Storage(filesystem.type_name, filesystem=filesystem), path, None
    if isinstance(filesystem, AbstractFileSystem):
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        path = filesystem._strip_protocol(url)
        return Storage(protocol, filesystem=filesystem), path, filesystem if is_hub(filesystem) else None
    raise OptionError(f"filesystem={type(filesystem).__name__}: expected an fsspec or a pyarrow filesystem.")
