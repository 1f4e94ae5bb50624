"""What this process and the others of its session hold: threads, descriptors, memfds, processes, files.

before = held(folder)
... a round of faults ...
assert not left_over(before, folder)
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Held = dict[str, Counter[str]]

PATIENCE = 20.0  # seconds for processes to end: the machine may be busy
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Process:
    """A line of /proc: the process, its parent, its session and its state ("Z": ended and not collected)."""

    pid: int
    parent: int
    session: int
    state: str


def processes() -> Iterator[Process]:
    """All processes of the machine."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
            continue
        yield Process(int(path.name), int(fields[1]), int(fields[3]), fields[0])


def of_session(session: int) -> set[int]:
    """The processes of a session that live, or that a parent in it has not collected."""
    ours = {process.pid: process for process in processes() if process.session == session}
    return {pid for pid, process in ours.items() if process.state != "Z" or process.parent in ours}


def held(folder: Path) -> Held:
    """What this process, its session and the temporary folder hold now."""
    gc.collect()
    return {
        "threads": Counter(thread.name for thread in threading.enumerate()),
        # Without those that pyarrow's S3 clients keep for their connections, and use again.
        "descriptors": Counter(kind for kind in map(_kind, _open_files()) if kind != "anon_inode:[eventfd]"),
        "mappings": Counter(line for line in Path("/proc/self/maps").read_text().splitlines() if "tdu-slot" in line),
        "processes": Counter(map(str, of_session(os.getsid(0)))),
        "shared memory": Counter(shared_names()),
        # Without the addresses of children's fork servers, which lie in this process's folder and go with it.
        "files": Counter(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_socket()),
    }


def shared_names() -> set[str]:
    """The shared segments of the machine, without those that come and go with other programs.

    These are semaphores, and the segments of PostgreSQL, which a test beside this one may run.
    """
    return {path.name for path in SHARED.glob("*") if not path.name.startswith(("sem.", "PostgreSQL."))}


def left_over(before: Held, folder: Path, patience: float = PATIENCE) -> dict[str, dict[str, int]]:
    """What is held beyond `before`, once processes and threads had so many seconds to end."""
    deadline = time.monotonic() + patience
    while True:
        now = held(folder)
        more = {kind: dict(now[kind] - before[kind]) for kind in before if now[kind] - before[kind]}
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.05)


def wait_for_end(session: int, patience: float = PATIENCE) -> set[int]:
    """The processes of a session that have not ended in time."""
    deadline = time.monotonic() + patience
    while (alive := of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield os.readlink(entry)
        except FileNotFoundError:  # the one that lists the folder
            continue


def _kind(target: str) -> str:
    """A name that does not depend on inode numbers."""
    return re.sub(r":\[\d+\]", "", target)
