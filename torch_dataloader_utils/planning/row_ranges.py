"""The row numbers of pieces: which rows a step of a past epoch was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils.model import Piece, Split, Window
from torch_dataloader_utils.planning.splits import I64
from torch_dataloader_utils.redaction import safe_repr
from torch_dataloader_utils.seeding import window_order


@safe_repr
@dataclass(frozen=True, slots=True)
class RowRange:
    """Consecutive rows of one file.

    Attributes:
        path: the file's path.
        start: the first row, counted among the file's live rows if the plan counts those, else among all rows.
        stop: the end, exclusive.
        pad: whether the rows are repeats.
    """

    path: str
    start: int
    stop: int
    pad: bool = False


def row_ranges(pieces: Iterable[Piece]) -> tuple[RowRange, ...]:
    """The rows of these pieces, in file order; repeats get ranges of their own."""
    by_split: dict[tuple[bool, int], tuple[Split, list[I64]]] = {}
    for piece in pieces:
        for split, rows in _rows(piece):
            by_split.setdefault((piece.pad, split.index), (split, []))[1].append(rows)
    out = []
    for (pad, _), (split, parts) in sorted(by_split.items(), key=lambda item: item[0]):
        rows = np.sort(np.concatenate(parts))
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        out += [RowRange(split.file.path, int(run[0]), int(run[-1]) + 1, pad) for run in runs]
    return tuple(out)


def _rows(piece: Piece) -> list[tuple[Split, I64]]:
    """The row numbers of the piece, by split, without empty splits."""
    splits, which, rows = _numbered(piece)
    return [(split, rows[which == number]) for number, split in enumerate(splits) if (which == number).any()]


def _numbered(piece: Piece) -> tuple[list[Split], I64, I64]:
    """The splits of a piece, and for each of its rows, in order, the index of its split and its row number."""
    source = piece.source
    if piece.rows is None:
        raise ValueError("a piece without a row count has no row numbers")
    places = piece.rows.numbers()
    if not isinstance(source, Window):
        return [source], np.zeros(len(places), dtype=np.int64), places
    splits: list[Split] = []
    which, rows = [], []
    for part in source.pieces:
        part_splits, number, row = _numbered(part)
        which.append(number + len(splits))
        rows.append(row)
        splits += part_splits
    count = sum(map(len, rows))
    order = (np.arange(count) if source.key is None else window_order(count, source.key))[places]
    return splits, np.concatenate(which)[order], np.concatenate(rows)[order]
