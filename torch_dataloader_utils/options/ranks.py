"""The options that define the ranks and this process's rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch_dataloader_utils.distributed.peers import (
    Peers,
    job_peers,
    peers_of_accelerator,
    peers_of_group,
    peers_of_mesh,
)
from torch_dataloader_utils.errors import OptionError, ShardingError, leave_out
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, maybe, option, whole

_PEERS = ("process_group", "device_mesh", "accelerator")  # each names the processes that are the ranks


@dataclass(frozen=True, kw_only=True)
class RankOptions(Checked):
    """The ranks, and this process's rank."""

    num_ranks: int | None = option(
        None, maybe(whole(1)), doc="the number of ranks that share the rows; None detects it"
    )
    rank: int | None = option(None, maybe(whole(0)), doc="this process's global rank; give it together with num_ranks")
    process_group: Any = option(None, doc="the torch.distributed process group whose members are the ranks")
    device_mesh: Any = option(None, doc="the DeviceMesh whose data-parallel places are the ranks")
    dp_mesh_dims: Sequence[str] | None = option(
        None, doc="the data-parallel dimensions of device_mesh; None for those named dp, dp_shard, ..."
    )
    accelerator: Any = option(None, doc="the accelerate.Accelerator whose processes are the ranks")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers()
        self._check_peers()

    def _check_numbers(self) -> None:
        if (self.num_ranks is None) != (self.rank is None):
            raise OptionError(
                f"num_ranks={self.num_ranks!r}, rank={self.rank!r}: expected both, or neither to detect them.",
                remedies=[leave_out("rank" if self.num_ranks is None else "num_ranks")],
            )
        if self.num_ranks is not None and self.rank is not None and self.rank >= self.num_ranks:
            raise OptionError(
                f"rank={self.rank} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )

    def _check_peers(self) -> None:
        dims = self.dp_mesh_dims
        if dims is not None and (isinstance(dims, str) or not isinstance(dims, Sequence)):
            raise OptionError(f"dp_mesh_dims={shown(dims)}: expected names of dimensions, such as ('dp',).")
        if dims is not None and self.device_mesh is None:
            raise OptionError(
                f"dp_mesh_dims={shown(dims)} without device_mesh: they name dimensions of a mesh.",
                remedies=[leave_out("dp_mesh_dims")],
            )
        given = self._given_peers
        if len(given) > 1:
            dims_too = [] if dims is None else ["dp_mesh_dims"]
            raise OptionError(
                f"{' and '.join(given)} were given, but each defines the ranks.",
                remedies=[
                    leave_out(*(each for each in given if each != name), *([] if name == "device_mesh" else dims_too))
                    for name in given
                ],
            )
        peers = self.peers
        if peers is not None and self.num_ranks not in (None, peers.world.num_ranks):
            raise ShardingError(
                f"num_ranks={self.num_ranks}, but {peers.world.source} has {peers.world.num_ranks} rank(s).",
                remedies=[
                    leave_out("num_ranks", "rank"),
                    leave_out(*given, *([] if dims is None else ["dp_mesh_dims"])),
                ],
            )

    @property
    def peers(self) -> Peers | None:
        """The processes named by `process_group`, `device_mesh` or `accelerator`; None if none of them is given."""
        if self.device_mesh is not None:
            return peers_of_mesh(self.device_mesh, self.dp_mesh_dims)
        if self.process_group is not None:
            return peers_of_group(self.process_group)
        return None if self.accelerator is None else peers_of_accelerator(self.accelerator)

    @property
    def _given_peers(self) -> list[str]:
        return [name for name in _PEERS if getattr(self, name) is not None]

    def __getstate__(self) -> dict[str, Any]:
        """The options without group, mesh and accelerator, which are meaningless in another process.

        A process that this one is starting, such as a worker of torch's DataLoader, has the rank of this one.

        Raises:
            ShardingError: a copy for any other process would not know its rank.
        """
        state = {**vars(self), **dict.fromkeys((*_PEERS, "dp_mesh_dims"))}
        given, starting = self._given_peers, get_spawning_popen() is not None
        if given and self.num_ranks is None and not starting:
            raise ShardingError(
                f"{given[0]} cannot be sent to another process: pass num_ranks and rank.",
                remedies=[leave_out(given[0], effect="detects ranks there")],
            )
        job = job_peers()
        if starting and self.num_ranks is None and job is not None:
            world = (self.peers or job).world
            state.update(num_ranks=world.num_ranks, rank=world.rank)
        return state
