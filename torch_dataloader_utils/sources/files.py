"""Finds the files at paths: folders, globs and single files, in order."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from glob import has_magic
from pathlib import PurePosixPath
from typing import NamedTuple, TypeAlias

from fsspec.utils import glob_translate

from torch_dataloader_utils.errors import DataNotFoundError, OptionError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage import Commits, Storage, Stored, open_storage
from torch_dataloader_utils.storage.cache import prepared
from torch_dataloader_utils.storage.spelling import one_spelling

_LOG = logging.getLogger("torch_dataloader_utils")

AnyPath: TypeAlias = "str | os.PathLike[str]"

_SHOWN = 5  # names listed in an error


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that was found.

    Attributes:
        path: its path in the storage.
        size: bytes (0 if the storage does not report it).
        relative: its path below the folder, or below the part of the glob before the first wildcard; the whole path
            if the file was given by name. It determines the order.
        version: the storage's identifier of its content; "" if it has none.
        named: whether the user named it: by its path, or by a glob that ends in its suffix.
        real: its path without links; "" where the storage has none.
        written: when it was last written, in nanoseconds since 1970; None where the storage does not report it.
    """

    path: str
    size: int
    relative: str
    version: str = ""
    named: bool = field(default=False, kw_only=True)
    real: str = field(default="", kw_only=True, compare=False)
    written: int | None = field(default=None, kw_only=True, compare=False)


Needed: TypeAlias = Callable[[Storage, str], "list[Stored] | None"]


def find_files(
    path: AnyPath | Sequence[AnyPath],
    read: ReadOptions,
    progress: Progress = LOGGED,
    needed: Needed | None = None,
) -> tuple[Storage, list[FoundFile]]:
    """The storage and the files at `path`, sorted by relative path within each entry, entries in the order given.

    An entry is a file, a folder (read recursively) or a glob (`*`, `?`, `[...]`, and `**` for any depth).
    Files and folders whose names begin with `.` or `_` are skipped, unless the entry names them or they are
    partition folders such as `_day=1`. The folder markers of object stores are skipped too.

    Args:
        path: the entries.
        read: the access to them.
        progress: shows how many files were found.
        needed: lists the files below a folder that may be read; None, or no file: all are listed.

    Raises:
        DataNotFoundError: an entry has no file; the message lists what was found instead.
        OptionError: there is no entry, the entries are on several storages, two entries share a file, or an entry is
            a table of a format that deletes rows.
    """
    storage, entries = open_entries(path, read)
    files: list[FoundFile] = []
    # The bar of a remote listing is shown at once: a store may take minutes for one answer.
    with progress.over(None, "listing", "files", delay=None if storage.local else 0) as shown:
        for _, inner in entries:
            found = _expand(storage, inner, needed)
            shown.advance(len(found))
            files += found
    _reject_repeats(files, storage)
    return storage, files


def open_entries(path: AnyPath | Sequence[AnyPath], read: ReadOptions) -> tuple[Storage, list[tuple[AnyPath, str]]]:
    """The storage of all entries of `path`, and each entry as given and as a path in the storage; lists nothing.

    Raises:
        OptionError: there is no entry, or the entries are on several storages.
    """
    entries = [path] if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(entries, (list, tuple)) or not entries:
        raise OptionError(f"path={path!r}: expected a path or URL, or a list with at least one.")
    commits: Commits = {}
    opened = [open_storage(entry, read.storage_options, read.filesystem, commits) for entry in entries]
    storage, first = opened[0]
    for other, inner in opened[1:]:
        if other != storage:
            raise OptionError(f"path: {printable(inner)} is on another storage than {printable(first)}.")
    cache = None if storage.local or read.cache is None else prepared(read.cache)
    return replace(storage, cache=cache), [(entry, inner) for entry, (_, inner) in zip(entries, opened, strict=True)]


def _reject_repeats(files: Sequence[FoundFile], storage: Storage) -> None:
    """Reject files that several entries list, also by other names."""
    names: dict[str, list[str]] = {}
    for file in files:
        names.setdefault(file.real or one_spelling(file.path, storage.protocol), []).append(file.path)
    for first, *others in names.values():
        if others:
            link = next((f" (as {printable(other)}, too)" for other in others if other != first), "")
            raise OptionError(
                f"path: {printable(first)} is listed {1 + len(others)} times{link}: list it once, or its rows repeat."
            )


def _expand(storage: Storage, entry: str, needed: Needed | None) -> list[FoundFile]:
    """The files of one entry."""
    stored = storage.look(entry)
    if stored is not None and stored.special:
        raise DataNotFoundError(f"{printable(entry)} is {printable(stored.special)}: expected a file or folder.")
    if stored is not None and not stored.folder:
        reject_tables(storage, [stored], entry)
        return [FoundFile(entry, stored.size, entry, stored.version, named=True, real=stored.real)]
    if stored is not None:
        files = (needed and needed(storage, entry)) or storage.find(entry)
        reject_tables(storage, files, entry)
        return _visible(files, entry, "", printable(entry))
    if not has_magic(entry):
        raise DataNotFoundError(f"{printable(storage.named(entry))}: there is no such file or folder.")
    return _glob(storage, entry)


