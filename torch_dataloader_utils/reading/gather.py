"""Puts the rows of windows in the order of delivery: one column after another, while it is in the processor's cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Ragged, Text, concat
from torch_dataloader_utils.kernels import BucketOrder, compiled, put, take
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Piece, Rows, Window, split_pieces
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.reading.windows import Places, places_of, spans_of

_KEPT = 1 << 20  # rows whose places are kept as numpy takes them, for all columns: as int64 they fill 8 MB
_NEAR = 3 << 19  # rows of a window up to which its columns are gathered at once: two steps take as long
_SCATTERED = 256  # bytes of a row from which on it is written to its place at once, without the copy that a take needs


@dataclass(frozen=True, slots=True)
class _Draw:
    """Rows of one run: `rows`, numbered from the run's first row; they follow `at` others that its unit draws."""

    run: int
    rows: Rows
    at: int

    def of(self, array: Array) -> Array:
        """The rows of the run's array; a view if they are contiguous."""
        rows = self.rows
        if rows.contiguous or rows.block == 1:
            return array[rows.row(0) : rows.stop : rows.step] if len(rows) else array[:0]
        return array[rows.numbers()]

    def of_column(self, column: Column) -> Column:
        """The rows of the run's column."""
        if self.rows.contiguous:
            return column.slice(self.rows.start, self.rows.stop)
        return column.take(self.rows.numbers())


class _Unit:
    """One piece of a task: the rows it draws from the runs, and its rows' positions among them, in delivery order.

    Attributes:
        draws: the rows that it draws.
        drawn: how many these are.
        rows: how many it delivers.
        first: number of the task's rows that are delivered before.
        base: number of the rows that the units before it draw.
    """

    def __init__(self, piece: Piece, draws: Sequence[_Draw], first: int, base: int) -> None:
        self._piece = piece
        self._lock = threading.Lock()
        self.draws = draws
        self.drawn = sum(len(draw.rows) for draw in draws)
        if piece.rows is None:
            raise ValueError("a window without a row count cannot be gathered column by column")
        self.rows = len(piece)
        self.first, self.base = first, base

    @property
    def places(self) -> Places:
        """The positions of its rows, drawn when the first column needs them, while other threads decode."""
        with self._lock:
            return self._places

    @property
    def buckets(self) -> BucketOrder | None:
        """The order of a whole window that is large, likewise; None: `places` has it."""
        with self._lock:
            return self._buckets

    @cached_property
    def _buckets(self) -> BucketOrder | None:
        window = self._piece.source
        if not isinstance(window, Window) or window.key is None or self._piece.rows != Rows(0, self.drawn):
            return None
        if any(isinstance(piece.source, Window) for piece in window.pieces):
            return None
        return BucketOrder.drawn(self.drawn, window.key, [len(draw.rows) for draw in self.draws])

    @cached_property
    def _places(self) -> Places:
        if self._buckets is not None:
            return self._buckets.places()
        places = places_of([self._piece], iter(spans_of([len(draw.rows) for draw in self.draws])))
        return places if compiled() or len(places) > _KEPT else places.astype(np.intp)

    @cached_property
    def targets(self) -> npt.NDArray[np.int64]:
        """The position in the order of delivery of each row that it draws, int64 [drawn]; -1 if it is not delivered."""
        targets = np.full(self.drawn, -1, np.int64)
        targets[self.places] = np.arange(self.rows)
        return targets


