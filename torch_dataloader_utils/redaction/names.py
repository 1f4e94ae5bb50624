"""Which options hold secrets, judged by their names, and by their values where a name says nothing."""

from __future__ import annotations

import re

SECRET = (  # part of the names
    r"secret|token|passw|passphrase|pwd|key|credential|sas|^sig$|signature|auth|cookie|connection.?string"
    r"|service.?account"
)
_SECRET = re.compile(SECRET, re.IGNORECASE)
# What surrounds credentials: their place, kind, size and time.
_PUBLIC = re.compile(
    r"(?:ur[il]|endpoint|host|port|file|path|dir|folder|type|mode|style|name|class|impl|region|project|location|bucket"
    r"|warehouse|version|tenant.?id|client.?id|expir\w*|ttl|timeout|method|protocol|scheme|(?<!service.)account|format|enabled"
    r"|(?:-|_|\b)ms|seconds|size|bytes|algorithm|authority|user|login|scope|audience|grant.?type)$",
    re.IGNORECASE,
)
_HOLDERS = re.compile(r"headers?$|cookies?$", re.IGNORECASE)  # of what has names of its own
_PLAIN_HEADER = re.compile(
    r"accept|content-|user-agent|host$|range$|cache-control|connection$|x-iceberg-access-delegation|x-client-version",
    re.IGNORECASE,
)
NO_SECRETS = frozenset(
    {"true", "false", "none", "null", "anon", "anonymous", "default", "google_default", "cache", "cloud", "browser"}
    | {"basic", "bearer", "oauth2", "sigv4", "env"}
)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])(?:[A-Za-z0-9+/]{20,}={0,2}|[\w.~-]{20,})|[0-9a-fA-F]{32,}")


def is_secret(names: tuple[str, ...], value: str) -> bool:
    """Whether an option's value is a secret.

    Args:
        names: the option's name, after those of the dicts that hold it.
        value: its value.
    """
    if not names or value.strip().lower() in NO_SECRETS:
        return False
    *holders, name = names
    if name.lower().startswith("header."):  # a property of a catalog
        holders, name = ["header"], name[len("header.") :]
    if any(_HOLDERS.search(holder) for holder in holders):
        return not _PLAIN_HEADER.match(name)
    last = name.rpartition(".")[2]
    if _PUBLIC.search(last):
        return False
    return bool(_SECRET.search(name) or _RANDOM.fullmatch(value))
