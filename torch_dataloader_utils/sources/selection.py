"""Which of the files found are data, and their format: the others are skipped, and a log line says so."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import PurePosixPath

from torch_dataloader_utils.errors import DataNotFoundError, OptionError
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.registry import (
    MAGIC_BYTES,
    FormatEntry,
    entry_named,
    file_formats,
    format_by_magic,
    format_of,
    has_suffix,
)
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.progress import LOGGED, Progress
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.files import FoundFile
from torch_dataloader_utils.sources.footers import read_footers
from torch_dataloader_utils.storage import Naming, Storage

_LOG = logging.getLogger("torch_dataloader_utils")

# Hugging Face datasets writes these next to its data; "state.json" counts only next to one of them.
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
_UNKNOWN = ""
_SHOWN = 5  # names listed in a message

# What programs call a file while they write it: most tools, WinSCP, Chrome, aria2, Hadoop's shell, and Flink. Their
# content may be half of what follows under another name, or all of it once more.
_UNFINISHED = re.compile(
    r"\.(tmp|temp|part|partial|filepart|crdownload|aria2|_COPYING_|(inprogress|pending)(\.[\w.-]+)?)$",
    re.IGNORECASE,
)


def select_data(
    storage: Storage, files: Sequence[FoundFile], name: str | None, progress: Progress = LOGGED
) -> tuple[Format, list[FoundFile]]:
    """The format called `name`, or else the only format found, and the files that are data, in order.

    Files that the user named, and files without a suffix, are data. Files that a writer has not finished, by their
    names, are left alone, and a log line says so. Any other file is data if its suffix (if that is unknown, its first
    bytes) matches the format. Skipped files are logged: at INFO if the format was given, else as a WARNING.

    Raises:
        OptionError: the format is unknown, or the files have no known format or several; the message lists them.
        DataNotFoundError: no file is data.
    """
    if name == "iceberg":
        raise OptionError(
            "format='iceberg': a folder of files does not say which of them a table consists of: read Iceberg tables "
            "with IcebergDataset.create_dataloader."
        )
    wanted = None if name is None else entry_named(name)
    files = _finished(files)
    kinds = _kinds(storage, files, wanted, progress)
    entry = wanted or _only_format(files, kinds)
    data = [file for file, kind in zip(files, kinds, strict=True) if kind == entry.name]
    left = [file for file, kind in zip(files, kinds, strict=True) if kind != entry.name]
    if not data:
        raise _no_data(entry, left)
    if left:
        _announce(entry, left, len(files), given=wanted is not None)
    return entry.format, data


def _finished(files: Sequence[FoundFile]) -> Sequence[FoundFile]:
    """The files but for those that a writer has not finished, by their names.

    Raises:
        DataNotFoundError: there are no others.
    """
    unfinished = [file for file in files if is_unfinished(file)]
    if not unfinished:
        return files
    names = _names([file.path for file in unfinished])
    if len(unfinished) == len(files):
        raise DataNotFoundError(
            f"no data files; found {len(files)} whose names are those of unfinished files: {names}. Files named by a "
            f"path, or by a glob such as 'folder/*{printable(PurePosixPath(unfinished[0].path).suffix)}', are read "
            "whatever their suffix is."
        )
    _LOG.info("left out %d unfinished file(s), by their names: %s", len(unfinished), names)
    left = set(map(id, unfinished))
    return [file for file in files if id(file) not in left]


def is_unfinished(file: FoundFile) -> bool:
    """Whether a file's name is one that writers give to what they have not finished, and the user has not named it."""
    found = not file.named and _UNFINISHED.search(file.path)
    return bool(found) and format_of(file.path) is None  # a user's format may have such a suffix


