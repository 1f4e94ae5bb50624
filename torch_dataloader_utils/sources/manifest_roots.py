"""A manifest names only files below `path`: whoever writes it must not choose what else is read, and from where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import has_magic
from urllib.parse import unquote

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.sources.files import FoundFile, glob_matcher
from torch_dataloader_utils.sources.skipped import SkippedFile
from torch_dataloader_utils.storage import printable


def check_roots(files: Sequence[FoundFile | SkippedFile], entries: Sequence[str], name: str) -> None:
    """Check that the files of a manifest are at or below the entries of `path`.

    Args:
        files: as the manifest names them.
        entries: the entries, as paths in the storage.
        name: the manifest's name, for the error.

    Raises:
        FileReadError: a file is elsewhere.
    """
    below = [_below(entry) for entry in entries]
    for file in files:
        plain = _plain(file.path)
        inside = ".." not in plain.split("/") and any(holds(plain) for holds in below)
        if file.path not in entries and not inside:
            raise FileReadError(
                f"manifest={name}: it names {printable(file.path)}, which is not below path=: "
                f"{', '.join(map(printable, entries))}. Do not use a manifest that others could write; delete it, and "
                "the next run creates a new one."
            )


def _below(entry: str) -> Callable[[str], bool]:
    """Whether a plain path is below a folder, or matches a glob; a folder may have wildcards in its name."""
    root = _plain(entry).rstrip("/") + "/" if entry else ""
    matches = glob_matcher(_plain(entry)) if has_magic(entry) else None
    return lambda path: path.startswith(root) or (matches is not None and matches(path) is not None)


def _plain(path: str) -> str:
    """The path as a server understands it: an index page may link to http and https, and write ".." in other ways."""
    scheme, _, rest = path.partition("://")
    return f"http://{unquote(rest)}" if scheme in ("http", "https") else path.replace("\\", "/")
