"""One shard of any iterable: a sample's place in the stream alone determines its shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Rounds:
    """One shard's part of a stream: in each round, every shard gets a run of `block` samples.

    Attributes:
        num_shards: the number of shards.
        index: of this shard, in `[0, num_shards)`.
        block: samples per shard and round.
        drop_last: whether an incomplete last round is left out.
        complete: whether it is completed with the samples of the first round instead.
    """

    num_shards: int
    index: int
    block: int = 1
    drop_last: bool = False
    complete: bool = False

    @property
    def round_size(self) -> int:
        """Samples of all shards in a round."""
        return self.block * self.num_shards

    def places(self, samples: int = 0) -> range:
        """This shard's places in a round, starting at place `samples`."""
        start = self.index * self.block
        return range(min(max(start, samples), start + self.block), start + self.block)

    def count(self, total: int) -> int:
        """How many of the stream's `total` samples this shard gets."""
        rounds, rest = divmod(total, self.round_size)
        if rest and self.complete:
            return (rounds + 1) * self.block
        last = 0 if self.drop_last else self.block - len(self.places(rest))
        return rounds * self.block + last

    def shard(self, samples: Iterable[T]) -> Iterator[T]:
        """This shard's samples of a stream, read once; keeps at most one round, and only if it is needed."""
        if self.block == 1 and not self.drop_last and not self.complete:
            return islice(samples, self.index, None, self.num_shards)
        return self._shard_with_ends(samples)

    def _shard_with_ends(self, samples: Iterable[T]) -> Iterator[T]:
        places, size = self.places(), self.round_size
        first: list[T] = []  # the first round, for `complete`
        held: list[T] = []  # this shard's samples of a round that may be dropped
        place = 0
        for sample in samples:
            if self.complete and len(first) < size:
                first.append(sample)
            if place in places:
                if self.drop_last:
                    held.append(sample)
                else:
                    yield sample
            place += 1
            if place == size:
                yield from held
                held, place = [], 0
        if place and self.complete:
            for missing in self.places(place):
                yield first[(missing - place) % len(first)]


@dataclass(frozen=True, eq=False)
class StreamShard:
    """One shard of an iterable: can be iterated again if the source can, and has a length if the source has one.

    Attributes:
        source: the iterable.
        rounds: which of its samples belong to this shard.
        contiguous: whether they are one run of the source instead.
    """

    source: Any
    rounds: Rounds
    contiguous: bool = False

    def __iter__(self) -> Iterator[Any]:
        if self.contiguous:
            part = self._part()
            return islice(self.source, part.start, part.stop)
        return self.rounds.shard(self.source)

    def __len__(self) -> int:
        """How many samples this shard has.

        Raises:
            TypeError: the source has no length.
        """
        return len(self._part()) if self.contiguous else self.rounds.count(len(self.source))

    def __bool__(self) -> bool:
        # Otherwise the truth value of a shard without a length would be an error.
        return True

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the source, if it accepts one."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _part(self) -> range:
        total, count, index = len(self.source), self.rounds.num_shards, self.rounds.index
        return range(index * total // count, (index + 1) * total // count)