def _kinds(
    storage: Storage, files: Sequence[FoundFile], wanted: FormatEntry | None, progress: Progress
) -> list[str | None]:
    """The name of each file's format, `_UNKNOWN` for data whose format cannot be inferred, None for other files."""
    described = _described(files)
    kinds = [_kind_by_name(file, described, wanted) for file in files]
    unclear = [number for number, kind in enumerate(kinds) if kind == _UNKNOWN]
    if wanted is None or wanted.magic:
        sought = [files[number] for number in unclear]
        inside = read_footers(storage, partial(_kind_by_bytes, storage), sought, progress, "inferring formats")
    else:
        inside = [None if wanted.suffixes else wanted.name] * len(unclear)
    for number, kind in zip(unclear, inside, strict=True):
        data = files[number].named or not has_suffix(files[number].path)
        kinds[number] = kind or (_UNKNOWN if data else None)
    return kinds


def _kind_by_name(file: FoundFile, described: set[str], wanted: FormatEntry | None) -> str | None:
    """As `_kinds`; `_UNKNOWN` for a file whose name does not reveal its format."""
    if wanted is not None and (file.named or not has_suffix(file.path)):
        return wanted.name
    if file.path in described and not file.named:
        return None
    return format_of(file.path) or _UNKNOWN


def _kind_by_bytes(storage: Storage, file: FoundFile) -> str | None:
    """The name of the format that the file's first bytes indicate, or None."""
    with Naming(file.path), storage.open(file.path) as source:
        return format_by_magic(source.read(MAGIC_BYTES))


def _described(files: Sequence[FoundFile]) -> set[str]:
    """The paths of the files with which Hugging Face datasets describes its data."""
    paths = {file.path for file in files if file.path.rpartition("/")[2] in _DESCRIPTIONS}
    folders = {path.rpartition("/")[0] for path in paths}
    return paths | {f"{folder}/state.json" for folder in folders}


def _only_format(files: Sequence[FoundFile], kinds: Sequence[str | None]) -> FormatEntry:
    """The single format of all data.

    Raises:
        DataNotFoundError: there are other files alone.
        OptionError: there are data of several formats, or of none that is known.

    Each message lists what was found.
    """
    formats = {kind for kind in kinds if kind is not None}
    if len(formats) == 1 and _UNKNOWN not in formats:
        return entry_named(formats.pop())
    paths: dict[str, list[str]] = {}
    for file, kind in zip(files, kinds, strict=True):
        paths.setdefault(kind or "of no known format", []).append(file.path)
    found = "; ".join(f"{len(those)} {kind}: {_names(those)}" for kind, those in paths.items())
    known = "; ".join(f"{entry.name} ({', '.join(entry.suffixes)})" for entry in file_formats())
    error = OptionError if formats else DataNotFoundError
    raise error(
        f"expected files of one supported format, found {found}. Supported: {known}. To read those of one format, pass "
        "Files(path, format=...), or name them by a glob such as 'folder/*.parquet'; combine() such globs to read "
        "several formats (for a format of your own: register_format)."
    )


def _no_data(entry: FormatEntry, left: Sequence[FoundFile]) -> DataNotFoundError:
    suffix = PurePosixPath(left[0].path).suffix
    return DataNotFoundError(
        f"format={entry.name!r}: expected files with the suffix {' or '.join(entry.suffixes) or 'of it'}, or without "
        f"one; found {len(left)} others: {_names([file.path for file in left])}. Files named by a path, or by a glob "
        f"such as 'folder/*{printable(suffix)}', are read whatever their suffix is."
    )


def _announce(entry: FormatEntry, left: Sequence[FoundFile], total: int, *, given: bool) -> None:
    """Log the number of skipped files, and the first of them."""
    hint = "" if given else (
        f" Pass Files(path, format={entry.name!r}) if that is right; to read such files, name them by a glob such as "
        "'folder/*.txt'."
    )  # fmt: skip
    _LOG.log(
        logging.INFO if given else logging.WARNING,
        "left out %d of %d files, which do not look like %s data; the first is %s.%s",
        len(left), total, entry.name, printable(left[0].path), hint,
    )  # fmt: skip


def _names(paths: Iterable[str]) -> str:
    return listed(paths, _SHOWN, printable)
