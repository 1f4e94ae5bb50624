"""What ranks agree on while they run: that they follow one plan, and when to stop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from torch_dataloader_utils.distributed import World, initialized_distributed
from torch_dataloader_utils.errors import PlanMismatchError

_POLL = 0.005  # seconds between looks whether the others have come
_CHECKS = count()  # numbers the checks of this process: all ranks make the same ones in the same order


@dataclass(frozen=True, slots=True)
class Position:
    """What a rank is about to do; all ranks must be about to do the same, each as another rank.

    Attributes:
        rank: the global rank.
        num_ranks: all ranks.
        epoch: the epoch.
        data: digest of files, row counts and splits.
        options: digest of what shapes the plan.
        failed: whether this rank could not make its plan.
    """

    rank: int
    num_ranks: int
    epoch: int
    data: int
    options: int
    failed: bool = False

    def numbers(self) -> list[int]:
        """As int64 values, for a collective."""
        return [self.rank, self.num_ranks, self.epoch, self.data, self.options, int(self.failed)]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Position:
        """The position that these numbers say."""
        rank, num_ranks, epoch, data, options, failed = numbers
        return cls(rank, num_ranks, epoch, data, options, bool(failed))


def has_peers(world: World, explicit: bool) -> bool:
    """Whether there are other ranks to agree with: torch.distributed is initialised, and the loader is not alone.

    A loader made with explicit (1, 0), such as one for validation on rank 0, is nobody's peer.
    """
    alone = explicit and world.num_ranks == 1
    dist = initialized_distributed()
    return dist is not None and dist.get_world_size() > 1 and not alone


def check_positions(own: Position, group: Any, limit: float) -> None:
    """Compare positions with all processes of the group: one all_gather of six numbers.

    Args:
        own: this rank's position.
        group: the process group; None is the default one.
        limit: seconds to wait for the others; 0 for no limit.

    Raises:
        PlanMismatchError: on every rank, if the positions do not fit together; or a rank did not come in time.
    """
    mismatch = find_mismatch([Position.of(row) for row in _gather(own.numbers(), group, limit)])
    if mismatch:
        raise PlanMismatchError(mismatch)


def find_mismatch(positions: Sequence[Position]) -> str | None:
    """What is wrong with these positions, in the order of the process group; None if they fit together."""
    failed = [place for place, position in enumerate(positions) if position.failed]
    if failed:
        return f"process(es) {_listed(failed)} could not make their plan: the error is in their own output."
    sizes = {position.num_ranks for position in positions}
    if sizes != {len(positions)}:
        return (
            f"{len(positions)} processes take part, with num_ranks={_listed(p.num_ranks for p in positions)}: expected "
            f"num_ranks={len(positions)} on each. (A loader for this process alone: num_ranks=1, rank=0.)"
        )
    twice = [rank for rank, times in Counter(position.rank for position in positions).items() if times > 1]
    if twice:
        return (
            f"rank {_listed(sorted(twice))} was given more than once: the processes have ranks "
            f"{_listed(p.rank for p in positions)}. Pass the global rank (dist.get_rank()), not the local one."
        )
    return _unequal(positions)


def _unequal(positions: Sequence[Position]) -> str | None:
    first = positions[0]
    for name, hint in (
        ("epoch", "call dataset.set_epoch with the same number on every rank"),
        ("data", "all ranks must see the same files, with the same rows, filters and split options"),
        ("options", "all ranks must pass the same batch_size, shuffle, shuffle_seed, sharding, even and worker counts"),
    ):
        others = [position.rank for position in positions if getattr(position, name) != getattr(first, name)]
        if others:
            values = [getattr(position, name) for position in positions]
            shown = _listed(values if name == "epoch" else [f"{value & 0xFFFFFFFF:08x}" for value in values])
            return (
                f"rank {_listed(others)} and rank {first.rank} have different plans: {name} of ranks "
                f"{_listed(p.rank for p in positions)} is {shown}: {hint}."
            )
    return None


def smallest(group: Any) -> Callable[[int], int]:
    """A function that gives the smallest of all ranks' numbers: an all_reduce(MIN)."""
    dist = initialized_distributed()

    def agree(own: int) -> int:
        number = torch.tensor([own], dtype=torch.int64, device=_device(dist, group))
        dist.all_reduce(number, op=dist.ReduceOp.MIN, group=group)
        return int(number.item())

    return agree


def _gather(numbers: list[int], group: Any, limit: float) -> list[list[int]]:
    dist = initialized_distributed()
    here = _Arrivals(dist, group)
    own = torch.tensor(numbers, dtype=torch.int64, device=_device(dist, group))
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(found, own, group=group, async_op=True)
    deadline = time.monotonic() + limit
    while not work.is_completed():
        if limit and time.monotonic() > deadline:
            raise PlanMismatchError(
                f"process(es) {_listed(here.missing())} did not begin this pass within {limit} s: they failed, or read "
                "another number of passes. (A loader for this process alone: num_ranks=1, rank=0.)"
            )
        time.sleep(_POLL)
    work.wait()
    return [row.tolist() for row in found]


class _Arrivals:
    """Notes in the store of the job that this process has come, to be able to say who has not."""

    def __init__(self, dist: Any, group: Any) -> None:
        self._store = dist.distributed_c10d._get_default_store()  # has no public name
        self._ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._prefix = f"tdu-check-{next(_CHECKS)}-"
        self._store.set(f"{self._prefix}{dist.get_rank()}", "here")

    def missing(self) -> list[int]:
        """The global ranks of the group's processes that have not come."""
        return [rank for rank in self._ranks if not self._store.check([f"{self._prefix}{rank}"])]


def _device(dist: Any, group: Any) -> torch.device:
    """Where tensors of the group's collectives live."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _listed(items: Any) -> str:
    return ", ".join(map(str, items))
