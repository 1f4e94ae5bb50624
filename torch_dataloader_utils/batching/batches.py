"""Batches of exact size: blocks are sliced without a copy, and joined only if a batch spans two of them."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.checkpoint.positions import BlockLog
from torch_dataloader_utils.errors import EmptyDatasetError, StaleIteratorError, WorkerError
from torch_dataloader_utils.reading.blocks import Block, Driver

_LOG = logging.getLogger("torch_dataloader_utils")

Part = tuple[Block, int, int]  # rows [first, last) of a block

JOINED_ROWS = 65_536  # the maximum number of rows of several steps that are put in order together


class BatchMaker(Protocol):
    """Turns rows of blocks into batches of one output format."""

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` consecutive batches of `size` rows of the block, starting at row `first`."""

    def join(self, parts: list[Part]) -> Any:
        """One batch from the rows of several parts, in fresh memory."""

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches with rows of every part, in fresh memory.

        Args:
            parts: the rows.
            quotas: the number of rows of each part in each batch, shape [batches, parts]; all batches have one size.
        """


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How a shard's rows are cut into batches.

    Attributes:
        size: rows per batch.
        last_batch: what happens to the shard's short batch: "partial", "drop", or "pad" (repeats the shard's first
            rows). It is "partial" if the plan knows row counts, because the plan then applies the option.
        valid_key: the mask's key, for "pad".
    """

    size: int
    last_batch: str = "partial"
    valid_key: str = "valid"


# Reads the blocks of a shard again, from the beginning.
Head = Callable[[], Iterator[Block]]


def shard_batches(
    driver: Driver, shard: int, cut: BatchSize, form: BatchMaker, log: BlockLog, head: Head
) -> Iterator[Any]:
    """The shard's batches, of full size across the borders of its blocks; only the last may be short.

    Args:
        driver: delivers the blocks from `log.start` on.
        shard: the index of the shard.
        cut: how it is cut.
        form: the form of the batches.
        log: where the shard begins; records what is delivered.
        head: called if the last batch must be filled up.
    """
    size = cut.size
    parts: list[Part] = []
    gathered = 0
    while (block := driver.next_block(shard)) is not None:
        first = log.take(block)  # the first row to deliver
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
    log.ended = True
    if not parts or cut.last_batch == "drop":
        return
    if cut.last_batch == "pad":
        parts += _padding(head, size - gathered, cut.valid_key)
        gathered = size
    if len(parts) == 1:
        yield from form.slices(*parts[0][:2], 1, gathered)
    else:
        yield form.join(parts)


def _padding(head: Head, missing: int, valid_key: str) -> Iterator[Part]:
    """`missing` rows from the beginning of a non-empty shard, repeated as often as needed, and marked as repeats."""
    for block in itertools.cycle(head()):
        rows = min(missing, block.rows)
        if rows:
            yield block.copied(rows, valid_key), 0, rows
        missing -= rows
        if not missing:
            return


def rank_batches(shards: Sequence[Iterator[Any]], turn: int = 0) -> Iterator[Any]:
    """The rank's batches, one from each shard in turn; shards that have ended are skipped.

    Args:
        shards: the batches of each shard.
        turn: the index of the shard that delivers the first batch.
    """
    if len(shards) == 1:
        yield from shards[0]
        return
    turns = deque(shards)
    turns.rotate(-turn)
    while turns:
        shard = turns.popleft()
        try:
            batch = next(shard)
        except StopIteration:
            continue
        turns.append(shard)
        yield batch


def scheduled_batches(shards: Sequence[Iterator[Any]], turns: Iterable[int]) -> Iterator[Any]:
    """The rank's batches, each from the shard whose turn it is, until a shard has none left.

    Args:
        shards: the batches of each shard.
        turns: the index of the shard for each batch.
    """
    for shard in turns:
        for batch in itertools.islice(shards[shard], 1):
            yield batch
            break
        else:
            return


