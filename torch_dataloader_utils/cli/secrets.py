"""Leaves secrets of the command line out of what is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.printing import printable, user_and_password

_SECRET = re.compile("secret|token|passw|pwd|key|credential|sas|authorization|connection_string", re.IGNORECASE)


def without_secrets(text: str, data: Data | None) -> str:
    """The text, without the queries and passwords of URLs and without credentials.

    Args:
        text: a message or a traceback.
        data: what was read, with the credentials that were given; None if the command line was not understood.
    """
    text = printable(text)
    secrets = set() if data is None else {*_of_paths(data), *_of_mapping(data.keywords)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "...")
    return text


def _of_paths(data: Data) -> Iterator[str]:
    for path in data.where if isinstance(data.where, list) else [data.where]:
        if "://" in str(path):
            password = user_and_password(str(path))[:-1].partition(":")[2]
            yield from filter(None, (password, str(path).partition("?")[2]))


def _of_mapping(values: Mapping[str, Any], secret: bool = False) -> Iterator[str]:
    """The texts in `storage_options` and `catalog_config`, at any depth, whose names are those of credentials."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _of_mapping(value, secret or name in ("storage_options", "catalog_config"))
        elif secret and value and _SECRET.search(str(name)):
            yield str(value)
