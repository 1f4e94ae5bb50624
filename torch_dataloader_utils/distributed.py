"""Which rank this process is, found once and late: at the first use of a loader that was not told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import ShardingError


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among its peers, and what said so."""

    num_ranks: int
    rank: int
    source: str


def resolve_world(num_ranks: int | None, rank: int | None, group: Any = None) -> World:
    """The given numbers, else the group's, else torch.distributed's, else those of RANK and WORLD_SIZE, else (1, 0).

    Raises:
        ShardingError: WORLD_SIZE says that there are peers, but nothing says which of them this process is.
    """
    if num_ranks is not None and rank is not None:
        return World(num_ranks, rank, "the arguments")
    dist = initialized_distributed()
    if dist is not None:
        source = "torch.distributed" if group is None else "process_group"
        return World(dist.get_world_size(group), dist.get_rank(group), source)
    return _from_environment()


def initialized_distributed() -> Any:
    """`torch.distributed` where it is initialised, else None; imports nothing."""
    # Only a process that has imported torch.distributed can have initialised it.
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def object_exchange(num_ranks: int | None, group: Any = None) -> tuple[int, int, Callable[[object], list[Any]] | None]:
    """This process's place among those that share work, their number, and a collective from its object to theirs.

    (0, 1, None) where there is nobody to share with: no process group, or a loader for other ranks than the group's,
    such as one made with explicit (1, 0).
    """
    dist = initialized_distributed()
    size = 1 if dist is None else dist.get_world_size(group)
    if size < 2 or num_ranks not in (None, size):
        return 0, 1, None

    def exchange(own: object) -> list[Any]:
        found: list[Any] = [None] * size
        dist.all_gather_object(found, own, group=group)
        return found

    return dist.get_rank(group), size, exchange


def object_broadcast(num_ranks: int | None, group: Any = None) -> tuple[int, Callable[[object], Any] | None]:
    """This process's place among those that `object_exchange` finds, and a collective that gives all rank 0's object.

    (0, None) where there is nobody to share with.
    """
    rank, _, exchange = object_exchange(num_ranks, group)
    dist = initialized_distributed()
    if exchange is None or dist is None:
        return 0, None
    first = 0 if group is None else dist.get_global_rank(group, 0)

    def broadcast(own: object) -> Any:
        found = [own]
        dist.broadcast_object_list(found, src=first, group=group)
        return found[0]

    return rank, broadcast


def _from_environment() -> World:
    size, rank = os.environ.get("WORLD_SIZE"), os.environ.get("RANK")
    if size is None:
        return World(1, 0, "default: a single process")
    if rank is None:
        if size == "1":
            return World(1, 0, "WORLD_SIZE")
        raise ShardingError(f"WORLD_SIZE={size} without RANK: set RANK, or pass num_ranks and rank (the global rank).")
    if not (size.isdecimal() and rank.isdecimal() and int(rank) < int(size)):
        raise ShardingError(f"RANK={rank!r}, WORLD_SIZE={size!r}: expected whole numbers with 0 <= RANK < WORLD_SIZE.")
    return World(int(size), int(rank), "RANK and WORLD_SIZE")
