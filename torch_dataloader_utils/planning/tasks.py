"""Decode jobs: a shard's pieces cut at segment borders, so that each job reads whole segments, once.

Small consecutive segments of one file share a task (few large decodes are faster than many small ones); a segment that
is larger than the limits is a task of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_dataloader_utils.model import FileKey, FileLayout, Piece, Task
from torch_dataloader_utils.planning.spans import plan_spans

TASK_ROWS = 65_536
TASK_BYTES = 16 * 2**20


class FileSegments:
    """The segments of one file, as tasks look them up.

    Attributes:
        starts: first plan row of each segment.
        stops: where its plan rows end, exclusive.
        sizes: estimated decoded bytes of each segment.
        task_rows: rows of a task at most (a segment that has more is a task).
    """

    def __init__(self, layout: FileLayout) -> None:
        spans = plan_spans(layout) or [(0, 0)] * len(layout.segments)
        self.starts = [start for start, _ in spans]
        self.stops = [stop for _, stop in spans]
        self.sizes = [segment.size_bytes for segment in layout.segments]
        self.task_rows = layout.task_rows or TASK_ROWS

    def rows(self, number: int) -> int:
        """Plan rows of a segment (0 where only reading tells)."""
        return self.stops[number] - self.starts[number]

    def touched(self, piece: Piece) -> Sequence[int]:
        """The segments that hold rows of the piece, in file order."""
        rows = piece.rows
        if rows is None:
            return range(*(piece.source.segments or (0, len(self.sizes))))
        found = range(bisect_right(self.stops, rows.start), bisect_left(self.starts, rows.stop))
        if len(found) == 1:
            return found
        if rows.contiguous:
            return [i for i in found if self.starts[i] < self.stops[i]]
        return [i for i in found if len(rows.clip(self.starts[i], self.stops[i]))]

    def narrowed(self, piece: Piece, first: int, last: int) -> Piece:
        """The rows of the piece that lie in the segments from `first` to `last`, both included."""
        if piece.rows is None:
            source = replace(piece.source, segments=(first, last + 1), size_bytes=sum(self.sizes[first : last + 1]))
            return replace(piece, source=source)
        return replace(piece, rows=piece.rows.clip(self.starts[first], self.stops[last]))


@dataclass(slots=True)
class _OpenTask:
    """A task that may still grow."""

    file: FileKey
    pad: bool
    most: int
    pieces: list[Piece] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)
    rows: int = 0
    size: int = 0

    def accepts(self, number: int, rows: int, size: int) -> bool:
        """Whether this segment is decoded already, or fits besides the others."""
        if number in self.segments or not self.segments:
            return True
        return self.rows + rows <= self.most and self.size + size <= TASK_BYTES

    def add(self, number: int, rows: int, size: int) -> None:
        if number not in self.segments:
            self.segments.add(number)
            self.rows += rows
            self.size += size

    def closed(self) -> Task:
        known = all(piece.rows is not None for piece in self.pieces)
        return Task(tuple(self.pieces), sum(map(len, self.pieces)) if known else None, self.size, self.pad)


def make_tasks(
    pieces: Iterable[Piece],
    layouts: Mapping[FileKey, FileLayout],
    segments: dict[FileKey, FileSegments] | None = None,
) -> tuple[Task, ...]:
    """The tasks of a shard, in delivery order; together they deliver exactly its pieces.

    Args:
        pieces: of the shard, in delivery order.
        layouts: of each file, by its key.
        segments: what earlier calls found of these layouts, by key; filled further.
    """
    tasks: list[_OpenTask] = []
    files = {} if segments is None else segments
    for piece in pieces:
        key = piece.source.file.key
        if key not in files:
            files[key] = FileSegments(layouts[key])
        if not tasks or tasks[-1].file != key or tasks[-1].pad != piece.pad:
            tasks.append(_OpenTask(key, piece.pad, files[key].task_rows))
        _add_piece(tasks, piece, files[key])
    return tuple(task.closed() for task in tasks)


def _add_piece(tasks: list[_OpenTask], piece: Piece, file: FileSegments) -> None:
    """Add the piece to the last task, and to new ones where its segments do not fit."""
    runs: list[list[int]] = [[]]
    for number in file.touched(piece):
        rows, size = file.rows(number), file.sizes[number]
        if not tasks[-1].accepts(number, rows, size):
            _add_run(tasks[-1], piece, file, runs[-1])
            tasks.append(_OpenTask(piece.source.file.key, piece.pad, file.task_rows))
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
