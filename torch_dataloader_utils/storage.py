"""Where files lie, and how any process opens them.

A `Storage` travels; connections do not: each process builds its own from the recipe, because clients of remote stores
survive neither a fork nor a pickle. Everything is read through pyarrow's filesystem interface.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
from fsspec.core import split_protocol, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, MissingExtraError, OptionError

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}

# The process in which this module was imported: in a forked child os.getpid() differs from it.
_BORN = os.getpid()


@dataclass(frozen=True)
class Storage:
    """A place that holds files; without recipe and filesystem, the local disk. Picklable, and shows no secret.

    Attributes:
        protocol: such as "file" or "s3".
        recipe: class, arguments and options of the fsspec filesystem that each process builds for itself.
        filesystem: the fsspec or pyarrow filesystem that the user gave instead.
    """

    protocol: str = "file"
    recipe: tuple[type[Any], tuple[Any, ...], Mapping[str, Any]] | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)

    def __hash__(self) -> int:
        return hash(self.protocol)  # options and filesystems need not be hashable; equality compares them

    @property
    def local(self) -> bool:
        """Whether files are opened straight from the local disk."""
        return self.recipe is None and self.filesystem is None

    def connect(self) -> pafs.FileSystem:
        """This process's connection, as a pyarrow filesystem (made once per process)."""
        return _connect(self, os.getpid())

    def open(self, path: str) -> pa.NativeFile:
        """The file at `path`, open for random reads; on the local disk unmapped, so that a cut file is no crash."""
        return pa.OSFile(path, "rb") if self.local else self.connect().open_input_file(path)

    def look(self, path: str) -> pafs.FileInfo:
        """What lies at `path`: its type (File, Directory, NotFound) and size in bytes."""
        with naming(path):
            return self.connect().get_file_info(path)

    def find(self, folder: str, recursive: bool = True) -> list[tuple[str, int]]:
        """(path, bytes) of the files in `folder`, and below it if `recursive`, sorted by path: one listing."""
        with naming(folder):
            infos = self.connect().get_file_info(pafs.FileSelector(folder, recursive=recursive))
        files = [(info.path, info.size or 0) for info in infos if info.type != pafs.FileType.Directory]
        return sorted(file for file in files if not file[0].endswith("/"))


@contextmanager
def naming(path: str, piece: str = "") -> Iterator[None]:
    """A context that turns what a store or decoder raises into a `FileReadError` naming the file and the piece of it.

    pyarrow's and the stores' own errors seldom say which file they are about, and come from many unrelated classes.
    """
    try:
        yield
    except (DataLoaderUtilsError, MemoryError):
        raise
    except Exception as error:
        where = ", ".join(filter(None, [printable(path), piece]))
        raise FileReadError(f"{where}: cannot be read: {type(error).__name__}: {error}") from error


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_storage(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None, filesystem: Any = None
) -> tuple[Storage, str]:
    """The storage that `path` lies on, and the path as that storage names it (absolute on the local disk).

    Args:
        path: a local path or a URL such as "s3://bucket/folder".
        storage_options: what the fsspec filesystem of the URL's protocol takes (credentials, endpoints).
        filesystem: a ready fsspec or pyarrow filesystem, used instead.

    Raises:
        MissingExtraError: the protocol's client is not installed.
        OptionError: the protocol is not known, or `filesystem` is no filesystem.
    """
    url = stringify_path(path)
    if not isinstance(url, str) or not url:
        raise OptionError(f"path={path!r}: expected a path or URL, or a list of these.")
    if filesystem is not None:
        return _given_storage(url, filesystem)
    protocol = split_protocol(url.rpartition("::")[2])[0] or "file"
    fs, inner = _url_to_fs(url, protocol, storage_options or {})
    if type(fs) is LocalFileSystem:
        return Storage(), inner
    return Storage(protocol, (type(fs), tuple(fs.storage_args), dict(fs.storage_options))), inner


def _url_to_fs(url: str, protocol: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    try:
        fs, path = url_to_fs(url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install 'torch-dataloader-utils[{extra}]'" if extra else str(error)
        raise MissingExtraError(f"{protocol}:// needs a client that is not installed: {remedy}") from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise
        raise OptionError(
            f"{protocol}:// is no protocol known here: register it with fsspec, or give filesystem=."
        ) from error
    return fs, path


def _given_storage(url: str, filesystem: Any) -> tuple[Storage, str]:
    if isinstance(filesystem, pafs.LocalFileSystem) or type(filesystem) is LocalFileSystem:
        return Storage(), url_to_fs(url)[1]
    if isinstance(filesystem, pafs.FileSystem):
        path = split_protocol(url)[1].rstrip("/")
        return Storage(filesystem.type_name, filesystem=filesystem), path
    if isinstance(filesystem, fsspec.AbstractFileSystem):
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        return Storage(protocol, filesystem=filesystem), filesystem._strip_protocol(url)
    raise OptionError(f"filesystem={type(filesystem).__name__}: expected an fsspec or a pyarrow filesystem.")


@lru_cache(maxsize=32)
def _connect(storage: Storage, pid: int) -> pafs.FileSystem:
    if storage.local:
        return pafs.LocalFileSystem()
    if storage.recipe is not None:
        kind, args, options = storage.recipe
        fs = kind(*args, **options)
    else:
        # A forked child must not use its parent's sockets: unpickling makes a filesystem of its own.
        fs = storage.filesystem if pid == _BORN else pickle.loads(pickle.dumps(storage.filesystem))
    return fs if isinstance(fs, pafs.FileSystem) else pafs.PyFileSystem(pafs.FSSpecHandler(fs))


def printable(path: str) -> str:
    """`path` without a URL's query, where signed links carry their secret."""
    return path.partition("?")[0] if "://" in path else path
