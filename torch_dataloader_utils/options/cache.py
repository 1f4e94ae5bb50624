"""`cache=`: a local folder that keeps what is read from a remote store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.values import Value, num_bytes, path, setting

LEAST = 1 << 24  # bytes: a smaller cache could not hold what a few threads read at once


def _size(name: str, value: Any) -> int:
    size = num_bytes(name, value)
    if size < LEAST:
        raise OptionError(f"{name}={value!r}: expected at least 16 MiB.")
    return size


class Cache(Value):
    """Keeps what is read from a remote store in a local folder, which all processes of the node share.

    Raises:
        OptionError: `max_bytes` is no size, or too small.
    """

    folder: str | os.PathLike[str] = setting(
        check=path, doc="the folder; created for its owner only if it is missing", kw_only=False
    )
    max_bytes: int | str = setting(default="10GiB", check=_size, doc="the maximum size of its content, in bytes")


CacheLike: TypeAlias = Cache | str | os.PathLike[str] | Mapping[str, Any]
