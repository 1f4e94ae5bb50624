"""The windows of a block: the rows that they share, once, and where each window lies among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Array, Dense, Header, Memory
from torch_dataloader_utils.rows import I64

WINDOWS = "\0windows"  # the key of what all keys of a window share in a block
FUTURE = "_future"  # how the keys of the rows after the anchor end
VALID_PAST, VALID_FUTURE = "valid_past", "valid_future"


@dataclass(frozen=True)
class WindowKeys:
    """The keys of batches of windows.

    Attributes:
        past: those with the rows up to the anchor: [B, L, ...].
        future: those of `past` of which the rows after the anchor are delivered, too, as `key_future`: [B, H, ...].
        static: those with one value of each window.
        fills: what stands for rows that a window does not have, by key; empty: the nearest row of its run.
        masks: whether batches say which rows are real.
        order: all keys of rows, in the order of the columns.
    """

    past: tuple[str, ...]
    future: tuple[str, ...]
    static: tuple[str, ...]
    fills: Mapping[str, Any]
    masks: bool
    order: tuple[str, ...]

    def of_batches(self, horizon: int) -> tuple[str, ...]:
        """All keys of batches, without the mask of whole windows."""
        own = [key for name in self.order for key in ([name, name + FUTURE] if name in self.future else [name])]
        masks = [VALID_PAST, *([VALID_FUTURE] if horizon else [])] if self.masks else []
        return (*own, *masks)


@dataclass(frozen=True, slots=True, eq=False)
class WindowedRows:
    """Windows over rows: window i has the anchor `spans[i, 0]`, rows `spans[i, 1]` before it and `spans[i, 2]` after.

    Attributes:
        rows: the values of all rows by key, [rows, ...] each.
        spans: int64 [windows, 3].
        keys: of batches.
    """

    rows: Mapping[str, Array]
    spans: I64
    keys: WindowKeys

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the windows' places."""
        return sum(array.nbytes for array in self.rows.values()) + self.spans.nbytes

    def slice(self, first: int, last: int) -> WindowedRows:
        """Windows `[first, last)`, as views."""
        return WindowedRows(self.rows, self.spans[first:last], self.keys)

    @staticmethod
    def concat(columns: Sequence[WindowedRows]) -> WindowedRows:
        """The windows of all `columns`, with copies of their rows alone."""
        parts = [column._alone() for column in columns]
        ends = np.cumsum([0, *(part._count for part in parts)])
        rows = {key: np.concatenate([part.rows[key] for part in parts]) for key in parts[0].rows}
        spans = [part.spans + np.array([end, 0, 0]) for part, end in zip(parts, ends[:-1], strict=True)]
        return WindowedRows(rows, np.concatenate(spans), columns[0].keys)

    def take(self, places: Array, memory: Memory | None = None) -> WindowedRows:
        """The windows with these numbers (integers [m])."""
        return WindowedRows(self.rows, self.spans[places], self.keys)

    def parts(self) -> tuple[Header, list[Array]]:
        """A header with the keys, the places, and the rows of each key."""
        return (_windowed, tuple(self.rows), self.keys), [self.spans, *self.rows.values()]

    @property
    def _count(self) -> int:
        return len(next(iter(self.rows.values())))

    def _alone(self) -> WindowedRows:
        """The same windows, with no rows of others."""
        count, first, last = self._count, self.spans[:, 0] - self.spans[:, 1], self.spans[:, 0] + self.spans[:, 2]
        marks = np.zeros(count + 1, np.int64)
        np.add.at(marks, first, 1)
        np.add.at(marks, last + 1, -1)
        used = np.cumsum(marks[:-1]) > 0
        if used.all():
            return self
        places, spans = np.cumsum(used) - 1, self.spans.copy()
        spans[:, 0] = places[spans[:, 0]]
        return WindowedRows({key: array[used] for key, array in self.rows.items()}, spans, self.keys)


def _windowed(spans: I64, *parts: Any) -> WindowedRows:
    """The column whose `parts()` held these arrays, the keys of rows and those of batches."""
    *arrays, rows, keys = parts
    return WindowedRows(dict(zip(rows, arrays, strict=True)), spans, keys)


def gathered(array: Array, spans: I64, first: int, width: int, fill: Any) -> Dense:
    """The rows of windows from the one that lies `first` after the anchor: [windows, width, ...], in fresh memory.

    Args:
        array: of all rows.
        spans: of the windows.
        first: 0 for the anchor itself, negative for rows before it.
        width: how many rows of each window.
        fill: what stands for rows that the window does not have; None: the nearest row that it has.
    """
    low, high = spans[:, 0] - spans[:, 1], spans[:, 0] + spans[:, 2]
    start = spans[:, 0] + first
    whole = (start >= low) & (start + width - 1 <= high)
    if whole.all():
        return Dense(_consecutive(array, start, width))
    out = np.empty((len(spans), width, *array.shape[1:]), array.dtype)
    out[whole] = _consecutive(array, start[whole], width)
    part = ~whole
    places = start[part, None] + np.arange(width)
    nearest = np.clip(places, low[part, None], high[part, None])
    values = array[nearest]
    if fill is not None:
        values[places != nearest] = fill
    out[part] = values
    return Dense(out)


def _consecutive(array: Array, start: I64, width: int) -> Array:
    """`width` rows from each of these on: [n, width, ...]. A window is copied at once, as one value of many bytes."""
    shape, size = (len(start), width, *array.shape[1:]), array[:1].nbytes
    if not len(start) or not size or not width:
        return np.empty(shape, array.dtype)
    data = np.ascontiguousarray(array)
    views: npt.NDArray[np.void] = np.ndarray(
        (len(data) - width + 1,), f"V{size * width}", data.reshape(-1).view(np.uint8).data, 0, (size,)
    )
    return views[start].view(array.dtype).reshape(shape)


def reality(spans: I64, first: int, width: int) -> Dense:
    """Which rows of the windows are real, not padding: bool [windows, width]; arguments as of `gathered`."""
    offsets = np.arange(first, first + width)
    return Dense((offsets >= -spans[:, 1, None]) & (offsets <= spans[:, 2, None]))
