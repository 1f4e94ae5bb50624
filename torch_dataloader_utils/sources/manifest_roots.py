"""A manifest names only files below `path`: whoever writes it must not choose what else is read, and from where."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from glob import has_magic
from urllib.parse import unquote

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.sources.files import FoundFile, glob_matcher
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage import printable

_SCHEMES = {"s3a": "s3", "gcs": "gs"}


def check_roots(
    files: Sequence[FoundFile | SkippedFile], entries: Sequence[str], name: str, local: bool = False
) -> None:
    """Check that the files of a manifest are at or below the entries of `path`.

    Args:
        files: as the manifest names them.
        entries: the entries, as paths in the storage.
        name: the manifest's name, for the error.
        local: whether they are on the local disk, where links are followed as in a listing.

    Raises:
        FileReadError: a file is elsewhere.
    """
    below = [_below(entry) for entry in entries]
    roots = {plain_path(re.split("/[^/]*[*?[]", entry)[0]).rstrip("/") for entry in entries}
    linked = lru_cache(partial(_behind_links_up, roots))
    for file in files:
        plain = plain_path(file.path)
        inside = any(holds(plain) for holds in below) and not (local and linked(os.path.dirname(plain)))
        if file.path not in entries and not inside:
            raise FileReadError(
                f"manifest={name}: it names {printable(file.path)}, which is not below path=: "
                f"{', '.join(map(printable, entries))}. Do not use a manifest that others could write; delete it, and "
                "the next run creates a new one."
            )


def _below(entry: str) -> Callable[[str], bool]:
    """Whether a plain path is below a folder, or matches a glob; a folder may have wildcards in its name."""
    root = plain_path(entry).rstrip("/") + "/" if entry else ""
    glob = plain_path(entry) if has_magic(entry) else None
    matches = None if glob is None else glob_matcher(glob)
    ups = _ups(glob or "")

    def holds(path: str) -> bool:
        if path.startswith(root):
            return not _ups(path[len(root) :])
        return matches is not None and matches(path) is not None and _ups(path) == ups

    return holds


def _ups(path: str) -> int:
    """How many times the path leads up; some servers take a backslash for a slash."""
    return path.replace("\\", "/").split("/").count("..")


def _behind_links_up(roots: Collection[str], folder: str) -> bool:
    """Whether a folder is behind a link to a folder that holds the link: a listing of the roots does not follow it."""
    root = max((root for root in roots if f"{folder}/".startswith(f"{root}/")), key=len)
    path = os.path.realpath(root or "/")
    if os.path.realpath(folder) == os.path.normpath(path + "/" + folder[len(root) :]):
        return False  # there is no link
    holders = []
    for name in folder[len(root) :].strip("/").split("/"):
        holders.append(path)
        path = os.path.realpath(f"{path}/{name}")
        if any(f"{holder}/".startswith(f"{path.rstrip('/')}/") for holder in holders):
            return True
    return False


def plain_path(path: str) -> str:
    """The path in one spelling, which names the same file.

    Servers take http and https, and "%2e" and ".", for the same; so do clients with s3 and s3a, and disks with several
    slashes.
    """
    scheme, separator, rest = path.partition("://")
    if scheme in ("http", "https"):
        return f"http://{unquote(rest)}"
    if separator:
        return f"{_SCHEMES.get(scheme, scheme)}://{rest}"
    return re.sub("/(?:[.]?/)+", "/", path) if path.startswith("/") else path
