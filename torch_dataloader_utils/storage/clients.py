"""The clients of stores: fsspec's, pyarrow's, and the two as a pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import fsspec
import pyarrow.fs as pafs
from fsspec.asyn import AsyncFileSystem

from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage.native import native_filesystem
from torch_dataloader_utils.storage.retries import ShortReadError, past_end, permanent, status_of
from torch_dataloader_utils.storage.versions import Facts, Stored, check_unchanged, facts_of, facts_of_info

_GONE = (404, 410)


class Opened(Protocol):
    """A file that a client has opened; it can be read while this lives, and by several threads if `parallel`."""

    parallel: bool

    @property
    def facts(self) -> Facts:
        """What the store said when it was opened; the size always."""
        ...

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


class Client(Protocol):
    """A connection to a store. It stays in its process; each call is tried once."""

    fs: Any  # the fsspec or pyarrow filesystem

    def look(self, path: str) -> Stored | None:
        """What lies at `path`, or None."""
        ...

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        ...

    def open(self, path: str, size: int = 0) -> Opened:
        """The file: asked about in one request, or in none if its `size` in bytes is given and the client can."""
        ...

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The pyarrow filesystem that reads `path`, if one does; `typed` explains its errors."""
        ...

    def typed(self, path: str) -> AbstractContextManager[None]:
        """A context in which errors about `path` get the type that says whether they may pass."""
        ...


# ----------------------------------------------------------------------------------------------------------- fsspec


class FsspecClient:
    """A store through its fsspec client; listings are asked for anew each time."""

    def __init__(self, fs: fsspec.AbstractFileSystem) -> None:
        self.fs = fs

    def look(self, path: str) -> Stored | None:
        """What lies at `path`, or None."""
        if path.endswith("/") and path.startswith(("http://", "https://")):
            return Stored(path, folder=True)  # a page of links, which answers as a file does
        try:
            return _stored(path, self.info(path))
        except FileNotFoundError:
            return None

    def find(self, folder: str, recursive: bool) -> list[Stored]:
        """The files in `folder`, and below it if `recursive`."""
        self.fs.invalidate_cache()
        with _true_faults(self.fs):
            if _walks(self.fs):
                found = _walked(self.fs, folder, recursive)
            else:
                found = self.fs.find(folder, maxdepth=None if recursive else 1, detail=True)
        self.fs.invalidate_cache()
        return [_stored(path, info) for path, info in found.items() if info and info["type"] != "directory"]

    def open(self, path: str, size: int = 0) -> Opened:
        """The file; clients that read by path need no request where the size is known."""
        by_path = _reads_by_path(self.fs)
        asked = not (size and by_path)
        facts = facts_of(self.info(path)) if asked else Facts(size)
        if by_path:
            return _ByPath(self, path, facts, asked)
        return _ByHandle(self.fs.open(path, "rb"), facts)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """None."""
        return None

    def typed(self, path: str) -> AbstractContextManager[None]:
        """A context that changes nothing."""
        return nullcontext()

    def info(self, path: str) -> Mapping[str, Any]:
        """What the store says of `path`, now."""
        self.fs.invalidate_cache()
        with _true_faults(self.fs):
            found: Mapping[str, Any] = self.fs.info(path)
        return found

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)`, or all: one request. A server without ranges sends all."""
        with _true_faults(self.fs):
            data: bytes = self.fs.cat_file(path, start=start, end=stop)
        return data


class _ByPath:
    """A file of a client that keeps nothing open."""

    parallel = True

    def __init__(self, client: FsspecClient, path: str, facts: Facts, asked: bool) -> None:
        self._client = client
        self._path = path
        self._asked = asked  # the store, for these facts
        # All of the file, where its server has sent it: it knows no ranges, or no sizes.
        self._whole = client.read(path) if facts.size is None else None
        self.facts = facts if self._whole is None else Facts(len(self._whole), facts.etag, facts.mtime)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`."""
        try:
            return _complete(self._sent(start, stop), start, stop)
        except Exception as error:
            if past_end(error):
                self.confirm()
            raise

    def confirm(self) -> None:
        """Ask the store, unless it was asked."""
        if not self._asked:
            check_unchanged(DataFileInfo(self._path, self.facts.size or 0), self._client.open(self._path).facts)
            self._asked = True

    def close(self) -> None:
        """Let go of what was sent."""
        self._whole = None

    def _sent(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`, as far as they came."""
        if self._whole is None:
            data = self._client.read(self._path, start, stop)
            if len(data) <= stop - start:
                return data
            self._whole = data
        return self._whole[start:stop]


