"""Decode jobs: a shard's pieces cut at segment borders, so that each job reads whole segments, once.

Small consecutive segments of one file share a task, because few large decodes are faster than many small ones. A
segment larger than the limits is a task of its own. Row-shuffle windows cut from the same segments also share a task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, FileLayout, Piece, Task, Window, split_of, split_pieces
from torch_dataloader_utils.planning.splits import plan_spans

# Of the small segments that share a task: merging segments of strings, lists or vectors costs a copy.
TASK_ROWS = 65_536
TASK_BYTES = 16 * 2**20
MADE_BYTES = 256 * 2**20  # that a transform makes of the rows of a task: images may be a thousand times larger
_READ_PART = 4  # what parts of a task read again takes at most this part of what is made of it


class FileSegments:
    """The segments of one file, for looking up which of them a piece touches.

    Attributes:
        starts: the first plan row of each segment.
        stops: the end of its plan rows, exclusive.
        sizes: the estimated decoded bytes of each segment.
        task_rows: the maximum number of rows per task (a larger segment is a task of its own).
    """

    def __init__(self, layout: FileLayout) -> None:
        spans = plan_spans(layout) or [(0, 0)] * len(layout.segments)
        self.starts = [start for start, _ in spans]
        self.stops = [stop for _, stop in spans]
        self.sizes = [segment.size_bytes for segment in layout.segments]
        self.task_rows = layout.task_rows or TASK_ROWS

    def rows(self, number: int) -> int:
        """The number of plan rows of a segment (0 if known only after reading)."""
        return self.stops[number] - self.starts[number]

    def touched(self, piece: Piece) -> Sequence[int]:
        """The segments that hold rows of the piece, in file order."""
        rows = piece.rows
        if rows is None:
            return range(*(split_of(piece).segments or (0, len(self.sizes))))
        numbers = range(bisect_right(self.stops, rows.start), bisect_left(self.starts, rows.stop))
        if len(numbers) == 1:
            return numbers
        if rows.contiguous:
            return [i for i in numbers if self.starts[i] < self.stops[i]]
        return [i for i in numbers if len(rows.clip(self.starts[i], self.stops[i]))]

    def narrowed(self, piece: Piece, first: int, last: int) -> Piece:
        """The rows of the piece in the segments from `first` to `last`, inclusive."""
        if piece.rows is None:
            size = sum(self.sizes[first : last + 1])
            return replace(piece, source=replace(split_of(piece), segments=(first, last + 1), size_bytes=size))
        return Piece(piece.source, piece.rows.clip(self.starts[first], self.stops[last]), piece.order, piece.pad)


class Layouts(Mapping[FileKey, FileLayout]):
    """The layouts of some files by their keys, which are created on first look-up: they take 100 bytes per file.

    Args:
        files: the files.
    """

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files

    def __getitem__(self, key: FileKey) -> FileLayout:
        return self._by_key[key]

    def __iter__(self) -> Iterator[FileKey]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._files)

    @cached_property
    def _by_key(self) -> dict[FileKey, FileLayout]:
        return {file.info.key: file.layout for file in self._files}


class SegmentTable(dict[FileKey, FileSegments]):
    """The segments of each file, by its key; created on first look-up."""

    def __init__(self, layouts: Mapping[FileKey, FileLayout]) -> None:
        super().__init__()
        self._layouts = layouts

    def __missing__(self, key: FileKey) -> FileSegments:
        self[key] = FileSegments(self._layouts[key])
        return self[key]


@dataclass(slots=True)
class _OpenTask:
    """A task to which segments may still be added."""

    file: FileKey
    pad: bool
    most: int
    pieces: list[Piece] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)
    rows: int = 0
    size: int = 0

    def accepts(self, number: int, rows: int, size: int) -> bool:
        """Whether the task already decodes this segment, or has room for it."""
        if number in self.segments or not self.segments:
            return True
        return self.rows + rows <= self.most and self.size + size <= TASK_BYTES

    def add(self, number: int, rows: int, size: int) -> None:
        if number not in self.segments:
            self.segments.add(number)
            self.rows += rows
            self.size += size

    def closed(self, epoch: int) -> Task:
        return Task(tuple(self.pieces), _rows_of(self.pieces), self.size, self.pad, epoch)


def make_tasks(pieces: Iterable[Piece], segments: SegmentTable, epoch: int = 0) -> tuple[Task, ...]:
    """The tasks of a shard, in delivery order; together they deliver exactly these pieces, in the same order."""
    tasks: list[Task] = []
    for of_windows, run in groupby(pieces, key=_windows_of):
        if of_windows is None:
            tasks += _split_tasks(run, segments, epoch)
        else:
            tasks.append(_window_task(tuple(run), segments, epoch))
    return tuple(tasks)


def parted(task: Task, row_bytes: int) -> Iterator[Task]:
    """The task in parts of which a transform makes at most `MADE_BYTES`, in order of delivery; most tasks whole.

    Each part decodes the segments that it needs by itself: if these are not small beside what is made of them, the
    parts are larger.

    Args:
        task: with known rows.
        row_bytes: bytes that the transform makes of a row; 0 if unknown.
    """
    rows = task.rows or 0
    made = rows * row_bytes
    count = max(1, min(-(-made // MADE_BYTES), made // max(1, _READ_PART * task.size_bytes), rows))
    if count == 1:
        yield task
        return
    ends = [0, *accumulate(map(len, task.pieces))]
    for part in range(count):
        first, last = part * rows // count, (part + 1) * rows // count
        spans = [
            (piece, max(first - start, 0), min(last - start, len(piece)))
            for piece, start in zip(task.pieces, ends, strict=False)
        ]
        pieces = tuple(piece.cut(start, stop) for piece, start, stop in spans if start < stop)
        yield replace(task, pieces=pieces, rows=last - first, size_bytes=max(task.size_bytes, made // count))


def _windows_of(piece: Piece) -> tuple[int, int, bool] | None:
    """A key that is equal for windows cut from the same runs (a begun window has its own); None for a split's piece."""
    source = piece.source
    return (source.index, source.task, piece.pad) if isinstance(source, Window) else None


