"""How a process builds the fsspec filesystem of a store: from its class, arguments and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import fsspec

Recipe: TypeAlias = tuple[type[Any], tuple[Any, ...], Mapping[str, Any]]


def built(recipe: Recipe) -> fsspec.AbstractFileSystem:
    """A filesystem of our own: others' listings, which fsspec would remember, may be out of date."""
    kind, args, given = recipe
    options = {**given, "skip_instance_cache": True}
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "fsspec.implementations.http.HTTPFileSystem":
        # Bytes as they are stored: ranges of compressed ones would be others.
        options["headers"] = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    if name != "s3fs.core.S3FileSystem":
        return kind(*args, **options)
    # Tries are not multiplied: botocore's, within s3fs's, within ours. botocore's alone stay, with jitter: a listing of
    # many pages must not begin anew for one that fails.
    retries = {"mode": "standard", "total_max_attempts": 3}
    fs = kind(*args, **{**options, "config_kwargs": {"retries": retries, **(options.get("config_kwargs") or {})}})
    fs.retries = 1
    return fs
