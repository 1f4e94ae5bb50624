"""How a process builds the fsspec filesystem of a store: from its class, arguments and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import fsspec

from torch_dataloader_utils.redaction import learn

Recipe: TypeAlias = tuple[type[Any], tuple[Any, ...], Mapping[str, Any]]


def built(recipe: Recipe) -> fsspec.AbstractFileSystem:
    """A new filesystem, because the instances that fsspec caches and shares may hold outdated listings."""
    kind, args, given = recipe
    learn(given)  # a worker process gets them with the recipe only
    options = {**given, "skip_instance_cache": True}
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "fsspec.implementations.http.HTTPFileSystem":
        # Bytes as they are stored: ranges of a compressed response would be other bytes.
        options["headers"] = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    if name != "s3fs.core.S3FileSystem":
        return kind(*args, **options)
    # Retries would multiply: botocore's within s3fs's within ours. So s3fs's are off; botocore's stay, with jitter,
    # because a listing of many pages must not start over when one page fails.
    retries = {"mode": "standard", "total_max_attempts": 3}
    fs = kind(*args, **{**options, "config_kwargs": {"retries": retries, **(options.get("config_kwargs") or {})}})
    fs.retries = 1
    return fs
