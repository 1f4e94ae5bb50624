"""Which ranks are on this machine, as its launcher says."""

from __future__ import annotations

import os

from torch_dataloader_utils.distributed.ranks import World

# The number of processes on this node: torchrun, Open MPI, MVAPICH2, Intel MPI.
_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")


def ranks_of_node(world: World) -> range:
    """The ranks of this process's node, whose ranks follow each other; all, if no launcher says how many they are."""
    sizes = [_number(name) for name in _SIZES]
    tasks, nodes = map(_number, _SLURM)
    sizes.append(tasks // nodes if nodes else 0)
    count = next((size for size in sizes if size), world.num_ranks)
    if world.num_ranks % count:  # of another world than these variables, or nodes of different sizes
        count = world.num_ranks
    first = world.rank // count * count
    return range(first, first + count)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else 0