def _glob(storage: Storage, pattern: str) -> list[FoundFile]:
    folder, rest = _cut(pattern)
    stored = storage.look(folder or ".")
    if stored is None or not stored.folder:
        raise DataNotFoundError(f"{printable(pattern)}: there is no folder {printable(folder)}.")
    matches = glob_matcher(pattern)
    files = [file for file in storage.find(folder, recursive=len(rest) > 1 or rest == ["**"]) if matches(file.path)]
    if not files:
        raise _no_match(pattern, folder, storage.find(folder))
    reject_tables(storage, files, pattern)
    visible = _visible(files, folder, _wanted(rest), f"{printable(pattern)} (a glob)")
    return [replace(file, named=True) for file in visible] if _names_suffix(rest[-1]) else visible


@dataclass(frozen=True)
class Below:
    """What lies below a folder, or below the part of a glob before its first wildcard.

    Attributes:
        base: that folder's path, which ends in a slash unless it is empty.
        files: the files that the entry names and that are not hidden, perhaps none, sorted by path.
        names: all files, hidden ones too, by their paths below `base`.
    """

    base: str
    files: list[FoundFile]
    names: list[str]


def find_below(storage: Storage, entry: str) -> Below | None:
    """What lies below a folder or glob that may be empty yet; None if there is no such folder.

    Raises:
        OptionError: the entry is a file, or the folder of a table.
    """
    folder, rest = _cut(entry) if has_magic(entry) else (entry, [])
    stored = storage.look(folder or ".")
    if stored is None:
        return None
    if not stored.folder:
        raise OptionError(f"{printable(entry)} is a file, to which no files are added: expected a folder or a glob.")
    files, base = storage.find(folder, recursive=not rest or len(rest) > 1 or rest == ["**"]), base_of(entry)
    matches = glob_matcher(entry) if rest else lambda path: True
    matched = [file for file in files if matches(file.path)]
    reject_tables(storage, matched, entry)
    hides, named = _wanted(rest), bool(rest) and _names_suffix(rest[-1])
    visible = [file for file in matched if not file.special and not _hidden(file.path.removeprefix(base), hides)]
    return Below(
        base,
        [replace(_found(file, base), named=named) for file in sorted(_once(visible), key=lambda file: file.path)],
        [file.path.removeprefix(base) for file in files],
    )


def base_of(entry: str) -> str:
    """The folder of an entry below which its files are, or that before the first wildcard; ends in a slash, if any."""
    return _base(_cut(entry)[0] if has_magic(entry) else entry)


def _no_match(pattern: str, folder: str, files: Sequence[Stored]) -> DataNotFoundError:
    """The error for a glob that matches no file; it may match folders.

    Args:
        pattern: the glob.
        folder: its part before the first wildcard.
        files: those in the folder, at any depth.
    """
    matches, base = glob_matcher(pattern.rstrip("/")), _base(folder)
    for file in sorted(files, key=lambda file: file.path):
        *above, name = file.path.removeprefix(base).split("/")
        if _hidden(file.path.removeprefix(base), _wanted(pattern.split("/"))):
            continue
        named = (base + "/".join(above[:depth]) for depth in range(1, len(above) + 1))
        matched = next(filter(matches, named), None)
        if matched is not None:
            below = "/" if len(file.path.split("/")) == len(matched.split("/")) + 1 else "/**/"
            wider = pattern.rstrip("/") + below + "*" + PurePosixPath(name).suffix
            return DataNotFoundError(
                f"{printable(pattern)} (a glob): it matches folders, such as {printable(matched)}, and no files. Add "
                f"the files in them: {printable(wider)}"
            )
    return DataNotFoundError(f"{printable(pattern)} (a glob): no data files; found nothing that matches.")


def _names_suffix(pattern: str) -> bool:
    """Whether the last part of a glob ends in a suffix without a wildcard."""
    return re.search(r"\.[^]*?[.]*[A-Za-z][^]*?[.]*$", pattern) is not None


def lists(entry: str, path: str) -> bool:
    """Whether `find_files` would return a file at `path` for the entry; lists nothing."""
    folder, rest = _cut(entry) if has_magic(entry) else (entry, [])
    if rest and not glob_matcher(entry)(path):
        return False
    below = path.removeprefix(_base(folder))
    return path == entry or (below != path and not _hidden(below, _wanted(rest)))


def glob_matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """A function that matches the paths that a glob names.

    Raises:
        OptionError: it is not a valid glob.
    """
    try:
        return re.compile(glob_translate(pattern)).match
    except ValueError as error:
        raise OptionError(
            f"path={printable(pattern)!r}: {error}; expected a glob such as 'data/**/*.parquet'."
        ) from error


