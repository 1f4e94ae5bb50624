"""What a process and all that it started use, as Linux counts it."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process, and the living ones that descend from it."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                children[int(_fields(int(entry.name))[1])].append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children[found[-1]]
    return found


def cpu_seconds(root: int) -> float:
    """CPU time of the process, of its living descendants, and of the dead ones that these waited for."""
    total = 0
    for pid in tree(root):
        with suppress(OSError):
            total += sum(map(int, _fields(pid)[11:15]))
    return total / _TICKS


def memory(root: int) -> int:
    """Bytes of memory of the process and its descendants, shared pages counted once (PSS)."""
    total = 0
    for pid in tree(root):
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line.split()[1] for line in lines if line.startswith("Pss:"))) * 1024
    return total


class Peak:
    """The peak of `memory`, sampled by a thread until `stop`."""

    def __init__(self, root: int, every: float = 0.1) -> None:
        self.most = 0
        self._root, self._every, self._ended = root, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.most

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            self.most = max(self.most, memory(self._root))


def _fields(pid: int) -> list[str]:
    """The fields of a process's `stat` after its name, which may have spaces: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
