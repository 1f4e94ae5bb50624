"""Tasks over row-shuffle windows: what is decoded for them, and the order in which their rows are delivered.

The rows of all pieces of splits below a window are *drawn* together, and delivered by a single gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Array, Column, Dense, concat
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import Piece, Rows, Task, Window, split_pieces
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.reading.buffers import BufferPool, Scratch
from torch_dataloader_utils.seeding import window_order

Places: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint32]
Span: TypeAlias = tuple[int, int]  # (first row, row count) in a block
ReadPieces: TypeAlias = Callable[[Sequence[Piece], bool], tuple[Block, list[Span]]]

_TAKEN = 1 << 15  # rows gathered at a time


def of_windows(task: Task) -> bool:
    """Whether the task is over windows."""
    return isinstance(task.pieces[0].source, Window)


def shuffled(task: Task, read: ReadPieces) -> Block:
    """The rows of a task over windows, in order of delivery.

    Args:
        task: over windows.
        read: maps pieces of splits, and whether they are repeats, to their rows as one block and each piece's range of
            rows in it.
    """
    block, spans = read(list(split_pieces(task.pieces)), task.pad)
    recorder().enter("shuffle")
    return block.take(places_of(task.pieces, iter(spans)))


def places_of(pieces: Sequence[Piece], spans: Iterator[Span]) -> Places:
    """The positions of these pieces' rows in a block, integers [rows], in order of delivery.

    Args:
        pieces: of splits or windows.
        spans: range of rows of each piece of a split, in the order of `split_pieces`; consumed as needed.
    """
    places = [_places(piece, spans) for piece in pieces]
    return places[0] if len(places) == 1 else np.concatenate([np.empty(0, np.uint32), *places])


def _places(piece: Piece, spans: Iterator[Span]) -> Places:
    source, rows = piece.source, piece.rows
    if not isinstance(source, Window):
        first, count = next(spans)
        return np.arange(first, first + count, dtype=np.uint32)
    drawn = _drawn(source, spans)
    if rows is None:
        return drawn
    return drawn[rows.start : rows.stop] if rows.contiguous else drawn[rows.numbers()]


def _drawn(window: Window, spans: Iterator[Span]) -> Places:
    """The positions of all rows of a window."""
    if any(isinstance(piece.source, Window) for piece in window.pieces):
        drawn = places_of(window.pieces, spans)
        return drawn[_order(len(drawn), window.key)]
    drawn_from = list(islice(spans, len(window.pieces)))
    order = _order(sum(rows for _, rows in drawn_from), window.key)
    first = drawn_from[0][0]
    if drawn_from == spans_of([rows for _, rows in drawn_from], first):  # the usual case needs no lookup
        return np.add(order, np.uint32(first), out=order) if first else order
    return np.concatenate([np.arange(first, first + rows, dtype=np.uint32) for first, rows in drawn_from])[order]


def _order(rows: int, key: int | None) -> npt.NDArray[np.uint32]:
    return np.arange(rows, dtype=np.uint32) if key is None else window_order(rows, key)


def spans_of(counts: Sequence[int], first: int = 0) -> list[Span]:
    """Consecutive ranges of these lengths, starting at row `first`."""
    return list(zip(accumulate(counts, initial=first), counts, strict=False))


@dataclass(frozen=True, slots=True)
class _Draw:
    """Rows of one run: `rows`, numbered from the run's first row."""

    run: int
    rows: Rows

    def copy(self, array: Array, out: Array) -> None:
        """Write the rows of the run's array to `out`."""
        rows = self.rows
        if rows.contiguous or rows.block == 1:
            out[:] = array[rows.row(0) : rows.stop : rows.step] if len(rows) else array[:0]
        else:
            np.take(array, rows.numbers(), axis=0, out=out, mode="clip")

    def column(self, column: Column) -> Column:
        """The rows of the run's column."""
        if self.rows.contiguous:
            return column.slice(self.rows.start, self.rows.stop)
        return column.take(self.rows.numbers())


