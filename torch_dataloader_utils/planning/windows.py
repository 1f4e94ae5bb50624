"""Row-shuffle windows: a worker's splits drawn together a few at a time, known without reading.

A few splits are open at once. A run of whole segments of each makes a set, which one task decodes; the set is cut into
windows, each with an equal share of every run, so that no segment is decoded for two tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

from torch_dataloader_utils.model import Piece, Rows, Window, split_of
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.tasks import FileSegments, SegmentTable
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import derive_key


def windowed(
    shards: Shards, segments: SegmentTable, options: PlanOptions, key: tuple[int | str, ...], *, exact: bool
) -> Shards:
    """The shards of a rank with their rows in windows: begun ones as they are, then new ones, then padding as it is.

    Args:
        shards: the pieces of each worker, in delivery order.
        segments: of each file.
        options: how large windows are (`buffer_rows`, which is given), and of how many splits.
        key: of the rank's windows; with a worker's number and a window's, the key of its permutation.
        exact: whether plan rows are the rows that will be delivered; else how many a window has is not known.
    """
    rows, open_splits = options.buffer_rows or 1, options.open_splits
    return tuple(
        (
            *(piece for piece in shard if _begun(piece)),
            *_windows(shard, segments, rows, open_splits, (*key, worker), exact=exact),
            *(piece for piece in shard if piece.pad),
        )
        for worker, shard in enumerate(shards)
    )


def _begun(piece: Piece) -> bool:
    return isinstance(piece.source, Window) and not piece.pad


def _windows(
    shard: Sequence[Piece], segments: SegmentTable, buffer_rows: int, open_splits: int, key: tuple[int | str, ...],
    *, exact: bool,
) -> Iterator[Piece]:  # fmt: skip
    """New windows of the rows that are in none."""
    plain = (piece for piece in shard if not (isinstance(piece.source, Window) or piece.pad))
    opened = (_Opened(piece, segments[split_of(piece).file.key]) for piece in plain)
    numbers = count()
    for task, runs in enumerate(_sets(opened, open_splits, max(1, buffer_rows // open_splits))):
        for share, size in _shares(runs, buffer_rows):
            rows = sum(map(len, share)) if exact else None
            window = Window(share, derive_key(*key, next(numbers)), rows, size, task)
            yield Piece(window, None if rows is None else Rows(0, rows), -1)


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

    def run(self, quota: int) -> tuple[Piece, int]:
        """The piece of the next segments, and their bytes.

        They hold `quota` rows of the piece or a little more; where only reading tells its rows, it is one segment.
        """
        numbers, file, rows = self._numbers, self._file, self._piece.rows
        begin, taken, size = self._at, 0, 0
        while self._at < len(numbers) and taken < quota:
            number = numbers[self._at]
            self._at += 1
            size += file.sizes[number]
            taken += quota if rows is None else len(rows.clip(file.starts[number], file.stops[number]))
        if begin == 0 and self._at == len(numbers):
            return self._piece, size
        return file.narrowed(self._piece, numbers[begin], numbers[self._at - 1]), size


def _sets(opened: Iterator[_Opened], most: int, quota: int) -> Iterator[list[tuple[Piece, int]]]:
    """The runs that are decoded together: one of each open piece, the longest open first."""
    with_rows = (each for each in opened if each.left)
    going: list[_Opened] = []
    while True:
        going += islice(with_rows, most - len(going))
        if not going:
            return
        yield [each.run(quota) for each in going]
        going = [each for each in going if each.left]


def _shares(runs: Sequence[tuple[Piece, int]], buffer_rows: int) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """The windows of a set, each with its estimated decoded bytes; a single one where only reading tells the rows."""
    pieces = tuple(piece for piece, _ in runs)
    size = sum(size for _, size in runs)
    total = sum(map(len, pieces))
    number = -(-total // buffer_rows)
    if number < 2 or any(piece.rows is None for piece in pieces):
        yield pieces, size
        return
    for j in range(number):
        cuts = (piece.cut(j * len(piece) // number, (j + 1) * len(piece) // number) for piece in pieces)
        share = tuple(cut for cut in cuts if len(cut))
        if share:
            yield share, size * sum(map(len, share)) // total
