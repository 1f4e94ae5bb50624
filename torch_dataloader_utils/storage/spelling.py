"""One spelling for all the names of a file, so that names can be compared."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote

# Alternative schemes of a store -> the one used here.
SAME_SCHEME = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "wasb": "abfs",
    "wasbs": "abfs",
    "abfss": "abfs",
    "az": "abfs",
    "https": "http",
    "local": "file",
    "": "file",
}
_OBJECTS = frozenset({"s3", "gs", "abfs"})  # an empty part of an object's key is a part of its name
_FILE = re.compile("file:(?=/(?!/))")  # as Hadoop spells URLs of local files
_ODD = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")  # an empty part, or one of dots


def is_utf8(name: str) -> bool:
    """Whether a name is text: one of the local disk may be any bytes, which Python holds as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_spelling(path: str, protocol: str = "") -> str:
    """The path or URL in a spelling that all its names share, as a URL; for comparisons only.

    Schemes that mean the same store are one, `.` and `..` are resolved, and so are repeated slashes where they have no
    meaning, and percent-encoding in URLs of web servers. Links are not followed.

    Args:
        path: a path or URL.
        protocol: of the storage, for a path without one.
    """
    scheme, separator, rest = _FILE.sub("file://", path, count=1).partition("://")
    if not separator:
        scheme, rest = protocol, path
    scheme = SAME_SCHEME.get(scheme, scheme)
    if scheme == "http":
        rest = unquote(rest)
    if _ODD.search(rest):
        rest = _resolved(rest, keep_empty=scheme in _OBJECTS)
    return f"{scheme}://{rest}"


def _resolved(path: str, keep_empty: bool) -> str:
    if not keep_empty:
        return re.sub("^/+", "/", posixpath.normpath(path))
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def file_keys(paths: Iterable[str], protocol: str, local: bool) -> Iterator[str]:
    """A key for each path in a storage, equal for all names of one file; on the local disk, also for its links."""
    if not local:
        yield from (one_spelling(path, protocol) for path in paths)
        return
    folder_of = lru_cache(maxsize=None)(os.path.realpath)  # tables have few folders
    for path in paths:
        folder, name = os.path.split(path)
        plain = name not in ("", ".", "..") and not os.path.islink(path)
        yield os.path.join(folder_of(folder), name) if plain else os.path.realpath(path)
