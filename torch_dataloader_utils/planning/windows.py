"""Row-shuffle windows: a worker's splits drawn together a few at a time, known without reading.

A few splits are open at once. A run of whole segments of each makes a set, which one task decodes; the set is cut into
windows, each with an equal share of every run, so that no segment is decoded for two tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from torch_dataloader_utils.model import FileKey, FileLayout, Piece, Rows, Window, split_of
from torch_dataloader_utils.planning.tasks import FileSegments, segments_of


def make_windows(
    pieces: Sequence[Piece],
    layouts: Mapping[FileKey, FileLayout],
    segments: dict[FileKey, FileSegments],
    *,
    buffer_rows: int,
    open_splits: int,
    exact: bool,
    key_of: Callable[[int], int],
) -> list[Piece]:
    """The rows of a shard in windows: begun ones as they are, then new ones, then padding as it is.

    Args:
        pieces: of the shard, in delivery order.
        layouts: of each file, by its key.
        segments: what earlier calls found of these layouts, by key; filled further.
        buffer_rows: rows of a window.
        open_splits: how many splits are open at once.
        exact: whether plan rows are the rows that will be delivered; else how many a window has is not known.
        key_of: the permutation's key of the window with this number in the shard.
    """
    begun = [piece for piece in pieces if isinstance(piece.source, Window) and not piece.pad]
    plain = (piece for piece in pieces if not (isinstance(piece.source, Window) or piece.pad))
    opened = (_Opened(piece, segments_of(split_of(piece).file.key, layouts, segments)) for piece in plain)
    made: list[Piece] = []
    for number, runs in enumerate(_sets(opened, open_splits, max(1, buffer_rows // open_splits))):
        for share, size in _shares(runs, buffer_rows):
            rows = sum(map(len, share)) if exact else None
            window = Window(share, key_of(len(made)), rows, size, number)
            made.append(Piece(window, None if rows is None else Rows(0, rows), -1))
    return [*begun, *made, *(piece for piece in pieces if piece.pad)]


@dataclass(frozen=True, slots=True)
class _RowRun:
    """Rows of whole segments of one split.

    Attributes:
        piece: the rows.
        size: estimated decoded bytes of the segments.
    """

    piece: Piece
    size: int


class _Opened:
    """A piece of which runs are taken, from its first segment on."""

    def __init__(self, piece: Piece, file: FileSegments) -> None:
        self._piece = piece
        self._file = file
        self._numbers = file.touched(piece)
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether there are segments that no run holds."""
        return self._at < len(self._numbers)

    def run(self, quota: int) -> _RowRun:
        """The next segments: as many as hold `quota` rows of the piece; one where only reading tells its rows."""
        numbers, file, rows = self._numbers, self._file, self._piece.rows
        begin, count, size = self._at, 0, 0
        while self._at < len(numbers) and count < quota:
            number = numbers[self._at]
            self._at += 1
            size += file.sizes[number]
            count += quota if rows is None else len(rows.clip(file.starts[number], file.stops[number]))
        if begin == 0 and self._at == len(numbers):
            return _RowRun(self._piece, size)
        return _RowRun(file.narrowed(self._piece, numbers[begin], numbers[self._at - 1]), size)


def _sets(opened: Iterator[_Opened], most: int, quota: int) -> Iterator[list[_RowRun]]:
    """The runs that are decoded together: one of each open piece, the longest open first."""
    with_rows = (each for each in opened if each.left)
    going: list[_Opened] = []
    while True:
        going += islice(with_rows, most - len(going))
        if not going:
            return
        yield [each.run(quota) for each in going]
        going = [each for each in going if each.left]


def _shares(runs: Sequence[_RowRun], buffer_rows: int) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """The windows of a set, each with its estimated decoded bytes; a single one where only reading tells the rows."""
    pieces = tuple(run.piece for run in runs)
    size = sum(run.size for run in runs)
    total = sum(map(len, pieces))
    count = -(-total // buffer_rows)
    if count < 2 or any(piece.rows is None for piece in pieces):
        yield pieces, size
        return
    for j in range(count):
        cuts = (piece.cut(j * len(piece) // count, (j + 1) * len(piece) // count) for piece in pieces)
        share = tuple(cut for cut in cuts if len(cut))
        if share:
            yield share, size * sum(map(len, share)) // total
