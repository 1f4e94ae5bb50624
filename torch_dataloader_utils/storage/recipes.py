"""How a process builds the fsspec filesystem of a store: from its class, arguments and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import fsspec

Recipe: TypeAlias = tuple[type[Any], tuple[Any, ...], Mapping[str, Any]]


def built(recipe: Recipe) -> fsspec.AbstractFileSystem:
    """A filesystem of our own: others' listings, which fsspec would remember, say nothing of now."""
    kind, args, options = recipe
    build = _BUILDERS.get(f"{kind.__module__}.{kind.__qualname__}", _plain)
    return build(kind, args, {**options, "skip_instance_cache": True})


def _plain(kind: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    return kind(*args, **options)


def _s3(kind: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    """As given, but tries are not multiplied: botocore's, within s3fs's, within ours.

    botocore's alone stay, with jitter: a listing of many pages must not begin anew for one that fails.
    """
    config = {"retries": {"mode": "standard", "total_max_attempts": 3}, **(options.get("config_kwargs") or {})}
    fs = kind(*args, **{**options, "config_kwargs": config})
    fs.retries = 1
    return fs


def _http(kind: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    """As given, but bytes come as they are stored: ranges of compressed ones would be others."""
    headers = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    return kind(*args, **{**options, "headers": headers})


_BUILDERS: dict[str, Callable[[type[Any], tuple[Any, ...], dict[str, Any]], fsspec.AbstractFileSystem]] = {
    "s3fs.core.S3FileSystem": _s3,
    "fsspec.implementations.http.HTTPFileSystem": _http,
}
