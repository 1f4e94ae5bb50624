"""Row-shuffle windows: each mixes the rows of a few of a worker's splits, and is planned without reading.

A few splits are open at once. One run of whole segments from each of them forms a set, which one task decodes. If
windows are sized by bytes, a set holds as many whole splits as fit and is one window. If they are sized by rows, or
draw from a given number of splits, a set is cut into windows with an equal share of every run, so that no segment is
decoded for two tasks.

Windows are made last, per worker, from row counts alone. No state is carried from one to the next, so a pass can begin
at any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from math import inf
from typing import TypeAlias

from torch_dataloader_utils.model import Piece, Rows, Window, split_numbers, split_of, turn_of
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.order import Pieces
from torch_dataloader_utils.planning.tasks import FileSegments, SegmentTable
from torch_dataloader_utils.planning.workers import Shards
from torch_dataloader_utils.seeding import window_key

# Pieces of splits from which windows take runs of whole segments.

Run: TypeAlias = tuple[Piece, int]  # the rows of consecutive segments of a split, and the segments' decoded bytes


class OpenPiece:
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


def opened_pieces(shard: Sequence[Piece], segments: SegmentTable) -> list[OpenPiece]:
    """The pieces of splits that are not padding and have something to read."""
    plain = [piece for piece in shard if not (isinstance(piece.source, Window) or piece.pad)]
    opened = (OpenPiece(piece, segments[split_of(piece).file.key]) for piece in plain)
    return [each for each in opened if each.left]


def is_begun(piece: Piece) -> bool:
    """Whether the piece is what is left of a window that an earlier phase of the epoch began."""
    return isinstance(piece.source, Window) and not piece.pad


OPEN_SPLITS = 4  # the default for windows sized by rows


@dataclass(frozen=True)
class ShuffleWindow:
    """A typical shuffle window that batches draw from.

    Attributes:
        rows: the number of rows delivered from it; None if known only after reading.
        splits: the number of splits that it draws from (k).
        of_splits: the number of splits that all windows together draw from (S).
        windows: the number of windows.
    """

    rows: int | None
    splits: int
    of_splits: int
    windows: int = 1

    def variance_ratio(self, batch_rows: int) -> float:
        """The approximate variance of a batch's mean, relative to a random sample, if each split holds one value.

        For B rows from k of S splits: 1 + B / k * (1 - k / S).
        """
        return 1 + batch_rows / self.splits * (1 - self.splits / self.of_splits)


def windowed(
    shards: Shards, segments: SegmentTable, options: PlanOptions, key: tuple[int | str, ...], *, exact: bool
) -> Shards:
    """The shards of a rank, with rows grouped into windows: first begun windows, then new ones, then padding.

    Begun windows and padding are not changed. Where partitions are read one after another, this is so in each of them.

    Args:
        shards: the pieces of each worker, in delivery order.
        segments: the segments of each file.
        options: the size of windows (in rows or bytes), and the number of splits that they draw from.
        key: the key of the rank's windows; a worker's number and a window's number complete the key of a permutation.
        exact: whether every planned row will be delivered; if not, the row counts of windows are unknown.
    """
    return tuple(
        (
            *_begun_and_new(shard, segments, options, (*key, worker), exact=exact),
            *(piece for piece in shard if piece.pad),
        )
        for worker, shard in enumerate(map(tuple, shards))
    )


def window_of_batches(shards: Shards, *, joint: bool) -> ShuffleWindow | None:
    """A typical window that the batches of these shards draw from; None if there are no windows.

    Args:
        shards: the pieces of each worker.
        joint: whether a batch draws from a window of every shard; otherwise from a window of one shard.
    """
    windows = [window for window in map(_typical_window, shards) if window is not None]
    if not windows:
        return None
    if joint:
        return _joint_window(windows)
    # The window with the fewest splits: a few rows of another split, which fill up a worker's last batch, mix nothing.
    fewest = min(windows, key=lambda window: window.splits)
    of_splits = len(_splits_in([piece for shard in shards for piece in shard]))
    return replace(fewest, of_splits=of_splits, windows=sum(window.windows for window in windows))


def _typical_window(shard: Sequence[Piece]) -> ShuffleWindow | None:
    """The shard's window with the median number of splits; None if it has no windows.

    The last window, which holds the remainder, is ignored unless it is the only one.
    """
    if isinstance(shard, Pieces) and shard.without_windows and not shard.pads:
        return None
    windows = [(len(_splits_in([piece])), piece) for piece in shard if _permuted(piece)]
    if not windows:
        return None
    splits, piece = sorted(windows[:-1] or windows, key=lambda window: window[0])[(len(windows) - 1) // 2]
    return ShuffleWindow(None if piece.rows is None else len(piece), splits, len(_splits_in(shard)), len(windows))


def _joint_window(windows: Sequence[ShuffleWindow]) -> ShuffleWindow:
    """These windows as a single one, for batches that draw from all of them."""
    counts = [window.rows for window in windows if window.rows is not None]
    rows = sum(counts) if len(counts) == len(windows) else None
    splits, of_splits = (sum(getattr(window, name) for window in windows) for name in ("splits", "of_splits"))
    return ShuffleWindow(rows, splits, of_splits, max(window.windows for window in windows))


def _splits_in(pieces: Sequence[Piece]) -> set[int]:
    return split_numbers(piece for piece in pieces if isinstance(piece.source, Window) or not piece.pad)


def _permuted(piece: Piece) -> bool:
    """Whether it is a shuffle window, not one whose documents are packed together in their order."""
    return isinstance(piece.source, Window) and (piece.source.key is not None or piece.rows is not None)


def _begun_and_new(
    shard: Sequence[Piece], segments: SegmentTable, options: PlanOptions, key: tuple[int | str, ...], *, exact: bool
) -> Iterator[Piece]:
    """The begun windows, and new ones of the rows that are not in a window yet."""
    numbers, tasks = count(), count()
    real = [piece for piece in shard if not piece.pad]
    partitions = groupby(real, lambda piece: turn_of(piece.source)) if options.by_partition else [(0, real)]
    for _, partition in partitions:
        pieces = list(partition)
        yield from filter(is_begun, pieces)
        yield from _windows(pieces, segments, options, key, numbers, tasks, exact=exact)


def _windows(
    shard: Sequence[Piece],
    segments: SegmentTable,
    options: PlanOptions,
    key: tuple[int | str, ...],
    numbers: Iterator[int],
    tasks: Iterator[int],
    *,
    exact: bool,
) -> Iterator[Piece]:
    """New windows of the rows that are not in a window yet."""
    for task, (runs, parts) in zip(tasks, _sets(opened_pieces(shard, segments), options), strict=False):
        for share, size in _shares(runs, parts):
            rows = sum(map(len, share)) if exact else None
            window = Window(share, window_key(options.seed, *key, next(numbers)), rows, size, task)
            yield Piece(window, None if rows is None else Rows(0, rows), -1)


def _sets(opened: Sequence[OpenPiece], options: PlanOptions) -> Iterator[tuple[list[Run], int]]:
    """Each set of runs that are decoded together, and the number of windows that it is cut into."""
    most, given = options.buffer_rows, options.open_splits
    size = (options.window_bytes or 0) // options.num_shards
    if most is None and given is None:
        return ((runs, 1) for runs in _fitting(opened, size))
    number = len(opened) if isinstance(given, str) else given or OPEN_SPLITS
    if most is None:
        sizes = [each.size for each in opened]
        # With all splits open, take from each in proportion to its size, so that none ends before the others.
        shares = [size * part // max(sum(sizes), 1) if isinstance(given, str) else size // number for part in sizes]
        quotas = dict(zip(opened, shares, strict=True))
        sets = _from_open(opened, number, lambda each: each.run_of_bytes(quotas[each]))
        return ((runs, -(-sum(taken for _, taken in runs) // max(size, 1))) for runs in sets)
    quota = max(1, most // max(number, 1))
    sets = _from_open(opened, number, lambda each: each.run_of_rows(quota))
    return ((runs, -(-sum(len(piece) for piece, _ in runs) // most)) for runs in sets)


def _from_open(opened: Sequence[OpenPiece], most: int, run: Callable[[OpenPiece], Run]) -> Iterator[list[Run]]:
    """Sets with one run from each open piece, at most `most` of them open, the longest open first."""
    waiting, going = deque(opened), deque[OpenPiece]()
    while waiting or going:
        while waiting and len(going) < most:
            going.append(waiting.popleft())
        yield [run(each) for each in going]
        going = deque(each for each in going if each.left)


def _fitting(opened: Sequence[OpenPiece], size: int) -> Iterator[list[Run]]:
    """Sets of as many whole pieces as fit `size` bytes; if two do not fit, one run from each of two."""
    waiting, going = deque(opened), list[OpenPiece]()
    while waiting or going:
        taken = sum(each.size for each in going)
        while waiting and (len(going) < 2 or taken + waiting[0].size <= size):
            going.append(waiting.popleft())
            taken += going[-1].size
        most = taken if taken <= size else size // len(going)
        yield [each.run_of_bytes(most) for each in going]
        going = [each for each in going if each.left]


def _shares(runs: Sequence[Run], number: int) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """`number` windows of a set, each with its estimated decoded bytes; a single one if its rows are unknown."""
    pieces = tuple(piece for piece, _ in runs)
    size = sum(size for _, size in runs)
    total = sum(map(len, pieces))
    if number < 2 or any(piece.rows is None for piece in pieces):
        yield pieces, size
        return
    for j in range(number):
        cuts = (piece.cut(j * len(piece) // number, (j + 1) * len(piece) // number) for piece in pieces)
        share = tuple(cut for cut in cuts if len(cut))
        if share:
            yield share, size * sum(map(len, share)) // total
