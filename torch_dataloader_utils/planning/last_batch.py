"""Drops a rank's short last batch, or fills it with rows that are marked as padding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch_dataloader_utils.model import Piece
from torch_dataloader_utils.planning.even import take, total_rows
from torch_dataloader_utils.planning.pieces import Pieces


def padding(pieces: Iterable[Piece], count: int) -> list[Piece]:
    """`count` rows of padding: the first rows of `pieces`, which are not empty, repeated as often as needed."""
    first = [replace(piece, pad=True) for piece in take(pieces, 0, count)]
    out = list(first)
    missing = count - total_rows(first)
    while missing > 0:
        again = take(first, 0, missing)
        out += again
        missing -= total_rows(again)
    return out


def end_with(pieces: Pieces, batch_rows: int, last_batch: str, following: Iterable[Piece]) -> Pieces:
    """The pieces with their short last batch dropped, padded with their own rows, or completed with `following`."""
    short = pieces.rows % batch_rows
    if not short or last_batch == "partial":
        return pieces
    if last_batch == "drop":
        return pieces.first(pieces.rows - short)
    missing = batch_rows - short
    return replace(pieces, pads=tuple(padding(pieces.first(missing) if last_batch == "pad" else following, missing)))
