"""What a store's client opens, and the client that is pyarrow's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pyarrow.fs as pafs

from torch_dataloader_utils.storage.retries import ShortReadError
from torch_dataloader_utils.storage.versions import Facts, Stored, facts_of, facts_of_info


class Opened(Protocol):
    """A file that a client has opened; it can be read while this lives, and by several threads if `parallel`.

    Attributes:
        facts: what the store reported when it was opened; the size always.
    """

    parallel: bool
    facts: Facts

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`, which lie in the file: one request."""
        ...

    def confirm(self) -> None:
        """Check that the file has the size that it was opened by: asks the store, once, if it was not asked yet.

        Raises:
            FileChangedError: it has another.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class ArrowClient:
    """A store through pyarrow's filesystem. It stays in its process; each call is tried once."""

    def __init__(self, fs: pafs.FileSystem) -> None:
        self.fs = fs

    def look(self, path: str) -> Stored | None:
        """What lies at `path`, or None."""
        info = self.fs.get_file_info(path)
        return None if info.type == pafs.FileType.NotFound else _listed(info)

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        infos = self.fs.get_file_info(pafs.FileSelector(folder, recursive=recursive))
        return [_listed(info) for info in infos if info.type != pafs.FileType.Directory]

    def open(self, path: str, size: int = 0) -> Opened:
        """The file; pyarrow always asks about it first."""
        return ArrowFile(self.fs, path)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The filesystem."""
        return self.fs


class ArrowFile:
    """A file that pyarrow has opened, after asking the store about it.

    Args:
        fs: the filesystem.
        path: of the file.
        typed: a context in which errors get the type that shows whether they may pass, where somebody knows better.
    """

    parallel = True

    def __init__(
        self, fs: pafs.FileSystem, path: str, typed: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._typed = typed
        with typed():
            self._file = fs.open_input_file(path)
            headers = facts_of(self._file.metadata() or {})
            self.facts = Facts(self._file.size(), headers.etag, headers.mtime)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`."""
        with self._typed():
            return complete(self._file.read_at(stop - start, start), start, stop)

    def confirm(self) -> None:
        """Nothing: the store was asked."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def complete(data: bytes, start: int, stop: int) -> bytes:
    """The data, if it is all of the bytes `[start, stop)`.

    Raises:
        ShortReadError: it is less.
    """
    if len(data) < stop - start:
        raise ShortReadError(f"{len(data)} of the {stop - start} bytes from {start} arrived")
    return data


def _listed(info: pafs.FileInfo) -> Stored:
    return Stored(info.path, info.size or 0, facts_of_info(info).version, folder=info.type == pafs.FileType.Directory)
