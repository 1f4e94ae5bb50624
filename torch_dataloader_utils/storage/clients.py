"""Files as a store's client opens them, and the client that uses pyarrow's filesystems."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from torch_dataloader_utils.storage.retries import ShortReadError
from torch_dataloader_utils.storage.s3_calls import s3_call
from torch_dataloader_utils.storage.versions import Stored, StoredFacts, facts_of, facts_of_info

Data = TypeVar("Data", bound=Sized)


class Opened(Protocol):
    """A file that a client has opened; readable while this object lives, by several threads at once if `parallel`.

    Attributes:
        parallel: whether several threads may read it.
        reusable: whether it may be kept for later reads, because it holds neither a connection nor content.
        facts: what the store reported when the file was opened; the size is always known.
    """

    parallel: bool
    reusable: bool
    facts: StoredFacts

    def read(self, start: int, stop: int) -> bytes | pa.Buffer:
        """The bytes `[start, stop)`, which must lie within the file; one request."""
        ...

    def now(self) -> StoredFacts:
        """What the store reports about the file now; no request if that could not show a change."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class ArrowClient:
    """A store accessed through a pyarrow filesystem. It stays in its process and retries nothing."""

    def __init__(self, fs: pafs.FileSystem) -> None:
        self.fs = fs

    def look(self, path: str) -> Stored | None:
        """The file or folder at `path`, or None."""
        with s3_call():
            info = self.fs.get_file_info(path)
        return None if info.type == pafs.FileType.NotFound else _stored(info)

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        with s3_call():
            infos = self.fs.get_file_info(pafs.FileSelector(folder, recursive=recursive))
        return [_stored(info) for info in infos if info.type != pafs.FileType.Directory]

    def children(self, folder: str) -> list[Stored]:
        """The files and folders in `folder`."""
        with s3_call():
            return list(map(_stored, self.fs.get_file_info(pafs.FileSelector(folder))))

    def open(self, path: str, size: int = 0) -> Opened:
        """The opened file; pyarrow always requests its metadata first."""
        return ArrowFile(self.fs, path)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The pyarrow filesystem."""
        return self.fs


class ArrowFile:
    """A file opened by pyarrow, which requests its metadata first.

    Args:
        fs: the filesystem.
        path: the file's path.
        typed: a context that replaces errors whose type does not show whether they are transient, where possible.
    """

    parallel = True

    def __init__(
        self, fs: pafs.FileSystem, path: str, typed: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._fs, self._path, self._typed = fs, path, typed
        self.reusable = isinstance(fs, pafs.S3FileSystem)
        with s3_call(), typed():
            self._file = fs.open_input_file(path)
            self.facts = _facts(self._file)

    def read(self, start: int, stop: int) -> pa.Buffer:
        """The bytes `[start, stop)`, in memory of pyarrow's pool: malloc would keep many MiB for each thread."""
        with s3_call(), self._typed(), self._file.get_stream(start, stop - start) as stream:
            return complete(stream.read_buffer(stop - start), start, stop)

    def now(self) -> StoredFacts:
        """What the store reports now: opened again, because only that returns the etag, or else as in a listing."""
        if not self.facts.version:
            return self.facts
        with s3_call(), self._typed():
            if self.facts.etag is not None:
                with self._fs.open_input_file(self._path) as again:
                    return _facts(again)
            info = self._fs.get_file_info(self._path)
            if info.type == pafs.FileType.NotFound:
                raise FileNotFoundError(self._path)
            return facts_of_info(info)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def complete(data: Data, start: int, stop: int) -> Data:
    """The data, checked to be all of the bytes `[start, stop)`.

    Raises:
        ShortReadError: it is shorter.
    """
    if len(data) < stop - start:
        raise ShortReadError(f"{len(data)} of the {stop - start} bytes from {start} arrived")
    return data


def _facts(file: pa.NativeFile) -> StoredFacts:
    headers = facts_of(file.metadata() or {})
    return StoredFacts(file.size(), headers.etag, headers.mtime)


def _stored(info: pafs.FileInfo) -> Stored:
    facts, folder = facts_of_info(info), info.type == pafs.FileType.Directory
    return Stored(info.path, facts.size or 0, facts.version, folder, written=facts.mtime)