def _cut(pattern: str) -> tuple[str, list[str]]:
    """The folder of a glob before the first wildcard, and the remaining parts."""
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if has_magic(part))
    return "/".join(parts[:fixed]) or ("/" if fixed else ""), parts[fixed:]


def _wanted(parts: Sequence[str]) -> str:
    """The first characters that a glob spells out, which then do not make a name hidden."""
    return "".join({part[0] for part in parts if part})


def _base(folder: str) -> str:
    return folder.rstrip("/") + "/" if folder else ""


def _visible(files: list[Stored], folder: str, wanted: str, entry: str) -> list[FoundFile]:
    """The files that are not hidden (a first character in `wanted` does not hide a file), sorted by relative path."""
    base = _base(folder)
    visible = [file for file in files if not _hidden(file.path.removeprefix(base), wanted)]
    data = _once(regular(visible))
    if not data:
        names, why = [file.path.removeprefix(base) for file in files], "no regular files" if visible else "hidden"
        instead = f"{len(names)} files, all {why}: {listed(names, _SHOWN, printable)}" if names else "nothing"
        raise DataNotFoundError(f"{entry}: no data files; found {instead}.")
    return [_found(file, base) for file in sorted(data, key=lambda file: file.path)]


def _found(file: Stored, base: str) -> FoundFile:
    below = file.path.removeprefix(base)
    return FoundFile(file.path, file.size, below, file.version, real=file.real, written=file.written)


def regular(files: Sequence[Stored]) -> list[Stored]:
    """The regular files: another one is never opened, since reading from a pipe may wait without end.

    Raises:
        DataNotFoundError: one is a link that leads nowhere, perhaps to data on a disk that is not mounted.
    """
    special = [file for file in files if file.special]
    for file in special:
        if file.linked and not file.real:
            raise DataNotFoundError(f"{printable(file.path)} is {printable(file.special)}: restore it, or remove it.")
    if special:
        _LOG.warning(
            "left out %d of %d that are not regular files; the first is %s, %s",
            len(special), len(files), printable(special[0].path), special[0].special,
        )  # fmt: skip
    return [file for file in files if not file.special]


def _once(files: Sequence[Stored]) -> list[Stored]:
    """Each file by a single name: its own, or if it is only found behind links, the first."""
    if not any(file.linked for file in files):
        return list(files)
    names: dict[str, Stored] = {}
    for file in sorted(files, key=lambda file: (file.linked, file.path)):
        names.setdefault(file.real, file)
    left = len(files) - len(names)
    if left:
        kept = {file.path for file in names.values()}
        first = min(file.path for file in files if file.path not in kept)
        _LOG.info(
            "left out %d of %d names, because they are links to files that have others; the first is %s",
            left, len(files), printable(first),
        )  # fmt: skip
    return list(names.values())


def _hidden(relative: str, wanted: str) -> bool:
    *folders, name = relative.split("/")
    names = [name, *(folder for folder in folders if not (folder.startswith("_") and "=" in folder))]
    marked = any(part[:1] in (".", "_") and part[0] not in wanted for part in names if part)
    return marked or name.endswith("_$folder$")


# Rejects the folder of a table: its data files also contain rows that the table has deleted.

_AS_FILES = "To read all its files, deleted rows too, name them by a glob such as 'folder/*.parquet'."


class _Kind(NamedTuple):
    """A kind of table: its name, the files that only its folder has, and what to do."""

    name: str
    marker: re.Pattern[str]
    remedy: str


_KINDS = (
    _Kind(
        "an Iceberg table",
        re.compile(r"(.+)/metadata/[^/]+\.metadata\.json"),
        "Read it by IcebergDataset.create_dataloader({root!r}, ...), or by tdu with --table.",
    ),
    _Kind(
        "a Delta table",
        re.compile(r"(.+)/_delta_log/(?:[^/]+\.json|_last_checkpoint)"),
        f"Read it by DeltaDataset.create_dataloader({{root!r}}, ...), or by tdu with --delta. {_AS_FILES}",
    ),
    _Kind("a Hudi table", re.compile(r"(.+)/\.hoodie/.+"), f"Hudi tables are not supported. {_AS_FILES}"),
)
_LOGS = ("/_delta_log", "/.hoodie")


def reject_tables(storage: Storage, files: Sequence[Stored], entry: str) -> None:
    """Check that none of the files found, hidden ones included, makes its folder a table's.

    Args:
        storage: where they are.
        files: the files.
        entry: the folder or glob that found them; one inside of a table's log is about the log itself.

    Raises:
        OptionError: one does. The message names the table and how to read it.
    """
    if any(log in entry for log in _LOGS):
        return
    for file in files:
        for name, marker, remedy in _KINDS:
            table = marker.fullmatch(file.path)
            if table is not None:
                root = printable(table[1] if storage.local else f"{storage.protocol}://{table[1].lstrip('/')}")
                raise OptionError(
                    f"path: {root} is {name} (it has {printable(file.path)}), and its data files also hold rows that "
                    f"were deleted. {remedy.format(root=root)}"
                )
