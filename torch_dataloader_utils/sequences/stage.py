"""From tasks over anchors to blocks of windows: what is read for them, and what a window has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from torch_dataloader_utils.convert.columns import Array, Column, Dense
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Rows, Split, Task, split_of, split_pieces
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.reading.blocks import Block, PieceReader
from torch_dataloader_utils.reading.windows import places_of, spans_of
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.sequences.columns import FUTURE, VALID_PAST, WINDOWS, WindowedRows, WindowKeys
from torch_dataloader_utils.sequences.runs import FoundWindows, TimeRuns

_APART = 256  # rows between windows that are read rather than left out


@dataclass(frozen=True)
class WindowStage:
    """Makes windows of rows; picklable.

    Attributes:
        runs: which windows there are.
        keys: of batches.
        files: the files with the counts of their live rows, in order; tasks have those of their windows.
        windows_before: file -> the number of the windows in the files before it.
        valid_key: the key of the mask of real windows; None if there is none.
    """

    runs: TimeRuns
    keys: WindowKeys
    files: tuple[DataFile, ...]
    windows_before: Mapping[FileKey, int]
    valid_key: str | None
    keyword: ClassVar[str] = "sequences"

    def report(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key."""
        windows, made = self.runs.windows, {}
        for key, content in rows.items():
            made[key] = dict(content) if key in self.keys.static else _widened(content, windows.length)
            if key in self.keys.future:
                made[key + FUTURE] = _widened(content, windows.horizon)
        for key in self.keys.of_batches(windows.horizon):
            width = windows.length if key == VALID_PAST else windows.horizon
            made.setdefault(key, {"kind": "dense", "dtype": "bool", "shape": f"[B, {width}]"})
        return made

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> WindowTaskReader:
        """A reader of windows, by this reader of rows."""
        return WindowTaskReader(reader.over({file.info.key: file for file in self.files}), self, files)

    @cached_property
    def rows_before(self) -> I64:
        """How many live rows are before each file, and in all: int64 [files + 1]."""
        return np.cumsum([0, *(file.layout.plan_starts()[-1] for file in self.files)])


def _widened(content: Mapping[str, Any], width: int) -> dict[str, Any]:
    shape = str(content["shape"])
    return {**content, "shape": f"[B, {width}{shape.removeprefix('[B')}"}


class RowSpans(NamedTuple):
    """Live rows that are read into a block: ranges `[start, stop)` in ascending order, int64 [spans] each."""

    start: I64
    stop: I64

    @classmethod
    def of(cls, windows: FoundWindows) -> RowSpans:
        """Those that hold these windows, which are in the order of their anchors."""
        return cls._joined(windows.rows - windows.before, windows.rows + windows.after + 1)

    @classmethod
    def union(cls, parts: Sequence[RowSpans]) -> RowSpans:
        """Those that hold all of these."""
        start, stop = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        order = np.argsort(start, kind="stable")
        return cls._joined(start[order], np.maximum.accumulate(stop[order]))

    @classmethod
    def _joined(cls, start: I64, stop: I64) -> RowSpans:
        """Ascending ranges; those that lie little apart are read together."""
        apart = np.flatnonzero(start[1:] > stop[:-1] + _APART)
        return cls(start[np.append(0, apart + 1)[: len(start)]], stop[np.append(apart, len(stop) - 1)[: len(stop)]])

    @property
    def _before(self) -> I64:
        """The rows of the block before each range, and all: int64 [spans + 1]."""
        return np.cumsum([0, *(self.stop - self.start)])

    def places(self, rows: I64) -> I64:
        """The numbers in the block of these live rows, which the ranges hold."""
        shift = self.start - self._before[:-1]
        return rows - (shift[0] if len(shift) == 1 else shift[np.searchsorted(self.start, rows, "right") - 1])

    def runs(self, first: I64) -> I64:
        """Where runs begin in the block, cut ones too, and its end, ascending; `first`: of the runs, live rows."""
        begun = first[slice(*np.searchsorted(first, [self.start[0], self.stop[-1]]).tolist())]
        held = begun[begun < self.stop[np.searchsorted(self.start, begun, "right") - 1]]
        return np.union1d(self._before, self.places(held))


