"""The columns that packing adds to sequences of one length: where documents begin and end in them."""

from __future__ import annotations

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged
from torch_dataloader_utils.options.packing import DOCUMENTS, ENDS, LONGEST, POSITIONS


class Numbers:
    """0, 1, 2, ... in memory that is used again."""

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.int32)

    def first(self, count: int) -> Array:
        """The first numbers: int32 [count]; not to be written to."""
        if count > len(self._numbers):
            self._numbers = np.arange(count, dtype=np.int32)
        return self._numbers[:count]


def sequence_columns(
    lengths: Array, documents: Array, offsets: Array, shape: tuple[int, int], numbers: Numbers
) -> dict[str, Column]:
    """The columns of sequences that consist of runs: documents, and the padding at the end of a sequence.

    Args:
        lengths: the tokens of each run, shape [runs].
        documents: the number of its document in its sequence, -1 for padding, shape [runs].
        offsets: the runs of each sequence, shape [sequences + 1].
        shape: (sequences, tokens of each).
        numbers: memory.
    """
    # All int32: of int64, they would take several times as long.
    positions = np.repeat(starts_of(lengths).astype(np.int32), lengths)
    np.subtract(numbers.first(len(positions)), positions, out=positions)
    runs = lengths.astype(np.int32), offsets
    return {
        POSITIONS: Dense(positions.reshape(shape)),
        DOCUMENTS: Dense(np.repeat(documents.astype(np.int32), lengths).reshape(shape)),
        ENDS: Ragged(*runs, "ends"),
        LONGEST: Ragged(*runs, "longest"),
    }


def starts_of(lengths: Array) -> Array:
    """The place of the first token of each run, int64 [runs]."""
    starts: Array = np.cumsum(lengths) - lengths
    return starts
