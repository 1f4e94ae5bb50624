"""How samples are dealt to shards, by their place in the stream alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from torch_dataloader_utils.errors import ShardingError

T = TypeVar("T")


@dataclass(frozen=True)
class Deal:
    """One shard's part of a stream: in each round, every shard gets a run of `block` samples.

    Attributes:
        num_shards: all shards.
        index: of this shard, in `[0, num_shards)`.
        block: samples of a shard in a round.
        drop_last: whether an incomplete last round is left out.
        complete: whether it is completed by the samples of the first round instead.
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
        """This shard's places in a round, from place `samples` on."""
        start = self.index * self.block
        return range(min(max(start, samples), start + self.block), start + self.block)

    def count(self, total: int) -> int:
        """How many samples this shard gets of a stream of `total`."""
        rounds, rest = divmod(total, self.round_size)
        if rest and self.complete:
            return (rounds + 1) * self.block
        last = 0 if self.drop_last else self.block - len(self.places(rest))
        return rounds * self.block + last

    def own(self, samples: Iterable[T]) -> Iterator[T]:
        """This shard's samples of a stream, read once; keeps a round at most, and only if it is needed."""
        if self.block == 1 and not self.drop_last and not self.complete:
            return islice(samples, self.index, None, self.num_shards)
        return self._own_with_ends(samples)

    def _own_with_ends(self, samples: Iterable[T]) -> Iterator[T]:
        own, size = self.places(), self.round_size
        first: list[T] = []  # the first round, for `complete`
        held: list[T] = []  # this shard's samples of a round that may be dropped
        place = 0
        for sample in samples:
            if self.complete and len(first) < size:
                first.append(sample)
            if place in own:
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


def part_of(total: int, num_shards: int, index: int) -> range:
    """The places of a contiguous part: from `floor(index * total / num_shards)` up to where the next part starts."""
    return range(index * total // num_shards, (index + 1) * total // num_shards)


def plan_deal(
    num_shards: int, index: int, batch_size: int | None, split_batches: bool, drop_last: bool, even_batches: bool
) -> Deal:
    """The deal that the options of `streaming_shard` mean.

    Raises:
        ShardingError: numbers that do not fit together.
    """
    _check_shard(num_shards, index)
    if batch_size is None:
        if split_batches:
            raise ShardingError("split_batches=True without batch_size: give the batch_size that is to be split.")
        return Deal(num_shards, index, drop_last=drop_last)
    if batch_size < 1 or (split_batches and batch_size % num_shards):
        raise ShardingError(
            f"batch_size={batch_size} with num_shards={num_shards} and split_batches={split_batches}: expected a "
            f"positive number of samples{', and a multiple of num_shards' if split_batches else ''}."
        )
    block = batch_size // num_shards if split_batches else batch_size
    return Deal(num_shards, index, block, drop_last, complete=even_batches and not drop_last)


def _check_shard(num_shards: int, index: int) -> None:
    if num_shards < 1 or not 0 <= index < num_shards:
        raise ShardingError(
            f"num_shards={num_shards} and index={index}: expected at least one shard, and an index in [0, num_shards)."
        )
