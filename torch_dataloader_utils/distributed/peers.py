"""The processes that run one loader together: those of the job, of a process group, or of a mesh."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.distributed.ranks import World, initialized_distributed, world_of_torch
from torch_dataloader_utils.errors import OptionError, ShardingError

# Parts of the names of a mesh's dimensions. Peers in these read the same rows; those of a joined dimension, such as
# torchtitan's and NeMo's "dp_shard_cp", must read neither all the same rows nor all different ones.
_SAME_ROWS = frozenset(
    "cp tp pp ep sp mp etp vpp ulysses ring context tensor pipeline expert sequence model".split()  # noqa: SIM905
)
# These are data-parallel in some programs, and join other dimensions in others (torchtitan's fsdp is dp_shard x cp).
_UNSURE = frozenset("fsdp efsdp hsdp ddp edp data batch shard replicate".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Peers:
    """The processes that run one loader together.

    Attributes:
        world: this process's rank. A mesh has fewer ranks than processes if some differ only in other dimensions.
        members: the processes' global ranks, in the row-major order of their mesh.
        groups: the process groups of the mesh's dimensions: collectives over one after another reach all members.
    """

    world: World
    members: tuple[int, ...]
    groups: tuple[Any, ...]


def job_peers() -> Peers | None:
    """All processes of torch.distributed, if it is initialised."""
    dist, world = initialized_distributed(), world_of_torch()
    return None if dist is None or world is None else Peers(world, tuple(range(world.num_ranks)), (dist.group.WORLD,))


def peers_or_job(peers: Peers | None) -> Peers:
    """These processes, else all of the job, in which torch.distributed is initialised."""
    known = peers or job_peers()
    assert known is not None, "ranks agree by torch.distributed, which is not initialised"
    return known


def is_group(given: Any) -> bool:
    """Whether it is a process group of torch.distributed, or what a process gets that is in none."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return False
    return isinstance(given, dist.ProcessGroup) or given is dist.GroupMember.NON_GROUP_MEMBER


def is_mesh(given: Any) -> bool:
    """Whether it is a DeviceMesh, or a slice of one."""
    return hasattr(given, "get_local_rank")


def is_accelerator(given: Any) -> bool:
    """Whether it is an `accelerate.Accelerator`."""
    return hasattr(given, "num_processes") and hasattr(given, "process_index")


def peers_of_group(group: Any) -> Peers:
    """The processes of a process group, each with its own rank.

    Raises:
        ShardingError: this process is not one of them.
    """
    dist = initialized_distributed()
    if dist is None:
        raise ShardingError(
            "ranks is a process group, but torch.distributed is not initialised in this process: call "
            "init_process_group first."
        )
    if dist.get_rank(group) < 0:
        raise ShardingError(
            f"ranks is a process group, but process {dist.get_rank()} is not one of its members: create the loader on "
            "its members only."
        )
    world = World(dist.get_world_size(group), dist.get_rank(group), "process group", given=True)
    return Peers(world, tuple(dist.get_process_group_ranks(group)), (group,))


def peers_of_mesh(mesh: Any, names: Sequence[str] | None) -> Peers:
    """The processes of a DeviceMesh; those that differ only in other dimensions have the same rank.

    Args:
        mesh: the mesh.
        names: of the data-parallel dimensions; None for those that have the part "dp" in their names.

    Raises:
        OptionError: it has no such dimensions, or some whose names do not tell.
        ShardingError: this process is not in the mesh.
    """
    dims = _dims_named(mesh, names)
    if mesh.get_coordinate() is None:
        raise ShardingError(
            f"ranks: this process is not in the mesh of processes {mesh.mesh.tolist()}: create the loader on its "
            "processes only."
        )
    chosen = [mesh.mesh_dim_names[dim] for dim in dims] if mesh.mesh_dim_names else []
    return _peers_along(mesh, dims, f"mesh ({', '.join(chosen)})" if chosen else "mesh")


def peers_of_accelerator(accelerator: Any) -> Peers:
    """The processes of an `accelerate.Accelerator`. With a mesh, those at one data-parallel coordinate are one rank.

    Raises:
        OptionError: the names of its mesh do not tell.
        ShardingError: it knows one process, and there are several.
    """
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None:
        return _peers_along(mesh, _data_dims(mesh, "accelerator.torch_device_mesh"), "accelerator")
    world = World(accelerator.num_processes, accelerator.process_index, "accelerator", given=True)
    job = job_peers()
    if job is None:
        return Peers(world, (world.rank,), ())
    if len(job.members) != world.num_ranks:
        raise ShardingError(
            f"ranks: accelerator has {world.num_ranks} process(es), but torch.distributed has {len(job.members)}: "
            "create the Accelerator after init_process_group, or pass num_ranks and rank."
        )
    return Peers(world, job.members, job.groups)


