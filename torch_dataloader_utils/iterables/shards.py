"""One shard of any iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch_dataloader_utils.iterables.deal import Deal, part_of


@dataclass(frozen=True, eq=False)
class StreamShard:
    """One shard of an iterable: can be iterated again, and has a length, if the source can and has.

    Attributes:
        source: the iterable.
        deal: which of its samples belong to this shard.
        contiguous: whether they are one run of the source instead.
    """

    source: Any
    deal: Deal
    contiguous: bool = False

    def __iter__(self) -> Iterator[Any]:
        samples: Iterable[Any] = self.source
        if self.contiguous:
            part = self._part()
            return islice(samples, part.start, part.stop)
        return self.deal.own(samples)

    def __len__(self) -> int:
        """How many samples this shard has.

        Raises:
            TypeError: the source has no length.
        """
        return len(self._part()) if self.contiguous else self.deal.count(len(self.source))

    def __bool__(self) -> bool:
        # Or the truth of a shard without a length would be an error.
        return True

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch on to the source, if it takes one."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _part(self) -> range:
        return part_of(len(self.source), self.deal.num_shards, self.deal.index)
