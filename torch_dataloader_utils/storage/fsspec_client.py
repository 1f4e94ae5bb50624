"""Stores accessed through fsspec; data is read through pyarrow where that reaches the same store."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.asyn import AsyncFileSystem, sync

from torch_dataloader_utils.storage.clients import ArrowFile, Opened, complete
from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.retries import permanent, status_of
from torch_dataloader_utils.storage.s3_calls import s3_call, s3_locked
from torch_dataloader_utils.storage.versions import Stored, StoredFacts, facts_of

# The pyarrow filesystem equivalent to an fsspec client, where the two are proven to reach the store the same way.
#
# The fsspec client lists, and pyarrow reads the data, which needs a fifth of the processor time.
#
# The user configures the fsspec client, so credentials, endpoint and region are those that it resolved. Credentials
# that expire stay with the client that renews them: there is no pyarrow filesystem then. Only S3 has one: pyarrow's
# Google filesystem accepts only credentials that expire, and starts to download a file when it is opened; its Azure
# filesystem crashes the process when a server or proxy sends a refusal without a body. In some forked children it has
# none either.

_CONNECTIONS = 64  # of a client to its store: the most requests that can be in flight
_LOCK = ForkLock()

# Settings of botocore that pyarrow has too, or that only tune the client.
_CLIENT_KWARGS = {"region_name", "endpoint_url", "use_ssl"}
_CONFIG_KWARGS = {"s3", "signature_version", "connect_timeout", "read_timeout", "retries", "max_pool_connections"}


def native_filesystem(fs: fsspec.AbstractFileSystem, bucket: str) -> pafs.FileSystem | None:
    """The pyarrow filesystem for the bucket that `fs` reaches, or None where it might behave differently."""
    kind = type(fs)
    if f"{kind.__module__}.{kind.__qualname__}" != "s3fs.core.S3FileSystem" or s3_locked():
        return None
    try:
        return _s3(fs, bucket)
    except ImportError:
        return None  # this pyarrow was built without that filesystem


def _proxied(url: str) -> bool:
    """Whether a proxy from the environment applies, which pyarrow would ignore."""
    parts = urlsplit(url)
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)


def _s3(fs: Any, bucket: str) -> pafs.FileSystem | None:
    client = fs.s3  # connects, which creates the session
    url, config = client.meta.endpoint_url, client.meta.config
    access = _s3_access(fs, config)
    addressing = dict(config.s3 or {})
    style = addressing.pop("addressing_style", None) or "auto"
    if access is None or addressing or urlsplit(url).path.strip("/") or _proxied(url) or not _s3_plain(fs, url, config):
        return None
    place = _s3_place(fs, bucket)
    if place is None or (style == "path" and "endpoint_override" not in place):
        return None
    with _connections(), s3_call():
        return pafs.S3FileSystem(
            **access,
            **place,
            force_virtual_addressing=style == "virtual",
            connect_timeout=config.connect_timeout,
            # Retries are counted and limited in one place: ours.
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
        )


@contextmanager
def _connections() -> Iterator[None]:
    """A context in which clients get enough connections: pyarrow allows one per I/O thread, and at least 25."""
    with _LOCK:
        before = pa.io_thread_count()
        pa.set_io_thread_count(max(before, _CONNECTIONS))
        try:
            yield
        finally:
            pa.set_io_thread_count(before)


def _s3_plain(fs: Any, url: str, config: Any) -> bool:
    """Whether pyarrow has all of the settings in use."""
    special = (fs.requester_pays, fs.s3_additional_kwargs, fs.version_aware, config.proxies)
    clear = config.use_dualstack_endpoint is not True and config.use_fips_endpoint is not True
    return (
        not any(special)
        and clear
        and fs.client_kwargs.keys() <= _CLIENT_KWARGS
        and fs.config_kwargs.keys() <= _CONFIG_KWARGS
        and (url.startswith("http:") or fs.session.get_config_variable("ca_bundle") is None)
    )


def _s3_access(fs: Any, config: Any) -> Mapping[str, Any] | None:
    """Credentials as arguments for pyarrow; None if they expire, or if there are none."""
    from aiobotocore.credentials import AioCredentials
    from botocore import UNSIGNED

    if config.signature_version is UNSIGNED:
        return {"anonymous": True}
    if config.signature_version not in ("s3v4", None):
        return None
    if fs.key and fs.secret:
        return {"access_key": fs.key, "secret_key": fs.secret, "session_token": fs.token}
    kept: Any = None if fs.key or fs.secret else sync(fs.loop, fs.session.get_credentials)
    if type(kept) is not AioCredentials:
        return None
    return {"access_key": kept.access_key, "secret_key": kept.secret_key, "session_token": kept.token}


def _s3_place(fs: Any, bucket: str) -> Mapping[str, Any] | None:
    """Endpoint and region as arguments for pyarrow; None if the region is unknown."""
    meta = fs.s3.meta
    parts = urlsplit(meta.endpoint_url)
    if not (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        region = "us-east-1" if meta.region_name in (None, "aws-global") else meta.region_name
        return {"scheme": parts.scheme, "endpoint_override": parts.netloc, "region": region}
    try:
        # botocore follows redirects to a bucket's region, pyarrow does not.
        region = fs.call_s3("head_bucket", Bucket=bucket).get("BucketRegion")
    except OSError:
        return None  # perhaps allowed to read objects, but not to ask for the region
    return None if region is None else {"scheme": parts.scheme, "region": region}


_GONE = (404, 410)


class FsspecClient:
    """A store that is listed and queried through fsspec, and read through pyarrow where that is equivalent.

    It stays in its process, retries nothing and never reuses a listing.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem) -> None:
        self.fs = fs
        self._natives: dict[str, pafs.FileSystem | None] = {}

    def look(self, path: str) -> Stored | None:
        """The file or folder at `path`, or None."""
        if path.endswith("/") and path.startswith(("http://", "https://")):
            return Stored(path, folder=True)  # an index page, which the server serves like a file
        try:
            return stored(path, self.info(path))
        except FileNotFoundError:
            return None

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        self.fs.invalidate_cache()
        with _true_faults(self.fs):
            if _walks(self.fs):
                infos = _walked(self.fs, folder, recursive)
            else:
                infos = self.fs.find(folder, maxdepth=None if recursive else 1, detail=True)
        self.fs.invalidate_cache()
        return [stored(path, info) for path, info in infos.items() if info and info["type"] != "directory"]

    def children(self, folder: str) -> list[Stored]:
        """The files and folders in `folder`."""
        self.fs.invalidate_cache()
        with _true_faults(self.fs):
            infos = self.fs.ls(folder, detail=True)
        self.fs.invalidate_cache()
        # Object stores may hold a marker of the folder itself.
        return [stored(info["name"], info) for info in infos if info["name"].rstrip("/") != folder.rstrip("/")]

    def create(self, path: str, data: bytes) -> None:
        """Write an object on the condition that there is none of its name; not by `open("xb")`, which overwrites."""
        self.fs.pipe_file(path, data, mode="create")

    def open(self, path: str, size: int = 0) -> Opened:
        """The opened file; clients that read by path need no request if the size is known.

        pyarrow always requests the metadata first, and still reads more files per second.
        """
        native = self.arrow(path)
        if native is not None:
            return ArrowFile(native, path, lambda: self._typed(path))
        by_path = _reads_by_path(self.fs)
        asked = not (size and by_path)
        facts = facts_of(self.info(path)) if asked else StoredFacts(size)
        return _ByPath(self, path, facts, asked) if by_path else _ByHandle(self, path, facts)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The pyarrow filesystem of the path's bucket, if there is one."""
        if "//" in path:
            return None  # pyarrow accepts no empty path segments
        bucket = path.partition("/")[0]
        if bucket not in self._natives:
            self._natives[bucket] = native_filesystem(self.fs, bucket)
        return self._natives[bucket]

    def info(self, path: str) -> Mapping[str, Any]:
        """The store's current metadata of `path`, never from a cache."""
        self.fs.invalidate_cache()
        with _true_faults(self.fs):
            info: Mapping[str, Any] = self.fs.info(path)
        return info

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)`, or all; one request. A server without range support sends the whole file."""
        with _true_faults(self.fs):
            data: bytes = self.fs.cat_file(path, start=start, end=stop)
        return data

    @contextmanager
    def _typed(self, path: str) -> Iterator[None]:
        """A context that replaces an untyped error of pyarrow with fsspec's for the same file, if that is permanent.

        pyarrow's S3 errors have neither a type nor a status, by which errors are judged: so one byte is requested.
        """
        try:
            yield
        except OSError as error:
            if type(error) is OSError:
                self._ask(path)
            raise

    def _ask(self, path: str) -> None:
        try:
            self.read(path, 0, 1)
        except Exception as typed:
            if permanent(typed):
                raise


class _ByPath:
    """A file of a client that keeps no handle open."""

    parallel, reusable = True, False

    def __init__(self, client: FsspecClient, path: str, facts: StoredFacts, asked: bool) -> None:
        self._client = client
        self._path = path
        self._asked = asked  # whether the store was asked for these facts
        # The whole file, if its server sent it whole: it supports no ranges, or reports no size.
        self._whole = client.read(path) if facts.size is None else None
        self.facts = facts if self._whole is None else StoredFacts(len(self._whole), facts.etag, facts.mtime)

    def read(self, start: int, stop: int) -> bytes:
        return complete(self._sent(start, stop), start, stop)

    def now(self) -> StoredFacts:
        if self._asked and not self.facts.version:
            return self.facts
        facts = facts_of(self._client.info(self._path))
        if not self._asked:
            self.facts, self._asked = StoredFacts(self.facts.size, facts.etag, facts.mtime), True
        return facts

    def close(self) -> None:
        self._whole = None

    def _sent(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`, or fewer if fewer arrived."""
        if self._whole is None:
            data = self._client.read(self._path, start, stop)
            if len(data) <= stop - start:
                return data
            self._whole = data
        return self._whole[start:stop]


class _ByHandle:
    """A file that fsspec keeps open, such as one in an archive or on a server with sessions."""

    parallel = reusable = False

    def __init__(self, client: FsspecClient, path: str, facts: StoredFacts) -> None:
        self._client, self._path = client, path
        self._handle: Any = client.fs.open(path, "rb")
        self.facts = facts if facts.size is not None else StoredFacts(self._handle.seek(0, 2), facts.etag, facts.mtime)

    def read(self, start: int, stop: int) -> bytes:
        self._handle.seek(start)
        data: bytes = self._handle.read(stop - start)
        return complete(data, start, stop)

    def now(self) -> StoredFacts:
        return facts_of(self._client.info(self._path)) if self.facts.version else self.facts

    def close(self) -> None:
        self._handle.close()


def stored(path: str, info: Mapping[str, Any]) -> Stored:
    """The entry that an fsspec `info` describes."""
    facts = facts_of(info)
    return Stored(path, facts.size or 0, facts.version, info.get("type") == "directory", written=facts.mtime)


def _walks(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether it lists by fsspec's generic walk over folders."""
    kind = type(fs)
    if isinstance(fs, AsyncFileSystem):
        return kind.find is AsyncFileSystem.find and kind._find is AsyncFileSystem._find
    return kind.find is fsspec.AbstractFileSystem.find