class _ByHandle:
    """A file that fsspec keeps open: of an archive, of a server with sessions."""

    parallel = False

    def __init__(self, handle: Any, facts: Facts) -> None:
        self._handle = handle
        self.facts = facts if facts.size is not None else Facts(handle.seek(0, 2), facts.etag, facts.mtime)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`."""
        self._handle.seek(start)
        return _complete(self._handle.read(stop - start), start, stop)

    def confirm(self) -> None:
        """Nothing: it was asked."""

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def _complete(data: bytes, start: int, stop: int) -> bytes:
    if len(data) < stop - start:
        raise ShortReadError(f"{len(data)} of the {stop - start} bytes from {start} came")
    return data


def _stored(path: str, info: Mapping[str, Any]) -> Stored:
    facts = facts_of(info)
    return Stored(path, facts.size or 0, facts.version, folder=info.get("type") == "directory")


def _walks(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether it lists by fsspec's own walk over folders."""
    kind = type(fs)
    if isinstance(fs, AsyncFileSystem):
        return kind.find is AsyncFileSystem.find and kind._find is AsyncFileSystem._find
    return kind.find is fsspec.AbstractFileSystem.find


def _walked(fs: fsspec.AbstractFileSystem, folder: str, recursive: bool) -> dict[str, Mapping[str, Any]]:
    """As its `find`, but a folder that cannot be listed is an error: fsspec's walk leaves it out."""
    found: dict[str, Mapping[str, Any]] = {}
    pending, seen = [folder], {folder}
    while pending:
        for info in fs.ls(pending.pop(), detail=True):
            if info["type"] != "directory":
                found[info["name"]] = info
            elif recursive and info["name"] not in seen:
                pending.append(info["name"])
                seen.add(info["name"])
    return found


def _reads_by_path(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether it has a way of its own to read a range of a path, instead of opening the file each time."""
    return isinstance(fs, AsyncFileSystem) or type(fs).cat_file is not fsspec.AbstractFileSystem.cat_file


@contextmanager
def _true_faults(fs: fsspec.AbstractFileSystem) -> Iterator[None]:
    """A context in which what clients report as something else is raised as what it is."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec's HTTP client says "not found" of every failed inquiry
        if cause is None or isinstance(cause, (LookupError, FileNotFoundError)) or status_of(cause) in _GONE:
            raise
        raise cause from None
    except OSError as error:
        if type(error) is OSError and error.errno is None and type(fs).__module__.startswith("gcsfs."):
            raise PermissionError(*error.args) from None  # all that gcsfs raises so are refusals (403)
        raise


# ---------------------------------------------------------------------------------------------------------- pyarrow


class ArrowClient:
    """A store through pyarrow's filesystem."""

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
        return _Native(self, path)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The filesystem."""
        return self.fs

    def typed(self, path: str) -> AbstractContextManager[None]:
        """A context that changes nothing: nobody knows better."""
        return nullcontext()


class _Native:
    """An open file of pyarrow."""

    parallel = True

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path
        filesystem = client.arrow(path)
        assert filesystem is not None
        with client.typed(path):
            self._native = filesystem.open_input_file(path)
            said = facts_of(self._native.metadata() or {})
            self.facts = Facts(self._native.size(), said.etag, said.mtime)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)`."""
        with self._client.typed(self._path):
            return _complete(self._native.read_at(stop - start, start), start, stop)

    def confirm(self) -> None:
        """Nothing: pyarrow has asked."""

    def close(self) -> None:
        """Close the file."""
        self._native.close()


def _listed(info: pafs.FileInfo) -> Stored:
    return Stored(info.path, info.size or 0, facts_of_info(info).version, folder=info.type == pafs.FileType.Directory)


# ------------------------------------------------------------------------------------------------------- both at once


class PairClient(FsspecClient):
    """A store through fsspec's client for listings and inquiries, and pyarrow's for data where that is the same."""

    def __init__(self, fs: fsspec.AbstractFileSystem) -> None:
        super().__init__(fs)
        self._natives: dict[str, pafs.FileSystem | None] = {}

    def open(self, path: str, size: int = 0) -> Opened:
        """The file, through pyarrow where that can: it asks first, and still reads more files a second."""
        return super().open(path, size) if self.arrow(path) is None else _Native(self, path)

    def arrow(self, path: str) -> pafs.FileSystem | None:
        """The pyarrow filesystem of the path's bucket, if there is one."""
        if "//" in path:
            return None  # pyarrow takes no empty part of a name
        bucket = path.partition("/")[0]
        if bucket not in self._natives:
            self._natives[bucket] = native_filesystem(self.fs, bucket)
        return self._natives[bucket]

    @contextmanager
    def typed(self, path: str) -> Iterator[None]:
        """A context in which an error of pyarrow without a type becomes fsspec's, where that says it is permanent."""
        try:
            yield
        except OSError as error:
            if type(error) is OSError:
                self._ask(path)
            raise

    def _ask(self, path: str) -> None:
        try:
            self.read(path, 0, 1)
        except Exception as typed:
            if permanent(typed):
                raise
