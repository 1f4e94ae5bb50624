"""The pyarrow filesystem equivalent to an fsspec client, where the two are proven to reach the store the same way.

The user configures the fsspec client, so credentials, endpoint and region are those that it resolved. Credentials that
expire stay with the client that renews them: there is no pyarrow filesystem then. Only S3 has one: pyarrow's Google
filesystem accepts only credentials that expire, and starts to download a file when it is opened; its Azure filesystem
crashes the process when a server or proxy sends a refusal without a body. In some forked children it has none either.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.asyn import sync

from torch_dataloader_utils.storage.locks import ForkLock
from torch_dataloader_utils.storage.s3_calls import s3_call, s3_locked

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
