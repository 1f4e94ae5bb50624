"""Locks of files, by which the processes of a machine wait for each other; a lock ends with its process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

if sys.platform != "win32":
    import fcntl

AVAILABLE = sys.platform != "win32"
# What says so, after what needs them.
NEEDED = "needs a Unix system: processes share its folder by locks of files that end with their process."


def acquire(file: int, *, shared: bool = False, most: float = inf, look: float = 0.02) -> bool:
    """Lock an open file, for this descriptor; False if others have held their locks for too long.

    Args:
        file: the descriptor.
        shared: whether others may have such a lock, too.
        most: seconds to wait; 0 for a single try.
        look: seconds between two tries.
    """
    kind, began = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic()
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - began >= most:
                return False
            time.sleep(look)
        else:
            return True


def release(file: int) -> None:
    """Give up the lock; closing alone would leave it with a child that was forked meanwhile."""
    fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def locked(path: str | os.PathLike[str], *, most: float = inf, look: float = 0.02) -> Iterator[int]:
    """A descriptor of the file (created if needed), locked against all other threads and processes.

    Args:
        path: the file.
        most: seconds to wait.
        look: seconds between two tries.

    Raises:
        TimeoutError: another process has held the lock for too long; it may be suspended.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not acquire(file, most=most, look=look):
            raise TimeoutError(f"another process has held {os.fspath(path)} for {most:.0f} s; it may be suspended")
        yield file
    finally:
        release(file)
        os.close(file)
