"""What the ranks of a node read of an epoch, and whether they read it again in the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_dataloader_utils.model import split_numbers
from torch_dataloader_utils.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The share of a node.

    Attributes:
        part: of the bytes of all splits, those that its ranks read in an epoch, in `[0, 1]`.
        moves: whether they read other splits in the next epoch.
    """

    part: float = 1.0
    moves: bool = False

    def expected_hits(self, room: int, stored: int) -> float:
        """The part of what later epochs read that a cache on the node holds, in `[0, 1]`.

        It keeps the first bytes that come, so if shares move, it holds as much of each as of all data.

        Args:
            room: bytes of the cache.
            stored: bytes of all data.
        """
        read = stored if self.moves else stored * self.part
        return min(1.0, room / read) if read else 1.0


def node_share(plan: Plan, epoch: int, ranks: Iterable[int]) -> NodeShare:
    """The share of the node with these ranks, from the plans of an epoch and the next one; reads no data."""
    here = set(ranks)
    if len(here) == plan.num_ranks:
        return NodeShare()
    now, then = (
        {number for rank in here for number in split_numbers(plan.share_of(e, rank))} for e in (epoch, epoch + 1)
    )
    sizes = plan.splits.sizes
    total = int(sizes.sum())
    return NodeShare(int(sizes[sorted(now - {-1})].sum()) / total if total else 1.0, now != then)