class Gather:
    """The order of a task's rows; several threads may apply it to different columns.

    Args:
        pieces: of the task; their row counts must be known.
        owners: index of the run of each piece of a split.
        starts: plan row number of each run's first row.
        pool: memory that columns are gathered into.
    """

    def __init__(self, pieces: Sequence[Piece], owners: Sequence[int], starts: Sequence[int], pool: BufferPool) -> None:
        self.pool = pool
        self.units: list[_Unit] = []
        self.by_run: list[list[tuple[_Unit, _Draw]]] = [[] for _ in starts]
        self.rows = self.drawn = 0
        remaining = iter(owners)
        for piece in pieces:
            unit = _Unit(piece, tuple(_draws([piece], remaining, starts)), self.rows, self.drawn)
            self.units.append(unit)
            for draw in unit.draws:
                self.by_run[draw.run].append((unit, draw))
            self.rows += unit.rows
            self.drawn += unit.drawn

    def column(self, runs: Sequence[Column]) -> Column:
        """The task's rows of a column of values of any length, in order of delivery, from those of the runs."""
        drawn: list[Any] = [draw.of_column(runs[draw.run]) for unit in self.units for draw in unit.draws]
        kind = type(drawn[0])
        if issubclass(kind, Ragged | Text):
            return kind.taken(drawn, self._places, self.pool.lease)
        return concat(drawn).take(self._places)

    @cached_property
    def _places(self) -> Places:
        """The positions of all rows among those that the units draw."""
        if len(self.units) == 1:
            return self.units[0].places
        return np.concatenate([unit.places.astype(np.int64) + unit.base for unit in self.units])


class DenseGather:
    """A column of fixed width in a gather: its runs are added one by one, each released before the next is decoded.

    Wide rows are written to their places at once, rows of large windows into buckets of the output. Other rows are kept
    in scratch memory until all runs were added.

    Args:
        gather: the order.
        scratch: memory of this thread, for the rows drawn.
        numbers: likewise, for their places or one bucket.
        like: an array of the column's dtype and shape per row.
    """

    def __init__(self, gather: Gather, scratch: Scratch, numbers: Scratch, like: Array) -> None:
        self._gather = gather
        self._numbers = numbers
        shape = like.shape[1:]
        nbytes = gather.rows * like.itemsize * math.prod(shape)
        self._out: Array = gather.pool.lease(nbytes).view(like.dtype).reshape(gather.rows, *shape)
        self._scattered = like.itemsize * math.prod(shape) >= _SCATTERED
        kept = not self._scattered and any(self._buckets(unit) is None for unit in gather.units)
        self._drawn = scratch.array(gather.drawn, like) if kept else like[:0]

    def add(self, run: int, array: Array) -> None:
        """Add the rows of a run; the array may be read-only, and is not kept."""
        for unit, draw in self._gather.by_run[run]:
            last = draw.at + len(draw.rows)
            if self._scattered:
                put(draw.of(array), unit.targets[draw.at : last], self._of(unit))
            elif (buckets := self._buckets(unit)) is not None:
                buckets.put(draw.at, draw.of(array), self._of(unit))
            else:
                self._drawn[unit.base + draw.at : unit.base + last] = draw.of(array)

    def column(self) -> Dense:
        """The task's rows in order of delivery, once all runs were added."""
        for unit in [] if self._scattered else self._gather.units:
            if (buckets := self._buckets(unit)) is not None:
                buckets.permute(self._of(unit), self._numbers.bytes)
            else:
                drawn = self._drawn[unit.base : unit.base + unit.drawn]
                take(drawn, unit.places, self._of(unit), self._numbers.bytes)
        return Dense(self._out)

    @staticmethod
    def _buckets(unit: _Unit) -> BucketOrder | None:
        return unit.buckets if unit.drawn > _NEAR else None

    def _of(self, unit: _Unit) -> Array:
        """The unit's rows in the output."""
        return self._out[unit.first : unit.first + unit.rows]


def _draws(pieces: Sequence[Piece], owners: Iterator[int], starts: Sequence[int]) -> Iterator[_Draw]:
    parts = list(split_pieces(pieces))
    at = accumulate(map(len, parts), initial=0)
    for part, run, first in zip(parts, owners, at, strict=False):
        rows, start = part.rows, starts[run]
        if rows is None:
            raise ValueError("a piece without a row count cannot be gathered before it is read")
        yield _Draw(run, Rows(rows.start - start, rows.stop - start, rows.step, rows.block, rows.phase - start), first)
