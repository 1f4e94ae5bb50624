"""The processes that run one loader together: those of the job, of a process group, or of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.distributed.ranks import World, initialized_distributed, world_of_torch
from torch_dataloader_utils.errors import OptionError, ShardingError
from torch_dataloader_utils.printing import shown


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


def peers_of_group(group: Any) -> Peers:
    """The processes of a process group, each with its own rank.

    Raises:
        ShardingError: this process is not one of them.
    """
    dist = initialized_distributed()
    if dist is None:
        raise ShardingError(
            "process_group was given, but torch.distributed is not initialised in this process: call "
            "init_process_group first."
        )
    if dist.get_rank(group) < 0:
        raise ShardingError(
            f"process_group was given, but process {dist.get_rank()} is not one of its members: create the loader on "
            "its members only."
        )
    world = World(dist.get_world_size(group), dist.get_rank(group), "process_group", given=True)
    return Peers(world, tuple(dist.get_process_group_ranks(group)), (group,))


def peers_of_mesh(mesh: Any, names: Sequence[str] | None) -> Peers:
    """The processes of a DeviceMesh; those that differ only in other dimensions have the same rank.

    Args:
        mesh: the mesh.
        names: of the data-parallel dimensions; None for those whose names begin with "dp".

    Raises:
        OptionError: it is no such mesh, or has no such dimensions.
        ShardingError: this process is not in the mesh.
    """
    if not hasattr(mesh, "get_local_rank"):
        raise OptionError(f"device_mesh={shown(mesh)}: expected a torch.distributed DeviceMesh.")
    dims = _dims_named(mesh, names)
    if mesh.get_coordinate() is None:
        raise ShardingError(
            f"this process is not in the device_mesh of processes {mesh.mesh.tolist()}: create the loader on its "
            "processes only."
        )
    chosen = [mesh.mesh_dim_names[dim] for dim in dims] if mesh.mesh_dim_names else []
    return _peers_along(mesh, dims, f"device_mesh ({', '.join(chosen)})" if chosen else "device_mesh")


def peers_of_accelerator(accelerator: Any) -> Peers:
    """The processes of an `accelerate.Accelerator`. With a mesh, those at one data-parallel coordinate are one rank.

    Raises:
        OptionError: it is no such object.
        ShardingError: it knows one process, and there are several.
    """
    if not (hasattr(accelerator, "num_processes") and hasattr(accelerator, "process_index")):
        raise OptionError(f"accelerator={shown(accelerator)}: expected an accelerate.Accelerator.")
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None:
        dims = tuple(dim for dim, name in enumerate(mesh.mesh_dim_names) if name.startswith("dp"))
        return _peers_along(mesh, dims, "accelerator")
    world = World(accelerator.num_processes, accelerator.process_index, "accelerator", given=True)
    job = job_peers()
    if job is None:
        return Peers(world, (world.rank,), ())
    if len(job.members) != world.num_ranks:
        raise ShardingError(
            f"accelerator has {world.num_ranks} process(es), but torch.distributed has {len(job.members)}: create the "
            "Accelerator after init_process_group, or pass num_ranks and rank."
        )
    return Peers(world, job.members, job.groups)


def _dims_named(mesh: Any, wanted: Sequence[str] | None) -> tuple[int, ...]:
    """The numbers of the data-parallel dimensions, in the mesh's order."""
    names = mesh.mesh_dim_names
    if names is None and mesh.ndim == 1 and wanted is None:
        return (0,)
    if names is None:
        raise OptionError(
            f"device_mesh has {mesh.ndim} dimension(s) without names, so the data-parallel ones are unknown: name them "
            "with init_device_mesh(..., mesh_dim_names=...)."
        )
    unknown = [name for name in wanted or () if name not in names]
    if unknown:
        raise OptionError(f"dp_mesh_dims={tuple(wanted or ())!r}: device_mesh has the dimensions {names!r}.")
    dims = [dim for dim, name in enumerate(names) if (name.startswith("dp") if wanted is None else name in wanted)]
    if wanted is None and not dims:
        raise OptionError(
            f"device_mesh has the dimensions {names!r}, and none of their names begins with dp: name the data-parallel "
            f"ones, such as dp_mesh_dims=({names[0]!r},), or pass () if all processes read the same rows."
        )
    return tuple(dims)


def _peers_along(mesh: Any, dims: Sequence[int], source: str) -> Peers:
    """All processes of the mesh, with the rank that the coordinates in these dimensions give, row-major."""
    num_ranks, rank = 1, 0
    for dim in dims:
        num_ranks *= mesh.size(dim)
        rank = rank * mesh.size(dim) + mesh.get_local_rank(dim)
    groups = tuple(mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1)
    return Peers(World(num_ranks, rank, source, given=True), tuple(mesh.mesh.flatten().tolist()), groups)
