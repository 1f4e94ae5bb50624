"""The windows of a block: the rows that they share, once, and where each window lies among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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


class WindowPlaces(NamedTuple):
    """Where windows lie among rows: int64 [windows] each.

    Attributes:
        anchor: the number of the anchor's row.
        low: that of the first row that the window has.
        high: that of the last one.
    """

    anchor: I64
    low: I64
    high: I64


@dataclass(frozen=True, slots=True, eq=False)
class WindowedRows:
    """Windows over rows, by their anchors; where each lies follows as batches are made.

    Attributes:
        rows: the values of all rows by key, [rows, ...] each.
        anchors: the number of each anchor's row, int64 [windows].
        runs: the number of the first row of each run, and that of all rows, int64 [runs + 1], ascending.
        reach: how many rows a window has before and after its anchor, unless its run ends before.
        keys: of batches.
    """

    rows: Mapping[str, Array]
    anchors: I64
    runs: I64
    reach: tuple[int, int]
    keys: WindowKeys

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the windows' places."""
        return sum(array.nbytes for array in self.rows.values()) + self.anchors.nbytes + self.runs.nbytes

    @property
    def places(self) -> WindowPlaces:
        """Where the windows lie."""
        run, (before, after) = np.searchsorted(self.runs, self.anchors, "right") - 1, self.reach
        low, high = self.runs[run], self.runs[run + 1] - 1
        return WindowPlaces(
            self.anchors, np.maximum(low, self.anchors - before), np.minimum(high, self.anchors + after)
        )

    def slice(self, first: int, last: int) -> WindowedRows:
        """Windows `[first, last)`, as views."""
        return replace(self, anchors=self.anchors[first:last])

    @staticmethod
    def concat(columns: Sequence[WindowedRows]) -> WindowedRows:
        """The windows of all `columns`, with copies of their rows alone."""
        parts = [column._alone() for column in columns]
        rows = {key: np.concatenate([part.rows[key] for part in parts]) for key in parts[0].rows}
        ends = np.cumsum([0, *(part.runs[-1] for part in parts)])
        anchors = np.concatenate([part.anchors + end for part, end in zip(parts, ends, strict=False)])
        runs = np.concatenate([*(part.runs[:-1] + end for part, end in zip(parts, ends, strict=False)), ends[-1:]])
        return replace(columns[0], rows=rows, anchors=anchors, runs=runs)

    def take(self, places: Array, memory: Memory | None = None) -> WindowedRows:
        """The windows with these numbers (integers [m])."""
        return replace(self, anchors=self.anchors[places])

    def parts(self) -> tuple[Header, list[Array]]:
        """A header with the keys, the places, and the rows of each key."""
        return (_windowed, tuple(self.rows), self.reach, self.keys), [self.anchors, self.runs, *self.rows.values()]

    def _alone(self) -> WindowedRows:
        """The same windows, with no rows of others."""
        places, marks = self.places, np.zeros(self.runs[-1] + 1, np.int64)
        np.add.at(marks, places.low, 1)
        np.add.at(marks, places.high + 1, -1)
        used = np.cumsum(marks[:-1]) > 0
        if used.all():
            return self
        before = np.cumsum([0, *used])
        rows = {key: array[used] for key, array in self.rows.items()}
        return replace(self, rows=rows, anchors=before[self.anchors], runs=before[self.runs])


def _windowed(anchors: I64, runs: I64, *parts: Any) -> WindowedRows:
    """The column whose `parts()` held these arrays, the keys of rows, the reach of windows and the keys of batches."""
    *arrays, rows, reach, keys = parts
    return WindowedRows(dict(zip(rows, arrays, strict=True)), anchors, runs, reach, keys)


def gathered(array: Array, places: WindowPlaces, first: int, width: int, fill: Any) -> Dense:
    """The rows of windows from the one that lies `first` after the anchor: [windows, width, ...], in fresh memory.

    Args:
        array: of all rows.
        places: of the windows.
        first: 0 for the anchor itself, negative for rows before it.
        width: how many rows of each window.
        fill: what stands for rows that the window does not have; None: the nearest row that it has.
    """
    start = places.anchor + first
    whole = (start >= places.low) & (start + width - 1 <= places.high)
    if whole.all():
        return Dense(_consecutive(array, start, width))
    out = np.empty((len(start), width, *array.shape[1:]), array.dtype)
    out[whole] = _consecutive(array, start[whole], width)
    part = ~whole
    rows = start[part, None] + np.arange(width)
    nearest = np.clip(rows, places.low[part, None], places.high[part, None])
    values = array[nearest]
    if fill is not None:
        values[rows != nearest] = fill
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


def reality(places: WindowPlaces, first: int, width: int) -> Dense:
    """Which rows of the windows are real, not padding: bool [windows, width]; arguments as of `gathered`."""
    rows = places.anchor[:, None] + np.arange(first, first + width)
    return Dense((rows >= places.low[:, None]) & (rows <= places.high[:, None]))
