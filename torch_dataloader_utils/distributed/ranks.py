"""Which rank this process is.

What the user gives counts. The rest is found late, at the first use of a loader, and from what is imported and set
already: launchers set their variables, and frameworks initialise torch.distributed, at times after a loader was made.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import ShardingError

_LOG = logging.getLogger("torch_dataloader_utils")
_TORCH = "torch.distributed"


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among the ranks.

    Attributes:
        num_ranks: all ranks.
        rank: this process's, in `[0, num_ranks)`.
        source: what said so.
        given: whether the user did, by numbers, a group, a mesh or an accelerator.
    """

    num_ranks: int
    rank: int
    source: str
    given: bool = False


def initialized_distributed() -> Any:
    """`torch.distributed` where it is initialised, else None; imports nothing."""
    # Only a process that has imported torch.distributed can have initialised it.
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def joining() -> bool:
    """Whether a loop runs within torch's `Join`, under which ranks may have different numbers of steps.

    Torch keeps no note of that, but the object lives as long. To look for it takes some 0.1 s: ask before a warning.
    """
    join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
    return join is not None and any(type(item) is join and item._enable for item in gc.get_objects())


def resolve_world(num_ranks: int | None, rank: int | None, of_peers: World | None = None) -> World:
    """The given numbers, else the world of the given peers, else what the running process and its environment say.

    Raises:
        ShardingError: nothing is given, and the sources disagree or say only half.
    """
    if num_ranks is not None and rank is not None:
        _warn_of_another_rank(num_ranks, rank)
        return World(num_ranks, rank, "the arguments", given=True)
    return of_peers or _detected()


def _warn_of_another_rank(num_ranks: int, rank: int) -> None:
    """Say so where the launcher calls this process another rank; under torch.distributed, ranks compare their plans."""
    launched_rank, size, local = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if launched_rank in (None, str(rank)) or num_ranks == 1 or initialized_distributed() is not None:
        return
    if size == str(num_ranks) or local == str(rank):
        _LOG.warning(
            "rank=%d of num_ranks=%d was given, which counts, but the launcher set RANK=%s and WORLD_SIZE=%s. Pass the "
            "global rank, not the one on this machine: two processes of one rank read the same rows.",
            rank, num_ranks, launched_rank, size,
        )  # fmt: skip


def _detected() -> World:
    running = _present(world_of_torch(), _of_horovod(), _of_accelerate())
    if not running:
        _check_whole("RANK", "WORLD_SIZE")
    launched = _present(_of_variables("RANK", "WORLD_SIZE"), _of_variables("HOROVOD_RANK", "HOROVOD_SIZE"))
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # else they are those of the processes that hold torchrun
        launched += _present(_of_mpi(), _of_slurm())
    world = agreed_world(running, launched)
    if world is None:
        return World(1, 0, "default: a single process")
    others = [other for other in launched if not _same(other, world)]
    if others:
        _LOG.warning(
            "%s counts; the environment says something else: %s. Launchers for debugging do that; else check how the "
            "process group is initialised.",
            _listed([world]), _listed(others),
        )  # fmt: skip
    return world


def agreed_world(running: Sequence[World], launched: Sequence[World]) -> World | None:
    """The world that what runs and the variables of launchers say; None where nothing says anything.

    A process group of several processes outranks variables: the ranks meet in it, whatever their launcher has set. All
    else must agree. So must a group of one process: of several that a launcher started, each would read all rows.

    Args:
        running: what libraries that are initialised say; torch.distributed comes first.
        launched: what the environment says.

    Raises:
        ShardingError: they disagree.
    """
    worlds = [*running, *launched]
    outranked = bool(running) and running[0].source == _TORCH and running[0].num_ranks > 1
    if not all(_same(world, worlds[0]) for world in (running if outranked else worlds)):
        raise ShardingError(f"sources disagree about this process's rank: {_listed(worlds)}. Pass num_ranks and rank.")
    return worlds[0] if worlds else None


def _same(one: World, other: World) -> bool:
    return (one.num_ranks, one.rank) == (other.num_ranks, other.rank)


def _listed(worlds: Sequence[World]) -> str:
    return "; ".join(f"{world.source}: rank {world.rank} of {world.num_ranks}" for world in worlds)


def _present(*worlds: World | None) -> list[World]:
    return [world for world in worlds if world is not None]


def world_of_torch() -> World | None:
    """This process's place in torch.distributed, where that is initialised."""
    dist = initialized_distributed()
    return None if dist is None else World(dist.get_world_size(), dist.get_rank(), _TORCH)


def _of_horovod() -> World | None:
    # As for torch.distributed: only a process that has imported it can have initialised it.
    horovod = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None
    return World(horovod.size(), horovod.rank(), "Horovod")


def _of_accelerate() -> World | None:
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return None
    process = state.PartialState()
    return _launched(World(process.num_processes, process.process_index, "Accelerate"))


def _of_mpi() -> World | None:
    return _launched(_of_variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))


def _of_slurm() -> World | None:
    if "SLURM_STEP_ID" not in os.environ:
        return None  # a batch script: its variables are those of tasks that are not started yet
    # The shell of salloc is a step of one task, whose SLURM_NTASKS is that of the job.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in os.environ else "SLURM_NTASKS"
    return _launched(_of_variables("SLURM_PROCID", size))


def _launched(world: World | None) -> World | None:
    """The world, unless it is of one process: that says nothing of what another launcher started within it."""
    return None if world is None or world.num_ranks == 1 else world


def _of_variables(rank_name: str, size_name: str) -> World | None:
    rank, size = os.environ.get(rank_name), os.environ.get(size_name)
    if rank is None or size is None:
        return None
    if not (size.isdecimal() and rank.isdecimal() and int(rank) < int(size)):
        raise ShardingError(
            f"{rank_name}={rank!r}, {size_name}={size!r}: expected whole numbers with 0 <= {rank_name} < {size_name}."
        )
    return World(int(size), int(rank), f"{rank_name} and {size_name}")


def _check_whole(rank_name: str, size_name: str) -> None:
    """Check that both or neither is set, or the one that is says nothing."""
    rank, size = os.environ.get(rank_name), os.environ.get(size_name)
    if (rank is None and size not in (None, "1")) or (size is None and rank not in (None, "0")):
        given, value, missing = (size_name, size, rank_name) if rank is None else (rank_name, rank, size_name)
        raise ShardingError(
            f"{given}={value} without {missing}: set {missing}, or pass num_ranks and rank (the global rank). Where a "
            "framework sets both later, use the loader (len, plan, iteration) only after that."
        )