def _walked(fs: fsspec.AbstractFileSystem, folder: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """As its `find`, but a folder that cannot be listed is an error: fsspec's walk leaves it out."""
    infos: dict[str, Mapping[str, Any]] = {}
    pending, seen = [folder], {folder}
    while pending:
        for info in fs.ls(pending.pop(), detail=True):
            if info["type"] != "directory":
                infos[info["name"]] = info
            elif recursive and info["name"] not in seen:
                pending.append(info["name"])
                seen.add(info["name"])
    return infos


def _reads_by_path(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether it can read a range of a path directly, instead of opening the file each time."""
    return isinstance(fs, AsyncFileSystem) or type(fs).cat_file is not fsspec.AbstractFileSystem.cat_file


@contextmanager
def _true_faults(fs: fsspec.AbstractFileSystem) -> Iterator[None]:
    """A context that raises the true error where a client misreports it."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec's HTTP client reports every failed metadata request as "not found"
        if cause is None or isinstance(cause, (LookupError, FileNotFoundError)) or status_of(cause) in _GONE:
            raise
        raise cause from None
    except OSError as error:
        if type(error) is OSError and error.errno is None and type(fs).__module__.startswith("gcsfs."):
            raise PermissionError(*error.args) from None  # gcsfs raises these only for refusals (403)
        raise
