"""`cache_dir=`: remote files read through a folder on the local disk, shared by all processes of the node."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec

from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.storage.cache_file import CachedFile, CachedObject, ReadRanges
from torch_dataloader_utils.units import parse_bytes

_LOG = logging.getLogger(__name__)
_LEAST = 1 << 24  # bytes: less holds not even what a few threads read at a time


@dataclass(frozen=True)
class CacheOptions:
    """A folder for blocks of remote files, and how many bytes of them it may hold."""

    folder: str
    size_bytes: int


def cache_options(cache_dir: str | os.PathLike[str] | None, cache_bytes: int | str = "10GiB") -> CacheOptions | None:
    """The checked options of a cache, or None without a folder. Makes the folder if need be.

    Raises:
        OptionError: the folder cannot be written, or `cache_bytes` is no size or too small.
        MissingExtraError: diskcache is not installed.
    """
    size = parse_bytes(cache_bytes, "cache_bytes")
    if cache_dir is None:
        return None
    if size < _LEAST:
        raise OptionError(f"cache_bytes={cache_bytes!r}: expected at least 16 MiB.")
    if find_spec("diskcache") is None:
        raise MissingExtraError("cache_dir= needs diskcache: pip install 'torch-dataloader-utils[cache]'")
    folder = os.path.abspath(os.path.expanduser(cache_dir))
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(
            f"cache_dir={os.fspath(cache_dir)!r}: expected a folder on a local disk that can be written: {error}"
        ) from error
    return CacheOptions(folder, size)


def can_cache(storage_identity: str, file: DataFileInfo) -> bool:
    """Whether the store tells the file's size and version, so that a changed file is noticed; warns once if not."""
    known = bool(file.version) and file.file_size > 0
    if not known:
        _warn_unversioned(storage_identity)
    return known


@functools.cache
def _warn_unversioned(storage_identity: str) -> None:
    _LOG.warning(
        "%s tells no version of its files (an etag or a time of change), so a changed file could not be told from a "
        "cached one: files without a version are read without the cache.",
        storage_identity,
    )


def open_cached(
    storage_identity: str, file: DataFileInfo, read_ranges: ReadRanges, options: CacheOptions
) -> CachedFile:
    """The file, open for random reads through the cache: what lies there is not asked of the store again.

    Args:
        storage_identity: which store: protocol, endpoint, bucket; no secrets.
        file: with the size and version that its bytes are kept under: other versions have other bytes.
        read_ranges: `(path, ranges) -> bytes of each`, of that version only; asked for what the cache lacks.
        options: where blocks are kept.
    """
    from torch_dataloader_utils.storage.cache_store import block_store  # needs an extra

    store = block_store(options.folder, options.size_bytes)
    return CachedFile(CachedObject(storage_identity, file, read_ranges, store), "r")
