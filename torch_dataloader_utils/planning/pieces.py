"""Pieces stored in columns: a `Piece` is created only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from torch_dataloader_utils.model import Piece, Rows, split_numbers
from torch_dataloader_utils.planning.order import SplitTable, from_first
from torch_dataloader_utils.planning.runs import Runs
from torch_dataloader_utils.planning.splits import I64, Splits, distinct


@dataclass(frozen=True, eq=False, repr=False)
class Pieces(Sequence[Piece]):
    """Pieces in delivery order, up to 56 bytes each, and padding after them.

    A rank that takes single rows in turn reads a piece of nearly every split, and each object takes 600 bytes.

    Attributes:
        runs: the pieces without padding; none of them is empty.
        pads: the padding.
        repeats: whether all rows are repeats.
    """

    runs: Runs
    pads: tuple[Piece, ...] = ()
    repeats: bool = False

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Pieces:
        """These pieces, padding last, in columns."""
        if isinstance(pieces, Pieces):
            return pieces
        real = [piece for piece in pieces if not piece.pad]
        table = SplitTable(Splits.of((), ()), [piece.source for piece in real])
        runs = [
            (number, piece.order, Rows(0, 0) if piece.rows is None else from_first(piece.rows, piece.source))
            for number, piece in enumerate(real)
        ]
        return cls(Runs.of_rows(table, runs).filled(), tuple(pieces[len(real) :]))

    def __len__(self) -> int:
        return len(self.runs.source) + len(self.pads)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self.runs.pieces():
            yield replace(piece, pad=True) if self.repeats else piece
        yield from self.pads

    @overload
    def __getitem__(self, index: int) -> Piece: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Piece, ...]: ...

    def __getitem__(self, index: int | slice) -> Piece | tuple[Piece, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<{len(self):,} pieces>"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)  # without the columns, which refer to all splits

    @property
    def rows(self) -> int:
        """The number of rows, padding included; those known only after reading count as 0."""
        return self.runs.total + sum(map(len, self.pads))

    @property
    def real(self) -> Pieces:
        """The pieces that are not repeats."""
        return Pieces(self.runs.select(slice(0, 0)) if self.repeats else self.runs)

    @property
    def without_windows(self) -> bool:
        """Whether all pieces without padding are known to be of splits of the plan."""
        return not (self.runs.source >= len(self.runs.table.splits)).any()

    def first(self, rows: int) -> Pieces:
        """The first rows, without padding."""
        return Pieces(self.runs.take(0, min(rows, self.runs.total)))


def real_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces that are not padding."""
    return pieces.real if isinstance(pieces, Pieces) else [piece for piece in pieces if not piece.pad]


def splits_read(shards: Sequence[Sequence[Piece]]) -> I64:
    """The numbers of the splits that hold rows of these shards, or belong to their windows, shape [any], each once."""
    return distinct(np.concatenate([np.zeros(0, np.int64), *map(_splits_of, shards)]))


def _splits_of(pieces: Sequence[Piece]) -> I64:
    if isinstance(pieces, Pieces) and pieces.without_windows:
        return np.append(pieces.runs.source, _splits_of(pieces.pads))
    numbers = split_numbers(pieces)
    return np.fromiter(numbers, np.int64, len(numbers))
