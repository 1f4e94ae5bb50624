"""Pieces of splits from which windows take runs of whole segments."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TypeAlias

from torch_dataloader_utils.model import Piece, Window, split_of
from torch_dataloader_utils.planning.tasks import FileSegments, SegmentTable

Run: TypeAlias = tuple[Piece, int]  # the rows of consecutive segments of a split, and the segments' decoded bytes


class Opened:
    """A piece from which runs are taken, segment by segment."""

    def __init__(self, piece: Piece, file: FileSegments) -> None:
        self._piece = piece
        self._file = file
        self._numbers = file.touched(piece)
        self._at = 0
        self.size = sum(file.sizes[number] for number in self._numbers)  # of the segments not taken yet

    @property
    def left(self) -> bool:
        """Whether there are segments that were not taken yet."""
        return self._at < len(self._numbers)

    def run_of_rows(self, quota: int, least: int = 0, most: float = inf) -> Run:
        """The next segments that hold at least `quota` rows and `least` bytes, or at least `most` bytes.

        A segment of unknown rows counts as enough of them.
        """
        begin, taken, size, rows, file = self._at, 0, 0, self._piece.rows, self._file
        while self.left and (taken < quota or size < least) and size < most:
            number = self._numbers[self._at]
            size += self._next_size
            taken += quota if rows is None else len(rows.clip(file.starts[number], file.stops[number]))
            self._at += 1
        return self._run(begin)

    def run_of_bytes(self, most: int) -> Run:
        """As many of the next segments as fit `most` bytes; at least one."""
        begin, taken = self._at, 0
        while self.left and (self._at == begin or taken + self._next_size <= most):
            taken += self._next_size
            self._at += 1
        return self._run(begin)

    @property
    def _next_size(self) -> int:
        return self._file.sizes[self._numbers[self._at]]

    def _run(self, begin: int) -> Run:
        numbers = self._numbers[begin : self._at]
        size = sum(self._file.sizes[number] for number in numbers)
        self.size -= size
        whole = len(numbers) == len(self._numbers)
        return self._piece if whole else self._file.narrowed(self._piece, numbers[0], numbers[-1]), size


def opened_pieces(shard: Sequence[Piece], segments: SegmentTable) -> list[Opened]:
    """The pieces of splits that are not padding and have something to read."""
    plain = [piece for piece in shard if not (isinstance(piece.source, Window) or piece.pad)]
    opened = (Opened(piece, segments[split_of(piece).file.key]) for piece in plain)
    return [each for each in opened if each.left]


def is_begun(piece: Piece) -> bool:
    """Whether the piece is what is left of a window that an earlier phase of the epoch began."""
    return isinstance(piece.source, Window) and not piece.pad
