"""The files of the local disk: links are followed, and what is no regular file is named for what it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Self
from weakref import finalize

import pyarrow as pa
import pyarrow.fs as pafs

from torch_dataloader_utils.errors import DataNotFoundError
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.storage.clients import ArrowClient
from torch_dataloader_utils.storage.versions import Stored, StoredFacts, as_planned, check_unchanged, replaced

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class LocalClient(ArrowClient):
    """The local disk."""

    def __init__(self) -> None:
        super().__init__(pafs.LocalFileSystem())

    def look(self, path: str) -> Stored | None:
        """The file or folder at `path`, or None; a link that leads nowhere is a `special` one."""
        try:
            return _stored(path, os.stat(path), os.path.realpath(path))
        except (FileNotFoundError, NotADirectoryError):
            return _dangling(path) if os.path.islink(path) else None

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`, those behind links too.

        A file occurs once by each name, with the same `real` path. A link to a folder that contains the link, perhaps
        through other links, is not followed.

        Raises:
            DataNotFoundError: links lead to each other in too many ways.
        """
        found, links = _scanned(folder.rstrip("/"), os.path.realpath(folder), recursive)
        followed = 0
        while links:
            path, holders = links.popitem()
            target = os.path.realpath(path)
            if not os.path.isdir(target):
                found.append(_behind(path, target))
            elif recursive and not any(_within(holder, target) for holder in holders):
                files, more = _scanned(path, target, recursive, holders)
                found += files
                links |= more
                followed += 1
                if followed > _MOST_LINKS:
                    raise DataNotFoundError(
                        f"{printable(folder)}: more than {_MOST_LINKS} links to folders, the last of them "
                        f"{printable(path)}: remove links that lead to each other, or name the folders."
                    )
        return found


class LocalFile(pa.OSFile):  # type: ignore[misc]
    """A data file of the local disk, open for random reads, after checking that it is the one that was planned.

    Args:
        file: the file as planned.
        remedy: a sentence for the error about a file that is another one.

    Raises:
        FileChangedError: it is another one, or no regular file.
    """

    _found: os.stat_result  # of the path, just before

    def __new__(cls, file: DataFileInfo, remedy: str = "") -> Self:
        """Opens the file; a pipe in its place would be waited for without end."""
        found = os.stat(file.path)
        if not stat.S_ISREG(found.st_mode):
            raise replaced(file)
        # Bytes, because a name need not be valid UTF-8.
        made: Self = super().__new__(cls, os.fsencode(file.path), "rb")
        made._found = found
        return made

    def __init__(self, file: DataFileInfo, remedy: str = "") -> None:
        self._planned, self._remedy = file, remedy
        self._own: int | None = None
        try:
            status = os.fstat(self.fileno())  # not by path, which may name another file by now
            self._identity = status.st_dev, status.st_ino
            check_unchanged(file, _facts(status))
            if self._own is not None and not os.path.samestat(status, self._found):
                raise replaced(file)  # between the two descriptors
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The file's descriptor; that of pyarrow's file, which tells it only since version 25."""
        try:
            return super().fileno()  # type: ignore[no-any-return]
        except AttributeError:
            if self._own is None:
                self._own = os.open(self._planned.path, os.O_RDONLY)
                self._close_own = finalize(self, os.close, self._own)
            return self._own

    def close(self) -> None:
        """Close it."""
        super().close()
        if self._own is not None:
            self._close_own()

    def confirm(self) -> None:
        """Check that the file was neither written to nor replaced since it was opened.

        Only here are inodes compared: copies on other machines have others, and some network file systems number a
        file anew when no one has it open.

        Raises:
            FileChangedError: it was.
        """
        with as_planned(self._planned, self._remedy):
            status = os.stat(self._planned.path)
            check_unchanged(self._planned, _facts(status))
            if (status.st_dev, status.st_ino) != self._identity:
                raise replaced(self._planned)


_MOST_LINKS = 10_000  # followed to folders: links among n folders make up to n! paths


def _scanned(
    folder: str, real: str, recursive: bool, holders: tuple[str, ...] = ()
) -> tuple[list[Stored], dict[str, tuple[str, ...]]]:
    """The files in a folder, and below it if `recursive`; and the links there, each with the real folders that hold it.

    Args:
        folder: the folder's path.
        real: that path without links.
        recursive: whether to look below it.
        holders: the real folders that hold the links behind which the folder is.
    """
    files: list[Stored] = []
    links: dict[str, tuple[str, ...]] = {}
    folders = [(folder, real)]
    while folders:
        path, place = folders.pop()
        for entry in _entries(path or "/"):
            name, its = f"{path}/{entry.name}", os.path.join(place, entry.name)
            if entry.is_symlink():
                links[name] = (*holders, place)
            elif not entry.is_dir():
                files.append(_stored(name, entry.stat(), its, linked=bool(holders)))
            elif recursive:
                folders.append((name, its))
    return files, links


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _behind(path: str, target: str) -> Stored:
    """What a link that does not lead to a folder leads to."""
    try:
        return _stored(path, os.stat(target), target, linked=True)
    except OSError:  # there is nothing, or the link leads to itself
        return _dangling(path)


def _facts(status: os.stat_result) -> StoredFacts:
    return StoredFacts(status.st_size, mtime=status.st_mtime_ns)


def _dangling(path: str) -> Stored:
    return Stored(path, special=f"a link to {os.readlink(path)}, which does not exist", linked=True)


def _stored(path: str, status: os.stat_result, real: str, linked: bool = False) -> Stored:
    folder = stat.S_ISDIR(status.st_mode)
    special = "" if folder or stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
    facts, size = _facts(status), 0 if folder else status.st_size
    return Stored(path, size, facts.version, folder, real, linked, special, facts.mtime)


def _within(folder: str, other: str) -> bool:
    """Whether a folder is `other` or below it."""
    return f"{folder}/".startswith(f"{other.rstrip('/')}/")
