"""Tells the caches of a source's stores which files its passes read, so that these stay while there is use for them."""

from __future__ import annotations

from torch_dataloader_utils.distributed.nodes import ranks_of_node
from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.model import DataFileInfo
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.storage.cache_plans import PASSES, CachePlan


class CachedPasses:
    """The passes over a source, as its caches see them.

    Args:
        source: what is read.
        options: of the loader.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self._options = source, options
        self._plans: list[CachePlan] | None = None

    def begin(self, world: World) -> None:
        """A pass of this rank begins."""
        if self._plans is None:
            self._plans = self._made(world)
        for plan in self._plans:
            plan.begin()

    def complete(self) -> None:
        """The pass has been read to its end."""
        for plan in self._plans or ():
            plan.complete()

    def close(self) -> None:
        """No pass follows, until the next one begins."""
        for plan in self._plans or ():
            plan.close()

    def _made(self, world: World) -> list[CachePlan]:
        storages, passes = self._source.scan.storages, self._passes(world)
        files: list[list[DataFileInfo]] = [[] for _ in storages]
        for file in self._source.files:
            files[file.info.part].append(file.info)
        plans = (storage.cache_plan(own, passes) for storage, own in zip(storages, files, strict=True))
        return [plan for plan in plans if plan is not None]

    def _passes(self, world: World) -> int | None:
        """Passes in which a node reads all that it reads; None if each may read a part of that."""
        if self._options.shard.steps_per_epoch is not None or self._options.features.mixes_rows:
            return None
        # Where shares move, a node reads what others have read before.
        return PASSES * (world.num_ranks // len(ranks_of_node(world)))
