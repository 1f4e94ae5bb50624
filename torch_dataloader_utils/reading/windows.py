"""Tasks over row-shuffle windows: what is decoded for them, and the order in which their rows are delivered.

The rows of all pieces of splits below a window are *drawn* together, and delivered by a single gather.
"""

from __future__ import annotations

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
from torch_dataloader_utils.reading.buffers import BufferPool
from torch_dataloader_utils.seeding import permutation

Places: TypeAlias = npt.NDArray[np.int64]
Span: TypeAlias = tuple[int, int]  # (first row, row count) in a block
ReadPieces: TypeAlias = Callable[[Sequence[Piece], bool], tuple[Block, list[Span]]]


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


def places_of(pieces: Sequence[Piece], spans: Iterator[Span], pool: BufferPool | None = None) -> Places:
    """The positions of these pieces' rows in a block, int64 [rows], in order of delivery.

    Args:
        pieces: of splits or windows.
        spans: range of rows of each piece of a split, in the order of `split_pieces`; consumed as needed.
        pool: memory for permutations.
    """
    places = [_places(piece, spans, pool) for piece in pieces]
    return places[0] if len(places) == 1 else np.concatenate([np.empty(0, np.int64), *places])


def _places(piece: Piece, spans: Iterator[Span], pool: BufferPool | None) -> Places:
    source, rows = piece.source, piece.rows
    if not isinstance(source, Window):
        first, count = next(spans)
        return np.arange(first, first + count)
    drawn = _drawn(source, spans, pool)
    if rows is None:
        return drawn
    return drawn[rows.start : rows.stop] if rows.contiguous else drawn[rows.numbers()]


def _drawn(window: Window, spans: Iterator[Span], pool: BufferPool | None) -> Places:
    """The positions of all rows of a window."""
    if any(isinstance(piece.source, Window) for piece in window.pieces):
        drawn = places_of(window.pieces, spans)
        return drawn[_order(len(drawn), window.key, None)]
    drawn_from = list(islice(spans, len(window.pieces)))
    count = sum(rows for _, rows in drawn_from)
    order = _order(count, window.key, pool)
    if drawn_from == spans_of([rows for _, rows in drawn_from], drawn_from[0][0]):  # the usual case needs no lookup
        return np.add(order, drawn_from[0][0], out=order)
    return np.concatenate([np.arange(first, first + rows) for first, rows in drawn_from])[order]


def _order(rows: int, key: int | None, pool: BufferPool | None) -> Places:
    if key is None:
        return np.arange(rows)
    return permutation(rows, key, None if pool is None else pool.lease(8 * rows).view(np.uint64))


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


class Gather:
    """The order of a task's rows, applied to one column after another while it is in the processor's cache.

    Rows are gathered window by window: the rows that a window draws are few enough to stay there.

    Args:
        pieces: of the task; their row counts must be known.
        owners: index of the run of each piece of a split.
        starts: plan row number of each run's first row.
        pool: memory that columns are gathered into.
    """

    def __init__(self, pieces: Sequence[Piece], owners: Sequence[int], starts: Sequence[int], pool: BufferPool) -> None:
        remaining = iter(owners)
        self._units = [_unit(piece, remaining, starts, pool) for piece in pieces]
        self._pool = pool
        self.rows = sum(len(unit.places) for unit in self._units)

    def column(self, runs: Sequence[Column]) -> Column:
        """The task's rows of a column, in order of delivery, gathered from the runs."""
        if isinstance(runs[0], Dense):
            return self._dense([run.array for run in runs if isinstance(run, Dense)])
        drawn = concat([draw.column(runs[draw.run]) for unit in self._units for draw in unit.draws])
        first = accumulate((unit.drawn for unit in self._units), initial=0)
        return drawn.take(np.concatenate([unit.places + at for unit, at in zip(self._units, first, strict=False)]))

    def _dense(self, runs: Sequence[Array]) -> Dense:
        out = self._lease(self.rows, runs[0])
        at = 0
        for unit in self._units:
            rows = len(unit.places)
            # This mode avoids a buffer (no position is out of range); with it numpy is as fast as torch.
            np.take(self._drawn(unit, runs), unit.places, axis=0, out=out[at : at + rows], mode="clip")
            at += rows
        return Dense(out)

    def _drawn(self, unit: _Unit, runs: Sequence[Array]) -> Array:
        """The rows that a unit draws from the runs, one run after another."""
        if len(unit.draws) == 1 and unit.draws[0].rows.contiguous:
            draw = unit.draws[0]
            return runs[draw.run][draw.rows.start : draw.rows.stop]
        scratch = self._lease(unit.drawn, runs[0])
        at = 0
        for draw in unit.draws:
            draw.copy(runs[draw.run], scratch[at : at + len(draw.rows)])
            at += len(draw.rows)
        return scratch

    def _lease(self, rows: int, like: Array) -> Array:
        shape = (rows, *like.shape[1:])
        nbytes = like.itemsize * int(np.prod(shape, dtype=np.int64))
        array: Array = self._pool.lease(nbytes).view(like.dtype).reshape(shape)
        return array


def _unit(piece: Piece, owners: Iterator[int], starts: Sequence[int], pool: BufferPool) -> _Unit:
    draws = tuple(_draw(part, next(owners), starts) for part in split_pieces([piece]))
    return _Unit(draws, places_of([piece], iter(spans_of([len(draw.rows) for draw in draws])), pool))


def _draw(piece: Piece, run: int, starts: Sequence[int]) -> _Draw:
    rows, start = piece.rows, starts[run]
    if rows is None:
        raise ValueError("a piece without a row count cannot be gathered before it is read")
    return _Draw(run, Rows(rows.start - start, rows.stop - start, rows.step, rows.block, rows.phase - start))
