"""Batches of sequences of one length, cut from blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.options.packing import DOCUMENTS, LABELS, NAMED, OF_DOCUMENTS, Pack
from torch_dataloader_utils.packing.sequence_columns import Numbers, sequence_columns
from torch_dataloader_utils.packing.sides import PackedSide, made_labels
from torch_dataloader_utils.reading.blocks import Block

_TOKENS = 1 << 17  # cut at a time, so that what is computed of them stays in the processor's cache


class SequenceMaker:
    """Batches of the tokens of a block, cut by another form. Sizes are tokens, whole sequences of them.

    Args:
        form: turns rows of sequences into batches.
        pack: says what they hold.
        source_key: the key of the dataset of each sequence; None for none.
    """

    def __init__(self, form: BatchMaker, pack: Pack, source_key: str | None = None) -> None:
        self._form = form
        self._pack = pack
        self._length = pack.length
        self._source_key = source_key
        self._numbers = Numbers()

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` batches of `size` tokens, starting at token `first`."""
        group = max(1, _TOKENS // size) if size else 1
        while count:
            batches = min(count, group)
            sequences = self._sequences(block.slice(first, first + batches * size))
            yield from self._form.slices(sequences, 0, batches, size // self._length)
            first, count = first + batches * size, count - batches

    def join(self, parts: list[Part]) -> Any:
        """One batch of the tokens of several parts, in fresh memory."""
        block = Block.joined([block.slice(first, last) for block, first, last in parts])
        return next(self.slices(block, 0, 1, block.rows))

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches of sequences of several parts, in fresh memory; `quotas`: the tokens of each part in each batch."""
        size, ends = int(quotas[0].sum()), np.cumsum(quotas, axis=0)
        group = max(1, _TOKENS // size)
        for number in range(0, len(quotas), group):
            some, last = quotas[number : number + group], ends[number : number + group]
            runs = [
                block.slice(first + end - tokens, first + end)
                for line, places in zip(some.tolist(), last.tolist(), strict=True)
                for (block, first, _), tokens, end in zip(parts, line, places, strict=True)
                if tokens
            ]
            yield from self.slices(Block.joined(runs), 0, len(some), size)

    def _sequences(self, block: Block) -> Block:
        """The tokens of a block as sequences, with the places of the documents in each."""
        shape = block.rows // self._length, self._length
        columns = {key: column.array for key, column in (block.columns or {}).items() if isinstance(column, Dense)}
        datasets = {}
        if self._source_key is not None:
            datasets[self._source_key] = Dense(columns.pop(self._source_key)[:: self._length].astype(np.int64))
        names = {OF_DOCUMENTS[name]: columns.pop(key) for name, key in NAMED.items() if key in columns}
        begins = columns.pop(DOCUMENTS).copy()
        begins[:: self._length] = True
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=block.rows)
        offsets = np.append(np.searchsorted(starts, np.arange(0, block.rows, self._length)), len(starts))
        documents = np.arange(len(starts)) - np.repeat(offsets[:-1], np.diff(offsets))
        self._label(columns, starts)
        tokens: dict[str, Column] = {key: Dense(array.reshape(shape)) for key, array in columns.items()}
        added = sequence_columns(lengths, documents, offsets, shape, self._numbers)
        named = PackedSide("", tuple(columns), self._pack).named(added)
        of_documents = {key: Ragged(array[starts], offsets, "flat") for key, array in names.items()}
        return Block.of_columns(shape[0], {**tokens, **named, **of_documents, **datasets})

    def _label(self, columns: dict[str, Array], starts: Array) -> None:
        """Replace the labels of the block, which are views, by those of documents that start at these tokens."""
        source = self._pack.labels or LABELS
        if source in columns:
            # Fresh memory in both cases, because others may have views of the block.
            labels = columns[source].copy() if self._pack.labels is None else made_labels(columns[source])
            labels[starts] = self._pack.pad_of(LABELS)
            columns[LABELS] = labels
