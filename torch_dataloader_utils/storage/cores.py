"""The resources of the machine that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

_CGROUPS = "/sys/fs/cgroup"


def usable_cores() -> int:
    """The number of cores that this process may use, by its affinity and the quotas of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _quota() or cores)


@cache
def _quota() -> int | None:
    """The cores that control groups leave to this process: a container with 1.5 gets 2 threads, which share them."""
    with suppress(OSError, ValueError):
        return quota(Path("/proc/self/cgroup").read_text(), Path(_CGROUPS))
    return None


def quota(groups: str, mounted: Path) -> int | None:
    """The smallest quota of the groups, in whole cores, at least 1; None for none.

    Args:
        groups: the groups of a process, as `/proc/self/cgroup` lists them; of version 1, 2 or both.
        mounted: where control groups are mounted. Within a container, its own group may be what is mounted.
    """
    quotas = [math.inf]
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        root = mounted if not controllers else mounted / "cpu" if "cpu" in controllers.split(",") else None
        if root is not None:
            quotas += map(_cores_of, _folders(root, group))
    return max(1, math.ceil(min(quotas))) if min(quotas) < math.inf else None


def _folders(root: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above it, whose quotas hold, too."""
    place = PurePosixPath(group.lstrip("/"))
    yield from (root / each for each in (place, *place.parents))


def _cores_of(folder: Path) -> float:
    with suppress(OSError, ValueError):
        allowed, period = (folder / "cpu.max").read_text().split()
        return math.inf if allowed == "max" else int(allowed) / int(period)
    with suppress(OSError, ValueError):
        allowed, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if int(allowed) <= 0 else int(allowed) / int(period)
    return math.inf
