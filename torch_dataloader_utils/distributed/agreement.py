"""What ranks agree on while they run: that they follow one plan, and when to stop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from torch_dataloader_utils.distributed.peers import Peers, job_peers
from torch_dataloader_utils.distributed.ranks import World, initialized_distributed
from torch_dataloader_utils.errors import PlanMismatchError, ShardingError

_POLL = 0.005  # seconds between checks whether the others have arrived
_CHECKS: Counter[tuple[int, ...]] = Counter()  # checks so far, by members: all make the same ones in the same order


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank is about to do. All ranks must do the same, each as a different rank. All values are int64.

    Attributes:
        rank: the global rank.
        num_ranks: all ranks.
        epoch: the epoch.
        data: digest of files, row counts and splits.
        options: digest of the options that shape the plan.
        failed: whether this rank could not make its plan.
        place: digest of its position in the epoch.
    """

    rank: int
    num_ranks: int
    epoch: int
    data: int
    options: int
    failed: bool = False
    place: int = 0


def has_peers(world: World, explicit: bool) -> bool:
    """Whether there are other ranks to agree with: torch.distributed is initialised, and the loader is not alone.

    A loader made with explicit (1, 0), such as one for validation on rank 0, has no peers.

    Raises:
        ShardingError: a loader that was detected to be alone is not.
    """
    dist = initialized_distributed()
    if dist is None or dist.get_world_size() == 1:
        return False
    if world.num_ranks == 1 and not world.given:
        raise ShardingError(
            f"torch.distributed has {dist.get_world_size()} processes, but at this loader's first use (len, plan) "
            f"there was one (from {world.source}), so each would read all rows. Use the loader only after "
            "init_process_group, or pass num_ranks and rank (1 and 0 if each process must read all rows)."
        )
    return not (explicit and world.num_ranks == 1)


def check_reports(report: RankReport, peers: Peers | None, limit: float) -> None:
    """Compare reports with all peers: one all_gather of seven numbers (in a mesh, one along each dimension).

    Args:
        report: of this rank.
        peers: None for all processes of torch.distributed.
        limit: seconds to wait for the others; 0 for no limit.

    Raises:
        PlanMismatchError: on every rank, if the reports do not match or a rank did not arrive in time.
    """
    peers = _peers_or_all(peers)
    rows = _gather([int(number) for number in astuple(report)], peers, limit)
    mismatch = find_mismatch([RankReport(*row) for row in rows], peers.world.num_ranks)
    if mismatch:
        raise PlanMismatchError(mismatch)


def find_mismatch(reports: Sequence[RankReport], num_ranks: int | None = None) -> str | None:
    """What is wrong with these reports, or None if they match.

    Args:
        reports: of all processes, in their order.
        num_ranks: the expected number of ranks, each with as many processes; None for the number of processes.
    """
    failed = [place for place, report in enumerate(reports) if report.failed]
    if failed:
        return f"process(es) {_listed(failed)} could not make their plan: see the error in their own output."
    expected = num_ranks or len(reports)
    if {report.num_ranks for report in reports} != {expected}:
        return (
            f"{len(reports)} processes take part, but passed num_ranks={_listed(p.num_ranks for p in reports)}: "
            f"expected num_ranks={expected} on each. (For a loader that only one process uses, pass num_ranks=1, "
            "rank=0. For processes that read the same rows, such as tensor-parallel ones, pass device_mesh=mesh.)"
        )
    each = len(reports) // expected
    times = Counter(report.rank for report in reports)
    wrong = [rank for rank in range(expected) if times[rank] > each]
    if wrong:
        often = "more than once" if each == 1 else f"to more than {each} processes"
        return (
            f"rank {_listed(wrong)} was given {often}: the processes have ranks "
            f"{_listed(p.rank for p in reports)}. Pass the global rank (dist.get_rank()), not the local one."
        )
    return _unequal(reports)


def _unequal(reports: Sequence[RankReport]) -> str | None:
    first = reports[0]
    for name, word, hint in (
        ("epoch", "epoch", "call dataset.set_epoch with the same number on every rank"),
        (
            "data",
            "data",
            "all ranks must see the same files, with the same rows, filters and split options, and leave out the same "
            "damaged ones",
        ),
        (
            "options",
            "options",
            "all ranks must pass the same batch_size, shuffle, shuffle_seed, sharding, even and worker counts",
        ),
        ("place", "position", "load the same checkpoint on every rank"),
    ):
        others = [report.rank for report in reports if getattr(report, name) != getattr(first, name)]
        if others:
            values = [getattr(report, name) for report in reports]
            shown = _listed(values if name == "epoch" else [f"{value & 0xFFFFFFFF:08x}" for value in values])
            return (
                f"rank {_listed(others)} and rank {first.rank} have different plans: the {word} of ranks "
                f"{_listed(p.rank for p in reports)} is {shown}; {hint}."
            )
    return None


def smallest(peers: Peers | None) -> Callable[[int], int]:
    """A function that returns the smallest of all peers' numbers: an all_reduce(MIN)."""
    dist = initialized_distributed()
    groups = _peers_or_all(peers).groups

    def agree(own_number: int) -> int:
        least = torch.tensor([own_number], dtype=torch.int64)
        for group in groups:
            least = least.to(_device(dist, group))
            dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group)
        return int(least.item())

    return agree


def _peers_or_all(peers: Peers | None) -> Peers:
    members = peers or job_peers()
    assert members is not None, "ranks agree by torch.distributed, which is not initialised"
    return members


def _gather(numbers: list[int], peers: Peers, limit: float) -> list[Any]:
    """The numbers of all peers, in the order of `members`."""
    dist = initialized_distributed()
    arrivals = _Arrivals(dist, peers.members)
    deadline = time.monotonic() + limit
    rows = torch.tensor([numbers], dtype=torch.int64)
    for group in reversed(peers.groups):
        rows = rows.to(_device(dist, group))
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        work = dist.all_gather(parts, rows, group=group, async_op=True)
        while not work.is_completed():
            if limit and time.monotonic() > deadline:
                raise PlanMismatchError(
                    f"process(es) {_listed(arrivals.missing())} did not begin this pass within timeout={limit} s: they "
                    "failed, or ran another number of passes. (For a loader that only one process uses, pass "
                    "num_ranks=1, rank=0.)"
                )
            time.sleep(_POLL)
        work.wait()
        rows = torch.cat(parts)
    return list(rows.tolist())


class _Arrivals:
    """Records in the job's store that this process has arrived, so that errors can name the missing ones."""

    def __init__(self, dist: Any, members: tuple[int, ...]) -> None:
        self._store = dist.distributed_c10d._get_default_store()  # has no public name
        self._members = members
        # Members are in the name: other loaders of this process may have other peers.
        self._prefix = f"tdu-check-{'.'.join(map(str, members))}-{_CHECKS[members]}-"
        _CHECKS[members] += 1
        self._store.set(f"{self._prefix}{dist.get_rank()}", "here")

    def missing(self) -> list[int]:
        """The global ranks of the members that have not arrived."""
        return [rank for rank in self._members if not self._store.check([f"{self._prefix}{rank}"])]


def _device(dist: Any, group: Any) -> torch.device:
    """The device for tensors of the group's collectives."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _listed(items: Any) -> str:
    return ", ".join(map(str, items))
