"""Where progress is shown: which ranks show bars, and on which lines of the terminal."""

from __future__ import annotations

import os
from contextlib import suppress

from torch_dataloader_utils.distributed.ranks import World, resolve_world
from torch_dataloader_utils.errors import ShardingError
from torch_dataloader_utils.options.groups import ShardOptions
from torch_dataloader_utils.options.keywords import Options
from torch_dataloader_utils.progress import Progress


def progress_of(options: Options, world: World | None = None) -> Progress:
    """How this process shows progress: with bars if the options want them on its rank, else in the log.

    Args:
        options: of the loader.
        world: this process's rank; None: as it shows by now, since a process may get its rank after it creates loaders.
    """
    show, interval = options.worker.show_progress, options.worker.progress_interval_sec
    if world is None and not show:
        return Progress(interval=interval)
    world = world or _world_so_far(options.shard)
    label = f"rank {world.rank}" if world.num_ranks > 1 else ""
    if show == "all" and label:
        return Progress(True, interval, label, *_of_machine(world))
    shown = bool(show) and world.rank == 0
    return Progress(shown, interval, "" if shown else label)


def _world_so_far(shard: ShardOptions) -> World:
    if shard.num_ranks is not None and shard.rank is not None:
        return World(shard.num_ranks, shard.rank, "the arguments")
    with suppress(ShardingError):  # raised when the rank is needed, if it is still unclear by then
        peers = shard.peers
        return resolve_world(None, None, None if peers is None else peers.world)
    return World(1, 0, "unclear")


def _of_machine(world: World) -> tuple[int, int]:
    """This process's number among those of its machine, which share a terminal, and how many there are."""
    local, size = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdecimal() and size.isdecimal():
        return int(local), int(size)
    return world.rank, world.num_ranks
