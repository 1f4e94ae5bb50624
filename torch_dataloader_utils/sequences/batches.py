"""Batches of windows: rows are copied into windows as batches are made, some at a time, so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.batching.batches import BatchMaker, Part
from torch_dataloader_utils.convert.columns import Column
from torch_dataloader_utils.options.sequences import Windows
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.sequences.columns import (
    FUTURE,
    VALID_FUTURE,
    VALID_PAST,
    WINDOWS,
    WindowedRows,
    gathered,
    reality,
)

_BYTES = 8 * 2**20  # of the windows that are made at a time: they stay in the processor's cache


class WindowMaker:
    """Batches of windows.

    Args:
        form: turns their rows into batches.
        windows: which rows a window has.
    """

    def __init__(self, form: BatchMaker, windows: Windows) -> None:
        self._form, self._windows = form, windows

    def slices(self, block: Block, first: int, count: int, size: int) -> Iterator[Any]:
        """`count` consecutive batches of `size` windows of the block, starting at window `first`."""
        most = max(1, _BYTES // max(1, self._window_bytes(block) * size))
        while count:
            batches = min(count, most)
            rows = self._laid_out(block, first, first + batches * size)
            yield from self._form.slices(rows, 0, batches, size)
            first, count = first + batches * size, count - batches

    def join(self, parts: list[Part]) -> Any:
        """One batch from the windows of several parts, in fresh memory."""
        return self._form.join([(self._laid_out(*part), 0, part[2] - part[1]) for part in parts])

    def mix(self, parts: list[Part], quotas: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Batches with windows of every part."""
        return self._form.mix([(self._laid_out(*part), 0, part[2] - part[1]) for part in parts], quotas)

    def _window_bytes(self, block: Block) -> int:
        """The bytes of a window of the block."""
        windowed, windows = _windowed(block), self._windows
        with_future = windowed.keys.future
        return sum(
            array[:1].nbytes * (windows.length + (windows.horizon if key in with_future else 0))
            for key, array in windowed.rows.items()
        )

    def _laid_out(self, block: Block, first: int, last: int) -> Block:
        """Windows `[first, last)` of a block, each row copied to its place: a row of the result is a window."""
        part = block.slice(first, last)
        windowed, horizon = _windowed(part), self._windows.horizon
        columns: dict[str, Column] = {key: column for key, column in (part.columns or {}).items() if key != WINDOWS}
        places, keys, past = windowed.places, windowed.keys, (1 - self._windows.length, self._windows.length)
        for key, array in windowed.rows.items():
            fill = keys.fills.get(key)
            columns[key] = gathered(array, places, *past, fill)
            if key in keys.future:
                columns[key + FUTURE] = gathered(array, places, 1, horizon, fill)
        if keys.masks:
            columns[VALID_PAST] = reality(places, *past)
            if horizon:
                columns[VALID_FUTURE] = reality(places, 1, horizon)
        return Block.of_columns(part.rows, columns)


def _windowed(block: Block) -> WindowedRows:
    return cast("WindowedRows", (block.columns or {})[WINDOWS])
