"""Columns from folders named `key=value`: which folders count, and their values as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, TypeAlias
from urllib.parse import unquote

from torch_dataloader_utils.errors import OptionError, use
from torch_dataloader_utils.model import DataFile, DataFileInfo, IcebergDataFileInfo
from torch_dataloader_utils.options import Hive, ReadOptions
from torch_dataloader_utils.options.late_clashes import NO_PARTITIONS
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.files import FoundFile
from torch_dataloader_utils.storage import open_storage
from torch_dataloader_utils.storage.spelling import is_utf8, one_spelling

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WEB = ("http://", "https://")


def partition_values(files: Sequence[FoundFile], read: ReadOptions) -> list[dict[str, str | None]]:
    """The values of the `key=value` folders in each file's path, as decoded text or None for hive's null.

    All folders of the path count, also those above the folder or glob that was given, so that a file has the same
    keys however it was named; with `Hive(root)`, those below it. A key that occurs twice has the value of the lower
    folder. Links keep their names.

    "auto" returns values only if all files have the same keys.

    Raises:
        OptionError: with `Hive(...)`, files have different keys, or a file is not below the root; or a key or value is
            not text. The message names a file.
    """
    partitioning, paths = read.partitioning, [file.path for file in files]
    if partitioning is None:
        return [{} for _ in files]
    values, differing = _keys_of_all(paths, _levels_above(paths, read))
    if differing is None:
        _reject_bytes(paths, values)
        return values
    if not isinstance(partitioning, Hive):
        return [{} for _ in paths]
    raise OptionError(
        f"partitioning={partitioning!r}: {_different_keys(paths, values, differing)}: all files must have the same "
        "keys.",
        remedies=[use("reads them without these columns", partitioning=None)],
    )


Order: TypeAlias = "tuple[tuple[tuple[str, int, float, str], ...], str]"


def partition_order(path: str) -> Order:
    """The place of a file among others by the values of its `key=value` folders, then by its path.

    Whole numbers are in order as numbers, before other values as text; hive's null is last. Of a folder (a path that
    ends in a slash) the values are those of its files.
    """
    return _values_in_order(_folder(path)), path


@lru_cache(maxsize=1 << 16)  # there are far fewer folders than files
def _values_in_order(folder: str) -> tuple[tuple[str, int, float, str], ...]:
    return tuple((key, *_in_order(value)) for key, value in _keys_of(folder, 0).items())


def _in_order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0, ""
    if isinstance(value, (int, float, Decimal)) and value == value:
        return 0, value, ""  # type: ignore[return-value]  # a Decimal has an order among them
    text = value.hex() if isinstance(value, bytes) else value.isoformat() if isinstance(value, date) else str(value)
    whole = re.fullmatch("-?[0-9]{1,4000}", text, re.ASCII)  # Python parses no longer ones
    return (0, int(text), "") if whole and isinstance(value, str) else (1, 0, text)  # 07 is 7


def in_partitions(files: Sequence[DataFile], relative: Mapping[str, str]) -> tuple[DataFile, ...]:
    """The files, each with the number of its partition among all, by `partition_order`.

    The partition of a file is that of the table, or all `key=value` folders of its path; without any, its folder.

    Args:
        files: the files.
        relative: path -> path below the folder that was given, of those found in one.

    Raises:
        OptionError: there are no partitions.
    """
    keys = [_partition_of(file.info) for file in files]
    folders = {relative.get(file.info.path, "").rpartition("/")[0] for file in files}
    if files and not any(values for values, _ in keys) and len(set(keys)) == 1 and folders == {""}:
        table = isinstance(files[0].info, IcebergDataFileInfo)
        raise NO_PARTITIONS.between("", "a table without any" if table else printable(files[0].info.path))
    turns = {key: turn for turn, key in enumerate(sorted(set(keys)))}
    return tuple(replace(file, info=replace(file.info, turn=turns[key])) for file, key in zip(files, keys, strict=True))


def _partition_of(info: DataFileInfo) -> Order:
    """The place of a file's partition among others."""
    if isinstance(info, IcebergDataFileInfo):
        return tuple((name, *_in_order(value)) for name, value in info.partition.items()), ""
    folder = _folder(info.path)
    values = _values_in_order(folder)
    return values, "" if values else folder


