"""Batches of different numbers of rows, each a row of a block of groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.convert.columns import Column
from torch_dataloader_utils.convert.grouped import Grouped
from torch_dataloader_utils.reading.blocks import Block


class BucketMaker:
    """Batches of the groups of a block, each cut by another form. A batch is one group.

    Args:
        form: turns the rows of a group into a batch.
    """

    def __init__(self, form: BatchMaker) -> None:
        self._form = form

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` batches, the groups from number `first` on; `size` is 1."""
        if not count:
            return
        groups = cast("dict[str, Grouped]", block.columns)
        columns: dict[str, Column] = {key: group.column for key, group in groups.items()}
        offsets = next(iter(groups.values())).offsets.tolist()
        rows = Block.of_columns(offsets[-1], columns)
        for number in range(first, first + count * size):
            yield from self._form.slices(rows, offsets[number], 1, offsets[number + 1] - offsets[number])

    def join(self, parts: list[Part]) -> Any:
        """One batch of the one group of these parts."""
        block = Block.joined([block.slice(first, last) for block, first, last in parts])
        return next(self.slices(block, 0, 1, block.rows))

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches of one group each, of the part that the line of `quotas` names."""
        places = [first for _, first, _ in parts]
        for part in quotas.argmax(axis=1).tolist():
            yield from self.slices(parts[part][0], places[part], 1, 1)
            places[part] += 1