def _window_task(pieces: tuple[Piece, ...], segments: SegmentTable, epoch: int) -> Task:
    """The task of windows cut from the same runs."""
    read: dict[FileKey, set[int]] = {}
    for piece in split_pieces(pieces):
        key = split_of(piece).file.key
        read.setdefault(key, set()).update(segments[key].touched(piece))
    size = sum(segments[key].sizes[number] for key, numbers in read.items() for number in numbers)
    return Task(pieces, _rows_of(pieces), size, pieces[0].pad, epoch)


def _rows_of(pieces: Sequence[Piece]) -> int | None:
    """The number of rows of all pieces, or None if known only after reading."""
    return sum(map(len, pieces)) if all(piece.rows is not None for piece in pieces) else None


def _split_tasks(pieces: Iterable[Piece], segments: SegmentTable, epoch: int) -> Iterator[Task]:
    """The tasks of consecutive pieces that are not in windows."""
    tasks: list[_OpenTask] = []
    for piece in pieces:
        key = split_of(piece).file.key
        file = segments[key]
        if not tasks or tasks[-1].file != key or tasks[-1].pad != piece.pad:
            tasks.append(_OpenTask(key, piece.pad, file.task_rows))
        _add_piece(tasks, piece, file)
    return (task.closed(epoch) for task in tasks)


def _add_piece(tasks: list[_OpenTask], piece: Piece, file: FileSegments) -> None:
    """Add the piece to the last task, and to new tasks for the segments that do not fit."""
    runs: list[list[int]] = [[]]
    for number in file.touched(piece):
        rows, size = file.rows(number), file.sizes[number]
        if not tasks[-1].accepts(number, rows, size):
            _add_run(tasks[-1], piece, file, runs[-1])
            tasks.append(_OpenTask(split_of(piece).file.key, piece.pad, file.task_rows))
            runs.append([])
        tasks[-1].add(number, rows, size)
        runs[-1].append(number)
    if len(runs) == 1:
        tasks[-1].pieces.append(piece)
    else:
        _add_run(tasks[-1], piece, file, runs[-1])


def _add_run(task: _OpenTask, piece: Piece, file: FileSegments, run: Sequence[int]) -> None:
    if run:
        task.pieces.append(file.narrowed(piece, run[0], run[-1]))
