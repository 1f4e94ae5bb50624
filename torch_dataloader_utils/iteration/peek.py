"""The first rows that a loader delivers in an epoch, as one batch, without a pass that anything counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import Part
from torch_dataloader_utils.batching.sent import DeviceBatch
from torch_dataloader_utils.errors import EmptyDatasetError
from torch_dataloader_utils.iteration.one_pass import END, Pass
from torch_dataloader_utils.iteration.passes import Passes
from torch_dataloader_utils.reading.blocks import Block


class PartsForm:
    """Batches as lists of the parts of blocks that they consist of, for the real form to join."""

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[list[Part]]:
        """`count` batches of `size` rows of the block."""
        for start in range(first, first + count * size, size):
            yield [(block, start, start + size)]

    def join(self, parts: list[Part]) -> list[Part]:
        """One batch of several parts."""
        return parts

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[list[Part]]:
        """Batches with rows of every part."""
        starts = [first for _, first, _ in parts]
        for ends in (np.cumsum(quotas, axis=0) + starts).tolist():
            yield [(block, first, last) for (block, _, _), first, last in zip(parts, starts, ends, strict=True)]
            starts = ends


def first_rows(passes: Passes, rows: int) -> Any:
    """The first rows of this rank in the live or next epoch, as one batch with all that a batch has.

    Args:
        passes: of the loader; they stay as they are.
        rows: how many; fewer where the epoch has fewer.

    Raises:
        EmptyDatasetError: this rank has none.
    """
    begun = passes.apart(PartsForm())
    try:
        parts = _first(begun, rows)
    finally:
        begun.close()
    if not parts:
        unit = passes.source.unit.plural
        raise EmptyDatasetError(f"head: rank {passes.planner.world.rank} has no {unit} in epoch {begun.epoch}.")
    batch, collate = passes.form().join(parts), passes.options.batch.collate_fn
    handed = batch.handed() if isinstance(batch, DeviceBatch) else batch
    return handed if collate is None else collate(handed)


def _first(begun: Pass, rows: int) -> list[Part]:
    """The parts of blocks that hold the first rows of a pass."""
    parts: list[Part] = []
    while rows and (batch := begun.take()) is not END:
        begun.taken += 1
        for block, first, last in batch:
            taken = min(last - first, rows)
            rows -= taken
            if taken:
                parts.append((block, first, first + taken))
    return parts
