"""Which rank this process is, found once and late: at the first use of a loader that was not told."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from torch_dataloader_utils.errors import ShardingError


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among its peers, and what said so."""

    num_ranks: int
    rank: int
    source: str


def resolve_world(num_ranks: int | None, rank: int | None) -> World:
    """The given numbers, else torch.distributed's, else those of RANK and WORLD_SIZE, else (1, 0).

    Raises:
        ShardingError: WORLD_SIZE says that there are peers, but nothing says which of them this process is.
    """
    if num_ranks is not None and rank is not None:
        return World(num_ranks, rank, "the arguments")
    # Only a process that has imported torch.distributed can have initialised it.
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return World(dist.get_world_size(), dist.get_rank(), "torch.distributed")
    return _from_environment()


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
