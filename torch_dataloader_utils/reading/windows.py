"""Tasks over row-shuffle windows: what is decoded for them, and the order in which their rows are delivered.

The rows of all pieces of splits below a window are *drawn* together, and delivered by a single gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.convert.columns import Memory
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import Piece, Task, Window, split_pieces
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.seeding import window_order

Places: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.uint32]
Span: TypeAlias = tuple[int, int]  # (first row, row count) in a block
ReadPieces: TypeAlias = Callable[[Sequence[Piece], bool, int], tuple[Block, list[Span]]]


def of_windows(task: Task) -> bool:
    """Whether the task is over windows."""
    return any(isinstance(piece.source, Window) for piece in task.pieces[:1])


def shuffled(task: Task, read: ReadPieces, memory: Memory | None = None) -> Block:
    """The rows of a task over windows, in order of delivery.

    Args:
        task: over windows.
        read: maps pieces of splits, whether they are repeats, and the epoch to their rows as one block and each piece's
            range of rows in it.
        memory: makes the arrays of dense columns; None: numpy does.
    """
    block, spans = read(list(split_pieces(task.pieces)), task.pad, task.epoch)
    recorder().enter("shuffle")
    return block.take(places_of(task.pieces, iter(spans)), memory)


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