@dataclass(frozen=True, slots=True)
class _Unit:
    """One piece of a task: the rows it draws from the runs, and its rows' positions among them, in delivery order."""

    draws: tuple[_Draw, ...]
    places: Places

    @property
    def drawn(self) -> int:
        """The number of rows that it draws."""
        return sum(len(draw.rows) for draw in self.draws)

    def draw(self, runs: Sequence[Array], scratch: Scratch) -> Array:
        """The rows that it draws from the runs, one run after another; in `scratch`, unless they are in one piece."""
        if len(self.draws) == 1 and self.draws[0].rows.contiguous:
            draw = self.draws[0]
            return runs[draw.run][draw.rows.start : draw.rows.stop]
        drawn = scratch.array(self.drawn, runs[0])
        at = 0
        for draw in self.draws:
            draw.copy(runs[draw.run], drawn[at : at + len(draw.rows)])
            at += len(draw.rows)
        return drawn


class Gather:
    """The order of a task's rows, applied to one column after another while it is in the processor's cache.

    Rows are gathered window by window. Several threads may gather different columns.

    Args:
        pieces: of the task; their row counts must be known.
        owners: index of the run of each piece of a split.
        starts: plan row number of each run's first row.
        pool: memory that columns are gathered into.
    """

    def __init__(self, pieces: Sequence[Piece], owners: Sequence[int], starts: Sequence[int], pool: BufferPool) -> None:
        remaining = iter(owners)
        self._units = [_unit(piece, remaining, starts) for piece in pieces]
        self._pool = pool
        self.rows = sum(len(unit.places) for unit in self._units)

    def column(self, runs: Sequence[Column], scratch: Scratch) -> Column:
        """The task's rows of a column, in order of delivery, gathered from the runs."""
        if isinstance(runs[0], Dense):
            return self.dense([run.array for run in runs if isinstance(run, Dense)], scratch)
        drawn = concat([draw.column(runs[draw.run]) for unit in self._units for draw in unit.draws])
        first = accumulate((unit.drawn for unit in self._units), initial=0)
        places = [unit.places.astype(np.int64) + at for unit, at in zip(self._units, first, strict=False)]
        return drawn.take(places[0] if len(places) == 1 else np.concatenate(places))

    def dense(self, runs: Sequence[Array], scratch: Scratch) -> Dense:
        """The task's rows of a column with one array per run, which may be read-only."""
        like = runs[0]
        shape = (self.rows, *like.shape[1:])
        out: Array = self._pool.lease(like.itemsize * math.prod(shape)).view(like.dtype).reshape(shape)
        at = 0
        for unit in self._units:
            rows = len(unit.places)
            _take(unit.draw(runs, scratch), unit.places, out[at : at + rows])
            at += rows
        return Dense(out)


def _take(array: Array, places: Places, out: Array) -> None:
    """Write the rows with these numbers to `out`."""
    for first in range(0, len(places), _TAKEN):
        # numpy takes by int64 only: as few at a time as stay in the cache, because places in int64 are large.
        part = places[first : first + _TAKEN].astype(np.intp)
        # This mode avoids a buffer (no position is out of range).
        np.take(array, part, axis=0, out=out[first : first + len(part)], mode="clip")


def _unit(piece: Piece, owners: Iterator[int], starts: Sequence[int]) -> _Unit:
    draws = tuple(_draw(part, next(owners), starts) for part in split_pieces([piece]))
    return _Unit(draws, places_of([piece], iter(spans_of([len(draw.rows) for draw in draws]))))


def _draw(piece: Piece, run: int, starts: Sequence[int]) -> _Draw:
    rows, start = piece.rows, starts[run]
    if rows is None:
        raise ValueError("a piece without a row count cannot be gathered before it is read")
    return _Draw(run, Rows(rows.start - start, rows.stop - start, rows.step, rows.block, rows.phase - start))