class WindowTaskReader:
    """Executes tasks over anchors. One per thread or process.

    Args:
        reader: reads rows, of files with the counts of their live rows.
        stage: says which windows there are.
        files: by key, those that tasks are of: with how often their windows are drawn, if they are.
    """

    def __init__(self, reader: PieceReader, stage: WindowStage, files: Mapping[FileKey, DataFile]) -> None:
        self._reader, self._stage, self._files = reader, stage, files

    def block(self, task: Task) -> Block:
        """The task's windows."""
        stage, pieces = self._stage, list(split_pieces(task.pieces))
        rows, parts, shares = zip(*map(self._windows, pieces), strict=True)
        spans = RowSpans.union(parts)
        ends = zip(spans.start.tolist(), spans.stop.tolist(), strict=True)
        block, _ = self._reader.read([piece for span in ends for piece in self._pieces(*span)], task.pad, task.epoch)
        recorder().enter("shuffle")
        order = places_of(task.pieces, iter(spans_of([len(piece) for piece in pieces])))
        anchors = np.concatenate([spans.places(each) for each in rows])[order]
        columns = cast("dict[str, Any]", block.columns)
        made: dict[str, Any] = {key: columns[key].take(anchors) for key in stage.keys.static}
        if SHARES in made:
            made[SHARES] = Dense(np.concatenate(shares)[order])
        if stage.valid_key is not None:
            made[stage.valid_key] = columns[stage.valid_key].take(anchors)
        past = {key: cast("Dense", columns[key]).array for key in stage.keys.past}
        reach = stage.runs.windows.length - 1, stage.runs.windows.horizon
        windows = WindowedRows(past, anchors, spans.runs(stage.runs.first), reach, stage.keys)
        return Block.of_columns(len(anchors), {**made, WINDOWS: cast("Any", windows)})

    def share(self, task: Task) -> None:
        """None: one reader reads the rows of a task."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """None: windows share their rows."""
        return None

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()

    def _windows(self, piece: Piece) -> tuple[I64, RowSpans, Array]:
        """The anchors of a piece's windows, what holds these, and how often each is drawn on average, float32 [n]."""
        numbers, shares = self._numbers(piece)
        found = self._stage.runs.of(numbers)
        return found.rows, RowSpans.of(found), shares

    def _numbers(self, piece: Piece) -> tuple[I64, Array]:
        """The numbers of a piece's windows among all; and how often each is drawn on average, float32 [windows]."""
        assert piece.rows is not None
        key = split_of(piece).file.key
        file, before, numbers = self._files[key], self._stage.windows_before[key], piece.rows.numbers()
        if (draws := file.draws) is None:
            return numbers + before, np.ones(len(numbers), np.float32)
        starts = np.array(file.layout.plan_starts())
        segments = range(*(np.searchsorted(starts, [numbers.min(), numbers.max()], "right") - [1, 0]).tolist())
        firsts = np.cumsum([0, *map(draws.count, range(segments.stop))])
        drawn = np.concatenate([draws.rows(place) + firsts[place] for place in segments])
        own = drawn[numbers - starts[segments.start]]
        return own + before, np.concatenate([draws.shares(place) for place in segments])[own - firsts[segments.start]]

    def _pieces(self, start: int, stop: int) -> Sequence[Piece]:
        """The pieces of files that hold the live rows `[start, stop)`."""
        stage, pieces = self._stage, []
        place = int(np.searchsorted(stage.rows_before, start, "right")) - 1
        while start < stop:
            base, end = stage.rows_before[place : place + 2].tolist()
            rows = Rows(start - base, min(stop, end) - base)
            if len(rows):
                pieces.append(Piece(Split(stage.files[place].info, rows), rows))
            start, place = max(start, end) if end < stop else stop, place + 1
        return pieces