def _dims_named(mesh: Any, wanted: Sequence[str] | None) -> tuple[int, ...]:
    """The numbers of the data-parallel dimensions, in the mesh's order."""
    names = mesh.mesh_dim_names
    if names is None and mesh.ndim == 1 and wanted is None:
        return (0,)
    if wanted is None or names is None:
        dims = _data_dims(mesh, "mesh")
        if dims:
            return dims
        likely = next((name for name in names if not _SAME_ROWS & set(_parts(name))), names[0])
        raise OptionError(
            f"ranks: mesh has the dimensions {names!r}, and none of their names has the part dp: name the "
            f"data-parallel ones, such as ranks=Mesh(mesh, dims=[{likely!r}]), or pass dims=[] if all processes read "
            "the same rows."
        )
    if not set(wanted) <= set(names):
        raise OptionError(f"Mesh: dims={list(wanted)!r}: mesh has the dimensions {names!r}.")
    return tuple(dim for dim, name in enumerate(names) if name in wanted)


def _data_dims(mesh: Any, source: str) -> tuple[int, ...]:
    """The numbers of the dimensions whose names say that they are data-parallel.

    Args:
        mesh: the mesh.
        source: an expression for it.

    Raises:
        OptionError: there are no names, or a name does not tell whether processes along it read the same rows.
    """
    names = mesh.mesh_dim_names
    if names is None:
        raise OptionError(
            f"ranks: {source} has {mesh.ndim} dimension(s) without names, so the data-parallel ones are unknown: name "
            "them with init_device_mesh(..., mesh_dim_names=...)."
        )
    data = tuple(name for name in names if is_data_parallel(name))
    wide = [name for dim, name in enumerate(names) if mesh.size(dim) > 1]  # one process reads the same in any case
    if joined := [name for name in wide if is_joined(name)]:
        raise OptionError(
            f"ranks: {source} has the dimensions {names!r}, of which {joined[0]!r} joins data-parallel processes with "
            f"such as read the same rows: pass a mesh that has them apart, such as ranks={source}['dp'] or the mesh "
            f"that was flattened; or ranks=Mesh({source}, dims={list(data)!r}), if all along them are to read "
            "different rows."
        )
    unsure = [name for name in wide if not is_data_parallel(name) and _UNSURE & set(_parts(name))]
    if data and unsure:
        more = [name for name in names if name in data or name in unsure]
        raise OptionError(
            f"ranks: {source} has the dimensions {names!r}, and the name {unsure[0]!r} does not tell whether processes "
            f"along it read the same rows: pass ranks=Mesh({source}, dims={more!r}) if they read different ones, or "
            f"dims={list(data)!r} if they read the same."
        )
    return tuple(dim for dim, name in enumerate(names) if name in data)


def is_data_parallel(name: str) -> bool:
    """Whether the name of a mesh's dimension has the part "dp" (or "dp0", ...)."""
    return any(re.fullmatch(r"dp\d*", part) for part in _parts(name))


def is_joined(name: str) -> bool:
    """Whether the name of a mesh's dimension joins "dp" with a dimension of processes that read the same rows.

    "dp_shard_in_ep" and "dp_shard_mod_ep", into which torchtitan splits dp_shard, do not: all along them differ.
    """
    return is_data_parallel(name) and bool(_SAME_ROWS & set(_parts(re.sub(r"_(in|mod)_[a-z]+", "", name))))


def _parts(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name.lower())


def _peers_along(mesh: Any, dims: Sequence[int], source: str) -> Peers:
    """All processes of the mesh, with the rank that the coordinates in these dimensions give, row-major."""
    num_ranks, rank = 1, 0
    for dim in dims:
        num_ranks *= mesh.size(dim)
        rank = rank * mesh.size(dim) + mesh.get_local_rank(dim)
    groups = tuple(mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1)
    return Peers(World(num_ranks, rank, source, given=True), tuple(mesh.mesh.flatten().tolist()), groups)
