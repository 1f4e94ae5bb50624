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
    kept = "all" if expected == 1 else f"{expected:.0%}, or more where not all columns are read,"
    text = f"{in_bytes(room)} on this node: {kept} of what it reads in later epochs, once the first has filled it"
    if not share.moves or expected == 1:
        return CachedShare(text)
    stays = NodeShare(share.part).expected_hits(room, stored)
    advice = Advice(
        f"the cache will hold only {expected:.0%} of what this node reads in an epoch: each epoch shares the data anew "
        f"among {world.num_ranks // len(here)} nodes, so each of them caches a part of all data.",
        "Use sharding=Rotate(stick_to_shard=True), with which each rank shuffles a shard of its own, or shuffle=False: "
        f"then it holds {stays:.0%}.",
    )
    return CachedShare(text, advice)
