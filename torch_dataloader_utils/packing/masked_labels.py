"""Batches for models that take no mask of real rows: their labels tell which rows are repeats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.convert.columns import Array, Dense
from torch_dataloader_utils.options.packing import LABELS, Pack
from torch_dataloader_utils.reading.blocks import Block


class LabelsForMask:
    """Batches without the mask of real rows, for models that take none: labels of repeats are -100 instead.

    A batch of nothing but repeats keeps its labels, because the loss of none is no number.

    Args:
        form: turns rows into batches, which have no mask.
        pack: says which keys are labels, and what they hold where a loss leaves them out.
        valid_key: of the mask in blocks.
    """

    def __init__(self, form: BatchMaker, pack: Pack, valid_key: str) -> None:
        self._form = form
        self._pack = pack
        self._valid_key = valid_key

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` batches of `size` rows, starting at row `first`."""
        (labelled,) = self._labelled([(block, first, first + count * size)], np.full((count, 1), size))
        yield from self._form.slices(labelled, 0, count, size)

    def join(self, parts: list[Part]) -> Any:
        """One batch of the rows of several parts, in fresh memory."""
        quotas = np.array([[last - first for _, first, last in parts]])
        return self._form.join([(block, 0, block.rows) for block in self._labelled(parts, quotas)])

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches with rows of every part."""
        yield from self._form.mix([(block, 0, block.rows) for block in self._labelled(parts, quotas)], quotas)

    def _labelled(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> list[Block]:
        """The rows of each part, with the labels of their batches; `quotas` as for `mix`."""
        blocks = [block.slice(first, last) for block, first, last in parts]
        masks = [self._mask(block) for block in blocks]
        if all(mask.all() for mask in masks):
            return blocks
        batches = [np.repeat(np.arange(len(quotas)), quotas[:, part]) for part in range(len(parts))]
        real = np.zeros(len(quotas), np.bool_)
        for numbers, mask in zip(batches, masks, strict=True):
            real[numbers[mask.any(axis=1)]] = True
        return [
            self._without(block, ~mask & real[numbers][:, None])
            for block, mask, numbers in zip(blocks, masks, batches, strict=True)
        ]

    def _mask(self, block: Block) -> Array:
        """The mask of real rows or tokens: bool [rows, 1] or [rows, L]."""
        mask = (block.columns or {})[self._valid_key]
        assert isinstance(mask, Dense)
        return mask.array if mask.array.ndim == 2 else mask.array[:, None]

    def _without(self, block: Block, repeats: Array) -> Block:
        """The rows, with labels that a loss leaves out where these tokens are repeats."""
        columns = dict(block.columns or {})
        for prefix in self._pack.prefixes:
            key = prefix + LABELS
            labels = columns[key]
            assert isinstance(labels, Dense)
            columns[key] = Dense(np.where(repeats, labels.array.dtype.type(self._pack.pad_of(key)), labels.array))
        return Block.of_columns(block.rows, columns)