def without_partitions(files: Sequence[FoundFile]) -> str:
    """Why partitioning="auto" makes no column of folders named `key=value`; "" if it does, or there are none."""
    paths = [file.path for file in files]
    values, differing = _keys_of_all(paths)
    return "" if differing is None else _different_keys(paths, values, differing)


def _levels_above(paths: Sequence[str], read: ReadOptions) -> int:
    """The number of folders at the top of each path that do not count: those of the root.

    Raises:
        OptionError: a file is not below the root.
    """
    if not isinstance(read.partitioning, Hive) or read.partitioning.root is None:
        return 0
    storage, inner = open_storage(read.partitioning.root, read.storage_options, read.filesystem)
    spelled, inner = partial(_without_revision, protocol=storage.protocol), inner.rstrip("/")
    root = spelled(inner or "/")
    for path in paths:
        if not spelled(path).startswith(root if root.endswith("/") else f"{root}/"):
            raise OptionError(
                f"{printable(path)} is not below the root of partitioning={read.partitioning!r}.",
                remedies=[use("counts all folders of a path", partitioning=read.partitioning.replace(root=None))],
            )
    return len(_names(_folder(f"{inner}/")))


def _without_revision(path: str, protocol: str) -> str:
    """A path as its other names are spelled, too; in a repository of the Hub, without the commit."""
    spelled = one_spelling(path, protocol)
    return re.sub("@[^/]*", "", spelled, count=1) if protocol == "hf" else spelled


def _reject_bytes(paths: Sequence[str], values: Sequence[Mapping[str, str | None]]) -> None:
    """Reject keys and values that are no text: columns could not hold them."""
    folders = {id(texts): (path, texts) for path, texts in zip(paths, values, strict=True)}  # one object per folder
    for path, texts in folders.values():
        if not all(is_utf8(text) for item in texts.items() for text in item if text is not None):
            raise OptionError(
                f"{printable(path)}: a folder named key=value would become a column, but its name is not valid UTF-8, "
                "until it is renamed.",
                remedies=[use("reads the files without these columns", partitioning=None)],
            )


def _keys_of_all(paths: Sequence[str], above: int = 0) -> tuple[list[dict[str, str | None]], int | None]:
    """The values per path, and the number of the first path whose keys are not those of the first one."""
    keys_of = lru_cache(maxsize=None)(_keys_of)  # there are far fewer folders than files
    values = [keys_of(_folder(path), above) for path in paths]
    return values, next((i for i, texts in enumerate(values) if texts.keys() != values[0].keys()), None)


def _different_keys(paths: Sequence[str], values: Sequence[Mapping[str, str | None]], differing: int) -> str:
    return (
        f"{printable(paths[differing])} has the keys {list(values[differing])}, but {printable(paths[0])} has "
        f"{list(values[0])}"
    )


def _folder(path: str) -> str:
    """The folder of a file, without its store; the query of a URL may have slashes, too."""
    if path.startswith(_WEB):
        path = re.split("[?#]", path.partition("://")[2].partition("/")[2])[0]
        # A web server's names are percent-encoded once more; some also write "=" so.
        return "/".join(unquote(name).replace("/", "%2F") for name in path.split("/")[:-1])
    return path.rpartition("/")[0]


def _names(folder: str) -> list[str]:
    """The names of the folders on the way to a folder, from the top."""
    names: list[str] = []
    for name in folder.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names


def keys_of_folder(name: str) -> dict[str, str | None]:
    """The key and value of a folder by its name; empty if it has none."""
    return _keys_of(name, 0)


def _keys_of(folder: str, above: int) -> dict[str, str | None]:
    pairs = (name.partition("=") for name in _names(folder)[above:])
    return {unquote(key): None if value == _NULL else unquote(value) for key, equals, value in pairs if key and equals}
