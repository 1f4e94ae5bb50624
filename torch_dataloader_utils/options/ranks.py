"""`ranks=`: the processes that are the ranks; and this process's rank by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any, Protocol, TypeAlias

from torch_dataloader_utils.distributed.peers import (
    Peers,
    is_accelerator,
    is_group,
    is_mesh,
    job_peers,
    peers_of_accelerator,
    peers_of_group,
    peers_of_mesh,
)
from torch_dataloader_utils.errors import OptionError, ShardingError, leave_out
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, Value, maybe, option, setting, values, whole


def _dims(name: str, given: Any) -> Sequence[str]:
    if not isinstance(given, tuple) or not all(isinstance(dim, str) for dim in given):
        raise OptionError(f"{name}={shown(given)}: expected a list of names of dimensions, such as ['dp'].")
    return given


class Mesh(Value):
    """Takes the ranks from a mesh of processes: those at one data-parallel coordinate read the same rows.

    Raises:
        OptionError: it is no mesh, or `dims` are no names.
    """

    mesh: Any = setting(
        check=values("a torch.distributed DeviceMesh", is_mesh), doc="the DeviceMesh, or a slice of one", kw_only=False
    )
    dims: Sequence[str] | None = setting(
        default=None,
        check=maybe(_dims),
        doc="its data-parallel dimensions; () if all read the same rows; None for those named dp, dp_shard, ...",
    )


class _Group(Protocol):
    """A torch.distributed process group."""

    def rank(self) -> int: ...
    def size(self) -> int: ...


class _DeviceMesh(Protocol):
    """A torch.distributed DeviceMesh."""

    def get_local_rank(self, mesh_dim: Any = None) -> int: ...


class _Accelerator(Protocol):
    """An accelerate.Accelerator."""

    @property
    def num_processes(self) -> int: ...
    @property
    def process_index(self) -> int: ...


RanksLike: TypeAlias = _Group | _DeviceMesh | _Accelerator | Mesh | Mapping[str, Any]


def _ranks(name: str, given: Any) -> Any:
    """What was given, with a mesh as a value."""
    if isinstance(given, (Mesh, Mapping)) or is_mesh(given):
        return Mesh.of(given)
    if is_group(given) or is_accelerator(given):
        return given
    numbers = " The number of ranks is num_ranks." if isinstance(given, int) else ""
    raise OptionError(
        f"{name}={shown(given)}: expected a process group, a DeviceMesh, an accelerate.Accelerator, or Mesh(mesh, "
        f"dims=[...]).{numbers}"
    )


@dataclass(frozen=True, kw_only=True)
class RankOptions(Checked):
    """The ranks, and this process's rank."""

    num_ranks: int | None = option(
        None, maybe(whole(1)), doc="the number of ranks that share the rows; None detects it"
    )
    rank: int | None = option(None, maybe(whole(0)), doc="this process's global rank; give it together with num_ranks")
    ranks: Any = option(
        None,
        maybe(_ranks),
        given="RanksLike | None",
        doc="the processes that are the ranks: a process group, a DeviceMesh, an Accelerator, or Mesh(...)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_ranks is None) != (self.rank is None):
            raise OptionError(
                f"num_ranks={self.num_ranks!r}, rank={self.rank!r}: expected both, or neither to detect them.",
                remedies=[leave_out("rank" if self.num_ranks is None else "num_ranks")],
            )
        if self.num_ranks is not None and self.rank is not None and self.rank >= self.num_ranks:
            raise OptionError(
                f"rank={self.rank} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether `num_ranks` and `rank` say otherwise than `ranks`."""
        world = None if self.peers is None or self.num_ranks is None else self.peers.world
        return world is not None and (self.num_ranks, self.rank) != (world.num_ranks, world.rank)

    @property
    def place_of_peers(self) -> str:
        """This process's rank by `ranks`, in words."""
        if self.peers is None:
            return ""
        world = self.peers.world
        return f"by its {world.source}, rank {world.rank} of {world.num_ranks}"

    @property
    def peers(self) -> Peers | None:
        """The processes that `ranks` names; None if it is not given."""
        given = self.ranks
        if isinstance(given, Mesh):
            return peers_of_mesh(given.mesh, given.dims)
        if given is None:
            return None
        return peers_of_group(given) if is_group(given) else peers_of_accelerator(given)

    def __getstate__(self) -> dict[str, Any]:
        """The options without `ranks`, which is meaningless in another process.

        A process that this one is starting, such as a worker of torch's DataLoader, has the rank of this one.

        Raises:
            ShardingError: a copy for any other process would not know its rank.
        """
        state = {**vars(self), "ranks": None}
        starting = get_spawning_popen() is not None
        if self.ranks is not None and self.num_ranks is None and not starting:
            raise ShardingError(
                "ranks cannot be sent to another process: pass num_ranks and rank.",
                remedies=[leave_out("ranks", effect="detects ranks there")],
            )
        job = job_peers()
        if starting and self.num_ranks is None and job is not None:
            world = (self.peers or job).world
            state.update(num_ranks=world.num_ranks, rank=world.rank)
        return state
