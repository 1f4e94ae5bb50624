"""Exact batches: blocks are sliced where they lie, and joined only where a batch crosses a border."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch_dataloader_utils.errors import EmptyDatasetError
from torch_dataloader_utils.reading.blocks import Block, Driver

_LOG = logging.getLogger("torch_dataloader_utils")

Part = tuple[Block, int, int]  # rows [first, last) of a block


class Form(Protocol):
    """How rows of blocks become batches of one output format."""

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` consecutive batches of `size` rows of the block, from row `first` on."""

    def join(self, parts: list[Part]) -> Any:
        """One batch of the rows of several parts, in fresh memory."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a shard's rows are cut into batches.

    Attributes:
        size: rows of a batch.
        last_batch: what becomes of the shard's short batch: "partial", "drop", or "pad" (the shard's first rows again).
            A plan that knows the counts has decided it already, and says "partial" here.
        valid_key: the mask's key, for "pad".
    """

    size: int
    last_batch: str = "partial"
    valid_key: str = "valid"


def shard_batches(driver: Driver, shard: int, cut: Cut, form: Form) -> Iterator[Any]:
    """The shard's batches: of full size whatever the borders of its blocks; only the last may be short."""
    size = cut.size
    parts: list[Part] = []
    gathered = 0
    head: list[Block] = []  # copies of the shard's first rows, for padding
    while (block := driver.next_block(shard)) is not None:
        if cut.last_batch == "pad" and sum(part.rows for part in head) < size:
            head.append(block.copied(min(size, block.rows), cut.valid_key))
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
    if not parts or cut.last_batch == "drop":
        return
    if cut.last_batch == "pad":
        parts += _cycle(head, size - gathered)
        gathered = size
    if len(parts) == 1:
        yield from form.slices(*parts[0][:2], 1, gathered)
    else:
        yield form.join(parts)


def _cycle(blocks: list[Block], missing: int) -> Iterator[Part]:
    """`missing` rows of these blocks, over and over."""
    for block in itertools.cycle(block for block in blocks if block.rows):
        if not missing:
            return
        rows = min(missing, block.rows)
        missing -= rows
        yield block, 0, rows


def rank_batches(driver: Driver, num_shards: int, cut: Cut, form: Form) -> Iterator[Any]:
    """The rank's batches: its shards drained round robin, a batch each; a shard that has ended is passed over."""
    if num_shards == 1:
        yield from shard_batches(driver, 0, cut, form)
        return
    turns = deque(shard_batches(driver, shard, cut, form) for shard in range(num_shards))
    while turns:
        shard = turns.popleft()
        try:
            batch = next(shard)
        except StopIteration:
            continue
        turns.append(shard)
        yield batch


def exactly(batches: Iterator[Any], steps: int) -> Iterator[Any]:
    """The first `steps` batches.

    Raises:
        EmptyDatasetError: there are fewer, though laps repeat them: there is no row to repeat.
    """
    done = 0
    for batch in itertools.islice(batches, steps):
        done += 1
        yield batch
    if done < steps:
        raise EmptyDatasetError(f"steps_per_epoch={steps}: this rank has no row to deliver or to repeat.")


def in_step(batches: Iterator[Any], every: int, agree: Callable[[int], int]) -> Iterator[Any]:
    """Batches until the first rank runs out: all ranks stop after the same number (`even="sync"`).

    Args:
        batches: of this rank.
        every: how many batches are at hand before the ranks compare.
        agree: from how many this rank has at hand to the smallest number over all ranks; a collective.
    """
    while True:
        at_hand = list(itertools.islice(batches, every))
        granted = agree(len(at_hand))
        yield from at_hand[:granted]
        if granted < every:
            surplus = len(at_hand) - granted
            if surplus:
                _LOG.info("even='sync': another rank ran out first; at least %d batches here are left out", surplus)
            return
