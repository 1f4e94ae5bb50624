"""Footers that the ranks of a node share: the first one reads and writes them, all of them map that file.

The file's name is a digest of the listing, of which each rank makes its own: so it holds the footers of these very
files, and a rank that sees other files reads theirs. It lives in memory (/dev/shm) as long as a process maps it: each
holds a shared lock, and the last one to let go removes it. The kernel releases the locks of killed processes; a file
that nobody holds is removed by whoever comes an hour later.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import time
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import reduce
from itertools import islice, pairwise
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import DataLoaderUtilsError
from torch_dataloader_utils.storage.file_locks import AVAILABLE, acquire
from torch_dataloader_utils.storage.waiting import limit

_LOG = logging.getLogger("torch_dataloader_utils")
_FOLDER = "/dev/shm"
_SCHEMA = pa.schema({"footer": pa.large_binary()})
_LEFT = 3600  # seconds after which a file that nobody holds is removed
_SHARE = 4  # a file takes at most this part of the free memory there

_BATCH = 256  # footers written at a time

Footers: TypeAlias = Sequence[memoryview | None]
Make: TypeAlias = Callable[[], Generator[bytes | None]]


def shared_footers(name: str, count: int, make: Make, folder: str = _FOLDER) -> Footers | None:
    """The packed footers of a listing, in memory that the processes of this node share; None if they cannot share it.

    Args:
        name: a digest of the listing.
        count: how many files there are.
        make: reads their footers; None of a file that has none. Called on one process; the others wait for it, as long
            as the time limit of this context. Its errors are raised.
        folder: of files in memory.
    """
    if not AVAILABLE:
        return None
    _remove_left(folder)
    path = os.path.join(folder, f"{_prefix()}{name}")
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _LOG.debug("%s: footers are not shared: %s", path, error)
            return None
        kept = False
        try:
            if not _is_private(file) or not _locked(file, shared=True):
                return None
            # The one that finds it unfinished locks it alone; by then, another one may have written it.
            if _holds_name(file) and not _is_finished(file) and not _locked(file):
                return None
            if not _holds_name(file):
                continue  # the last process that held it has removed it
            if not _is_finished(file) and not _written(file, path, count, make):
                return None
            acquire(file, shared=True)
            kept = True
            return _mapped(file, path)
        finally:
            if not kept:
                os.close(file)


def _prefix() -> str:
    return f"tdu-footers-{os.geteuid()}-"


def _is_private(file: int) -> bool:
    """Whether nobody else can change what the file holds."""
    status = os.fstat(file)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _locked(file: int, *, shared: bool = False) -> bool:
    """Lock a file; False if another process has held it for too long."""
    most = limit() or inf
    if acquire(file, shared=shared, most=most):
        return True
    _LOG.warning("another process has been reading footers for %.0f s: this one reads them, too", most)
    return False


def _holds_name(file: int) -> bool:
    return os.fstat(file).st_nlink > 0


def _written(file: int, path: str, count: int, make: Make) -> bool:
    """Write an Arrow IPC file of the footers; False if there is no room, and then it is removed."""
    done = False
    try:
        os.ftruncate(file, 0)
        with (
            open(file, "wb", closefd=False) as out,
            pa.ipc.new_file(out, _SCHEMA) as sink,
            closing(make()) as footers,
        ):
            done = all(_fits(file, written, count) for written in _batches(sink, footers))
    except OSError as error:
        done = False
        if isinstance(error, DataLoaderUtilsError):  # of a file that is read
            raise
        _LOG.debug("%s: footers are not shared: %s", path, error)
    finally:
        if not done:
            os.unlink(path)
    return done


def _batches(sink: pa.RecordBatchWriter, footers: Iterator[bytes | None]) -> Iterator[tuple[int, int]]:
    """Write footers in batches, and their checksum as the last one; returns the number and bytes of each batch."""
    checksum = 0
    while part := list(islice(footers, _BATCH)):
        column = pa.array(part, pa.large_binary())
        checksum = _added(checksum, column)
        sink.write_batch(pa.record_batch([column], schema=_SCHEMA))
        yield len(part), column.nbytes
    sink.write_batch(pa.record_batch([pa.array([_sealed(checksum)], pa.large_binary())], schema=_SCHEMA))


def _fits(file: int, written: tuple[int, int], count: int) -> bool:
    """Whether there is room for all footers, if they are as large as those that were written."""
    number, size = written
    room = os.fstatvfs(file)
    return size * count // number * _SHARE <= room.f_bavail * room.f_frsize


def _values(footers: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """Where footers begin and end, int64 [footers + 1], and the memory that has them."""
    _, ends, values = footers.buffers()
    return np.frombuffer(ends, np.int64, len(footers) + 1), values or pa.py_buffer(b"")


def _added(checksum: int, footers: pa.LargeBinaryArray) -> int:
    ends, values = _values(footers)
    return zlib.crc32(memoryview(values)[: ends[-1]], zlib.crc32(ends.data, checksum + footers.null_count))


def _sealed(checksum: int) -> bytes:
    return checksum.to_bytes(8, "little")


def _is_finished(file: int) -> bool:
    """Whether all of a file was written: not if the process that wrote it was killed."""
    if not os.fstat(file).st_size:
        return False
    try:
        *parts, seal = _columns(pa.py_buffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ)))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return bool(seal.to_pylist() == [_sealed(reduce(_added, parts, 0))])


def _columns(memory: pa.Buffer) -> list[pa.LargeBinaryArray]:
    """The batches of a file."""
    file = pa.ipc.open_file(memory)
    return [file.get_batch(number).column(0) for number in range(file.num_record_batches)]


class _Mapping(mmap.mmap):
    """A file in memory, which can be referred to weakly."""


def _mapped(file: int, path: str) -> list[memoryview | None]:
    """The footers of a finished file, mapped; it is held until all of them are gone."""
    mapping = _Mapping(file, 0, access=mmap.ACCESS_READ)
    weakref.finalize(mapping, _let_go, file, path, os.getpid())
    memory, whole, found = memoryview(mapping), pa.py_buffer(mapping), list[memoryview | None]()
    for column in _columns(whole)[:-1]:
        ends, values = _values(column)
        places = (ends + (values.address - whole.address)).tolist()
        pairs = zip(column.is_valid().to_pylist(), pairwise(places), strict=True)
        found += [memory[first:last] if there else None for there, (first, last) in pairs]
    return found


def _let_go(file: int, path: str, pid: int) -> None:
    """Let go of a file, and remove it if nobody else holds it."""
    if os.getpid() == pid:  # a forked child has its parent's lock
        _remove_unheld(file, path)
    with suppress(OSError):
        os.close(file)


def _remove_unheld(file: int, path: str) -> None:
    with suppress(OSError):
        if acquire(file, most=0) and os.fstat(file).st_nlink:
            os.unlink(path)


def _remove_left(folder: str) -> None:
    """Remove files of this user that nobody has held for an hour: processes that were killed left them."""
    for path in _old(folder):
        with suppress(OSError), _opened(path) as file:
            _remove_unheld(file, path)


def _old(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_prefix()) and time.time() - entry.stat(follow_symlinks=False).st_mtime > _LEFT:
                yield entry.path


@contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
