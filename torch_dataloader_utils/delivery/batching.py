"""Exact batches: blocks are sliced where they lie, and joined only where a batch crosses a border."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from torch_dataloader_utils.reading.blocks import Block, Driver

Part = tuple[Block, int, int]  # rows [first, last) of a block


class Form(Protocol):
    """How rows of blocks become batches of one output format."""

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` consecutive batches of `size` rows of the block, from row `first` on."""

    def join(self, parts: list[Part]) -> Any:
        """One batch of the rows of several parts, in fresh memory."""


def shard_batches(driver: Driver, shard: int, size: int, form: Form) -> Iterator[Any]:
    """The shard's batches: `size` rows each whatever the borders of its blocks; only the last may be short."""
    parts: list[Part] = []
    gathered = 0
    while (block := driver.next_block(shard)) is not None:
        first = 0
        if parts:
            first = min(size - gathered, block.rows)
            parts.append((block, 0, first))
            gathered += first
            if gathered < size:
                continue
            yield form.join(parts)
            parts, gathered = [], 0
        count = (block.rows - first) // size
        yield from form.slices(block, first, count, size)
        first += count * size
        if first < block.rows:
            parts, gathered = [(block, first, block.rows)], block.rows - first
    if len(parts) == 1:
        yield from form.slices(*parts[0][:2], 1, gathered)
    elif parts:
        yield form.join(parts)


def rank_batches(driver: Driver, num_shards: int, size: int, form: Form) -> Iterator[Any]:
    """The rank's batches: its shards drained round robin, a batch each; a shard that has ended is passed over."""
    if num_shards == 1:
        yield from shard_batches(driver, 0, size, form)
        return
    turns = deque(shard_batches(driver, shard, size, form) for shard in range(num_shards))
    while turns:
        shard = turns.popleft()
        try:
            batch = next(shard)
        except StopIteration:
            continue
        turns.append(shard)
        yield batch