def joint_batches(driver: Driver, logs: Sequence[BlockLog], size: int, form: BatchMaker) -> Iterator[Any]:
    """The rank's batches, each with the same number of rows from every shard; the last with the rows that are left.

    If the blocks of all shards hold several steps, the rows of these steps are put in order together.

    Args:
        driver: delivers the blocks of the shards.
        logs: where each shard begins.
        size: rows per batch, over all shards.
        form: the form of the batches.
    """
    each = size // len(logs)
    shards = [ShardRows(driver, shard, log) for shard, log in enumerate(logs)]
    while True:
        steps = min(min(shard.at_hand(each) for shard in shards) // each, max(1, JOINED_ROWS // size))
        parts = [part for shard in shards for part in shard.take(max(1, steps) * each)]
        if steps > 1:
            order = np.arange(steps * size).reshape(len(shards), steps, each).swapaxes(0, 1).ravel()
            joined = Block.joined([block.slice(first, last) for block, first, last in parts])
            yield from form.slices(joined.take(order), 0, steps, size)
        elif len(parts) > 1:
            yield form.join(parts)
        elif parts:
            (block, first, last) = parts[0]
            yield from form.slices(block, first, 1, last - first)
        else:
            return


class ShardRows:
    """A shard, and its rows that were read and are not delivered yet.

    Args:
        driver: delivers the blocks of the shard from `log.start` on.
        shard: the index of the shard.
        log: where the shard begins; records what is delivered.
    """

    def __init__(self, driver: Driver, shard: int, log: BlockLog) -> None:
        self._driver = driver
        self._shard = shard
        self._log = log
        self._parts: deque[Part] = deque()
        self._rows = 0  # of all parts
        self.row_bytes = 0  # of the block read last

    def at_hand(self, least: int = 1) -> int:
        """The number of rows that are read: `least` or more, or all that are left of the shard."""
        while self._rows < least and not self._log.ended:
            block = self._driver.next_block(self._shard)
            if block is None:
                self._log.ended = True
                break
            first = self._log.take(block)
            if first < block.rows:
                self._parts.append((block, first, block.rows))
                self._rows += block.rows - first
                self.row_bytes = block.nbytes // block.rows
        return self._rows

    def take(self, count: int) -> list[Part]:
        """The next `count` rows, or as many as are left."""
        count = min(count, self.at_hand(count))
        self._rows -= count
        parts: list[Part] = []
        while count:
            block, first, last = self._parts.popleft()
            if last - first > count:
                self._parts.appendleft((block, first + count, last))
                last = first + count
            parts.append((block, first, last))
            count -= last - first
        return parts


def exactly(batches: Iterator[Any], steps: int, units: str) -> Iterator[Any]:
    """The first `steps` batches.

    Args:
        batches: with laps that repeat rows.
        steps: their number.
        units: what batches are made of, in a word: "rows".

    Raises:
        EmptyDatasetError: there are fewer, although laps repeat rows, because there are no rows to repeat.
    """
    done = 0
    for batch in itertools.islice(batches, steps):
        done += 1
        yield batch
    if done < steps:
        raise EmptyDatasetError(
            f"{steps - done} steps of steps_per_epoch are missing: this rank has no {units[:-1]} to repeat. Check that "
            f"the data and filters leave {units} for every rank."
        )


_FAILED = -1  # batches of a rank that cannot go on


def in_step(batches: Iterator[Any], every: int, agree: Callable[[int], int]) -> Iterator[Any]:
    """Batches until the first rank runs out: all ranks stop after the same number (`even="sync"`).

    Args:
        batches: the batches of this rank.
        every: the number of batches to buffer before the ranks compare.
        agree: a collective that maps this rank's number of buffered batches to the smallest one of all ranks.

    Raises:
        WorkerError: another rank cannot go on.
    """
    while True:
        try:
            at_hand = list(itertools.islice(batches, every))
        except StaleIteratorError:  # another thread has ended the pass here
            raise
        except Exception:
            with suppress(RuntimeError):  # this error matters more
                agree(_FAILED)  # the others wait for this rank
            raise
        granted = agree(len(at_hand))
        if granted == _FAILED:
            raise WorkerError("another rank failed in this pass (even='sync'): see the error in its own output.")
        yield from at_hand[:granted]
        if granted < every:
            surplus = len(at_hand) - granted
            if surplus:
                _LOG.info("even='sync': another rank ran out first; at least %d batches here are left out", surplus)
            return
