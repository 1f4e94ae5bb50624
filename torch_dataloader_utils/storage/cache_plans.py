"""Which files running loaders read through a cache, told to all processes that share its folder: plans.

A plan is a file in the folder that its process holds locked, so it counts as long as the process lives, however that
ends. So a block of a loader whose pass takes longer than an hour is of use to it, whichever loader needs room, and
worker processes know what their loader reads.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from weakref import finalize

from torch_dataloader_utils.storage.file_locks import acquire, release

# A block that this many passes over the same data have not used is one that they do not read, such as other columns.
PASSES = 4
_UNUSED = 120.0  # seconds by which a use may lie before the pass that it is of: uses within a minute count as one
_MAKING = 600.0  # seconds after which a plan without content is not being made any more
_SINCE = struct.Struct("<d")  # at the beginning of a plan: since when its blocks are of use, in seconds since 1970
_DIGEST = 16  # bytes for each file, after that
_NAME = re.compile(r"plan-[0-9a-f]{32}")


class CachePlan:
    """The plan of a loader: which files its passes read.

    Args:
        folder: of the cache.
        files: the digests of the files, in hex.
        passes: complete passes after which a block that they did not use may go; None: never.
        attempt: does work in the folder; its errors are reported there.
    """

    def __init__(
        self, folder: str, files: Sequence[str], passes: int | None, attempt: Callable[[Callable[[], None]], None]
    ) -> None:
        self._folder, self._files, self._attempt = folder, files, attempt
        self._passes: deque[float] = deque(maxlen=passes or 0)  # when the last complete ones began
        self._began = 0.0
        self._path, self._pid = "", os.getpid()
        self._held: finalize[..., CachePlan] | None = None

    def begin(self) -> None:
        """A pass begins now: its files are of use from now on, as long as this object lives."""
        self._began = time.time()
        if self._held is None or self._pid != os.getpid() or not os.path.exists(self._path):
            self._held = None  # a plan that is inherited by a fork is the parent's
            self._attempt(self._hold)

    def complete(self) -> None:
        """The pass that began last has read all of its data."""
        self._passes.append(self._began)
        if self._held is not None and len(self._passes) == self._passes.maxlen:
            self._attempt(self._tell)

    def close(self) -> None:
        """Its files are of no use to this loader any more."""
        if self._held is not None:
            self._held()
            self._held = None

    def _hold(self) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path, self._pid = os.path.join(self._folder, f"plan-{os.urandom(16).hex()}"), os.getpid()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        held = finalize(self, _release, descriptor, path, self._pid)
        try:
            acquire(descriptor)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(_SINCE.pack(self._since) + bytes.fromhex("".join(self._files)))
        except BaseException:
            held()
            raise
        self._path, self._held = path, held

    def _tell(self) -> None:
        with suppress(FileNotFoundError), open(self._path, "r+b", buffering=0) as file:  # the folder was removed
            file.write(_SINCE.pack(self._since))

    @property
    def _since(self) -> float:
        """Since when blocks of its files are of use; 0: always."""
        known = self._passes.maxlen and len(self._passes) == self._passes.maxlen
        return self._passes[0] - _UNUSED if known else 0.0


def _release(descriptor: int, path: str, pid: int) -> None:
    """Remove a plan, unless this process inherited it by a fork."""
    if pid == os.getpid():
        with suppress(OSError):
            os.unlink(path)
    os.close(descriptor)


def kept_since(folder: str) -> dict[str, float]:
    """Of each file that running loaders read, since when its blocks are of use, in seconds since 1970; by its digest.

    Removes the plans of processes that have ended.
    """
    since: dict[str, float] = {}
    for data in _live(folder):
        (time_of,) = _SINCE.unpack_from(data)
        for at in range(_SINCE.size, len(data) - _DIGEST + 1, _DIGEST):
            file = data[at : at + _DIGEST].hex()
            since[file] = min(since.get(file, time_of), time_of)
    return since


def _live(folder: str) -> Iterator[bytes]:
    """The plans of running processes."""
    for entry in list(os.scandir(folder)):
        if _NAME.fullmatch(entry.name):
            with suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(descriptor, "rb") as file:
                    data = file.read()
                    if _is_held(file.fileno()):
                        if len(data) >= _SINCE.size:
                            yield data
                    elif data or time.time() - os.fstat(file.fileno()).st_mtime > _MAKING:
                        os.unlink(entry.path)


def _is_held(descriptor: int) -> bool:
    """Whether a process has locked the file."""
    if not acquire(descriptor, shared=True, most=0):
        return True
    release(descriptor)
    return False
