"""How much of later epochs a cache is expected to hold, as `describe()` says it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch_dataloader_utils.distributed.nodes import ranks_of_node
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.planning.advice import Advice
from torch_dataloader_utils.planning.node_share import NodeShare, node_share
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.printing import in_bytes
from torch_dataloader_utils.sources.source import Source


@dataclass(frozen=True, slots=True)
class CachedShare:
    """What a cache is expected to hold.

    Attributes:
        text: in words; "" without a cache.
        advice: how it would hold more.
    """

    text: str = ""
    advice: Advice | None = None


def cached_share(source: Source, plan: Plan | None, epoch: int, world: World) -> CachedShare:
    """What the caches of a source are expected to hold of the epochs after this one.

    Args:
        source: what is read.
        plan: of all ranks; None where a strategy generates the shards of each.
        epoch: the epoch.
        world: the ranks.
    """
    caches = {part: storage.cache for part, storage in enumerate(source.scan.storages) if storage.cache is not None}
    if not caches:
        return CachedShare()
    rooms = {os.fspath(cache.folder): int(cache.max_bytes) for cache in caches.values()}
    room, stored = sum(rooms.values()), sum(f.info.file_size for f in source.files if f.info.part in caches)
    here = ranks_of_node(world)
    share = NodeShare() if plan is None else node_share(plan, epoch, here)
    expected = share.expected_hits(room, stored)
    text = f"{in_bytes(room)}: {_part(expected)} of what this node reads in later epochs"
    if expected == 1:
        return CachedShare(text)
    text += "; more if not all columns are read"
    if not share.moves:
        return CachedShare(text)
    stays = NodeShare(len(here) / world.num_ranks).expected_hits(room, stored)
    advice = Advice(
        f"the cache will hold only {_part(expected)} of what this node reads in an epoch: each epoch shares the data "
        f"anew among {world.num_ranks // len(here)} nodes, so each of them caches a part of all data.",
        "Use sharding=Rotate(stick_to_shard=True), with which each rank shuffles a shard of its own, or shuffle=False: "
        f"then it holds {_part(stays)}.",
    )
    return CachedShare(text, advice)


def _part(share: float) -> str:
    return "all" if share == 1 else f"about {share:.0%}"
