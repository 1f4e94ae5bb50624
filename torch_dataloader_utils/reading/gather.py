"""Puts the rows of windows in the order of delivery: one column after another, while it is in the processor's cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Array, Column, Dense, concat
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import Piece, Rows, split_pieces
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.reading.windows import Places, places_of, spans_of

_TAKEN = 1 << 20  # rows taken at a time: their places as int64 fill 8 MB
_NUMBERS = np.empty(0, np.intp)
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

    @cached_property
    def _places(self) -> Places:
        places = places_of([self._piece], iter(spans_of([len(draw.rows) for draw in self.draws])))
        return places.astype(np.intp) if len(places) <= _TAKEN else places  # numpy takes by int64 only

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
        """The task's rows of a column of values of any length, in order of delivery, gathered from the runs."""
        drawn = concat([draw.of_column(runs[draw.run]) for unit in self.units for draw in unit.draws])
        places = [unit.places.astype(np.int64) + unit.base for unit in self.units]
        return drawn.take(places[0] if len(places) == 1 else np.concatenate(places))


class DenseGather:
    """A column of fixed width in a gather: its runs are added one by one, each released before the next is decoded.

    Args:
        gather: the order.
        scratch: memory of this thread, for the rows drawn.
        numbers: likewise, for their places.
        like: an array of the column's dtype and shape per row.
    """

    def __init__(self, gather: Gather, scratch: Scratch, numbers: Scratch, like: Array) -> None:
        self._gather = gather
        self._numbers = numbers
        shape = like.shape[1:]
        nbytes = gather.rows * like.itemsize * math.prod(shape)
        self._out: Array = gather.pool.lease(nbytes).view(like.dtype).reshape(gather.rows, *shape)
        self._scattered = like.itemsize * math.prod(shape) >= _SCATTERED
        self._drawn = like[:0] if self._scattered else scratch.array(gather.drawn, like)

    def add(self, run: int, array: Array) -> None:
        """Add the rows of a run; the array may be read-only, and is not kept."""
        for unit, draw in self._gather.by_run[run]:
            if self._scattered:
                self._scatter(unit, draw, draw.of(array))
            else:
                first = unit.base + draw.at
                self._drawn[first : first + len(draw.rows)] = draw.of(array)

    def _scatter(self, unit: _Unit, draw: _Draw, rows: Array) -> None:
        out = self._out[unit.first : unit.first + unit.rows]
        targets = unit.targets[draw.at : draw.at + len(draw.rows)]
        delivered = targets >= 0
        if delivered.all():
            out[targets] = rows
        else:
            out[targets[delivered]] = rows[delivered]

    def column(self) -> Dense:
        """The task's rows in order of delivery, once all runs were added."""
        for unit in [] if self._scattered else self._gather.units:
            drawn, places = self._drawn[unit.base : unit.base + unit.drawn], unit.places
            for first in range(0, unit.rows, _TAKEN):
                part = places[first : first + _TAKEN]
                if part.dtype != np.intp:
                    part = self._numbers.array(len(part), _NUMBERS)
                    part[:] = places[first : first + _TAKEN]
                out = self._out[unit.first + first : unit.first + first + len(part)]
                np.take(drawn, part, axis=0, out=out, mode="clip")  # this mode avoids a buffer: all are in range
        return Dense(self._out)


def _draws(pieces: Sequence[Piece], owners: Iterator[int], starts: Sequence[int]) -> Iterator[_Draw]:
    parts = list(split_pieces(pieces))
    at = accumulate(map(len, parts), initial=0)
    for part, run, first in zip(parts, owners, at, strict=False):
        rows, start = part.rows, starts[run]
        if rows is None:
            raise ValueError("a piece without a row count cannot be gathered before it is read")
        yield _Draw(run, Rows(rows.start - start, rows.stop - start, rows.step, rows.block, rows.phase - start), first)
