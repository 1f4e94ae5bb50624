"""Which rank this process is.

The user's values take precedence. Otherwise the rank is detected late, at the first use of a loader, from what is
already imported and set: launchers set their variables, and frameworks may initialise torch.distributed after a loader
    is created.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch_dataloader_utils.errors import ShardingError

_LOG = logging.getLogger("torch_dataloader_utils")
_TORCH = "torch.distributed"
_TORCHRUN = ("RANK", "WORLD_SIZE")
_HOROVOD = ("HOROVOD_RANK", "HOROVOD_SIZE")
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and Intel MPI; srun sets them, too, with --mpi=pmi2
)


@dataclass(frozen=True, slots=True)
class World:
    """This process's place among the ranks.

    Attributes:
        num_ranks: the number of ranks.
        rank: this process's rank, in `[0, num_ranks)`.
        source: where the values are from.
        given: whether the user set them, by numbers or by `ranks`.
    """

    num_ranks: int
    rank: int
    source: str
    given: bool = False


def initialized_distributed() -> Any:
    """`torch.distributed` if it is initialised, else None; imports nothing."""
    # Only a process that has imported torch.distributed can have initialised it.
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


# The launchers' variables for the number of processes on this node.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "HOROVOD_LOCAL_SIZE")


def several_on_node() -> bool:
    """Whether processes beside this one probably read the same data on this machine."""
    sizes = [os.environ[name] for name in _LOCAL_SIZES if name in os.environ]
    sizes += re.findall(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))[:1]
    dist = initialized_distributed()
    return any(size not in ("", "0", "1") for size in sizes) or (
        not sizes and dist is not None and dist.get_world_size() > 1
    )


def joining() -> bool:
    """Whether a loop runs within torch's `Join`, under which ranks may have different numbers of steps.

    Torch does not record this, but the object exists that long. The search takes about 0.1 s: do it only before a
    warning.
    """
    join = getattr(sys.modules.get("torch.distributed.algorithms.join"), "Join", None)
    return join is not None and any(type(item) is join and item._enable for item in gc.get_objects())


def resolve_world(num_ranks: int | None, rank: int | None, of_peers: World | None = None) -> World:
    """The given numbers, else the world of the given peers, else what the running process and its environment report.

    Raises:
        ShardingError: nothing is given, and the sources disagree or are incomplete.
    """
    if num_ranks is not None and rank is not None:
        _warn_of_another_rank(num_ranks, rank)
        return World(num_ranks, rank, "the arguments", given=True)
    return of_peers or _detected()


def _warn_of_another_rank(num_ranks: int, rank: int) -> None:
    """Warn if the launcher's rank of this process differs; under torch.distributed, ranks compare their plans."""
    launched_rank, size, local = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if launched_rank in (None, str(rank)) or num_ranks == 1 or initialized_distributed() is not None:
        return
    if size == str(num_ranks) or local == str(rank):
        _LOG.warning(
            "rank=%d of num_ranks=%d was passed and is used, but the launcher set RANK=%s and WORLD_SIZE=%s. Pass the "
            "global rank, not the local one: two processes with the same rank read the same rows.",
            rank, num_ranks, launched_rank, size,
        )  # fmt: skip


def _detected() -> World:
    running = _present(world_of_torch(), _of_horovod(), _of_accelerate())
    if not running:
        _check_whole(*_TORCHRUN)
    launched = _present(_of_variables(*_TORCHRUN), _of_variables(*_HOROVOD))
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # else they belong to the processes that run torchrun
        launched += _present(*_of_mpi(), _of_slurm())
    world = agreed_world(running, launched)
    if world is None:
        for names in _variables_in_use():
            _check_whole(*names)
            _warn_of_half(*names)
        return World(1, 0, "default: no launcher detected")
    others = [other for other in launched if not _same(other, world)]
    if others:
        _LOG.warning(
            "using %s, but the environment differs: %s. This is normal with launchers for debugging; otherwise check "
            "how the process group is initialised.",
            _in_words([world]), _in_words(others),
        )  # fmt: skip
    return world


def agreed_world(running: Sequence[World], launched: Sequence[World]) -> World | None:
    """The world on which running libraries and launcher variables agree; None if no source applies.

    A process group of several processes overrides variables: the ranks meet in it, whatever their launcher has set. All
    other sources must agree, including a group of one process: with several launched processes, each would read all
        rows.

    Args:
        running: what initialised libraries report; torch.distributed comes first.
        launched: what the environment reports.

    Raises:
        ShardingError: they disagree.
    """
    worlds = [*running, *launched]
    outranked = bool(running) and running[0].source == _TORCH and running[0].num_ranks > 1
    if not all(_same(world, worlds[0]) for world in (running if outranked else worlds)):
        found = _in_words(worlds)
        raise ShardingError(f"sources disagree about this process's rank: {found}. Pass num_ranks and rank.")
    return worlds[0] if worlds else None


def _same(one: World, other: World) -> bool:
    return (one.num_ranks, one.rank) == (other.num_ranks, other.rank)


def _in_words(worlds: Sequence[World]) -> str:
    return "; ".join(f"{world.source}: rank {world.rank} of {world.num_ranks}" for world in worlds)


def _present(*worlds: World | None) -> list[World]:
    return [world for world in worlds if world is not None]


def world_of_torch() -> World | None:
    """This process's place in torch.distributed, if it is initialised."""
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


def _of_mpi() -> list[World | None]:
    return [_launched(_of_variables(*names)) for names in _MPI]


def _of_slurm() -> World | None:
    if "SLURM_STEP_ID" not in os.environ:
        return None  # a batch script: its variables describe tasks that have not started yet
    return _launched(_of_variables(*_slurm()))


def _slurm() -> tuple[str, str]:
    # The shell of salloc is a step of one task, whose SLURM_NTASKS is that of the job.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in os.environ else "SLURM_NTASKS"
    return "SLURM_PROCID", size


def _variables_in_use() -> list[tuple[str, str]]:
    """The launchers' variables for the rank and the number of ranks, as far as they describe this process."""
    names = [_TORCHRUN, _HOROVOD]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        names += [*_MPI, *([_slurm()] if "SLURM_STEP_ID" in os.environ else [])]
    return names


def _launched(world: World | None) -> World | None:
    """The world, or None if it has one process: another launcher may have started several within it."""
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
    """Check that both variables are set or neither is, or that the one set is irrelevant."""
    rank, size = os.environ.get(rank_name), os.environ.get(size_name)
    if (rank is None and size not in (None, "1")) or (size is None and rank not in (None, "0")):
        given, value, missing = (size_name, size, rank_name) if rank is None else (rank_name, rank, size_name)
        raise ShardingError(
            f"{given}={value} without {missing}: set {missing}, or pass num_ranks and rank (the global rank). If a "
            "framework sets both later, use the loader (len, plan, iteration) only after that."
        )


def _warn_of_half(rank_name: str, size_name: str) -> None:
    """Warn if rank 0 lacks the number of ranks: the process may be the first of several."""
    if rank_name in os.environ and size_name not in os.environ:
        _warn_once(
            f"{rank_name}=0 without {size_name}: this process reads all rows, as a single one. Set {size_name} to the "
            "number of processes (1 if there is one), or pass num_ranks and rank."
        )


@cache
def _warn_once(message: str) -> None:
    """Warn once per process: the rank is looked up again until it is settled, and by each loader."""
    _LOG.warning("%s", message)
