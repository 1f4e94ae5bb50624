"""What a source is in an epoch for which rows are drawn: its files with as many rows as are drawn of each segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFile, FileLayout, Segment
from torch_dataloader_utils.planning.splits import Splits, plan_spans
from torch_dataloader_utils.row_weights.marks import EpochMarks, FileDraws
from torch_dataloader_utils.row_weights.whole_weights import WholeWeights
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.sources.source import Source


@dataclass(frozen=True, eq=False)
class Line:
    """The segments of all files, one after another.

    Attributes:
        files: the files, whose rows are counted.
    """

    files: Sequence[DataFile]

    @cached_property
    def spans(self) -> I64:
        """The plan rows `[start, stop)` of each segment in its file, shape [segments, 2]."""
        spans = [span for file in self.files for span in plan_spans(file.layout) or ()]
        return np.array(spans, np.int64).reshape(-1, 2)

    @cached_property
    def firsts(self) -> I64:
        """The number of rows before each segment, and that of all, shape [segments + 1]."""
        return np.concatenate([[0], np.cumsum(self.spans[:, 1] - self.spans[:, 0])])

    @cached_property
    def segments(self) -> I64:
        """The number of segments before each file, and that of all, shape [files + 1]."""
        return np.concatenate([[0], np.cumsum([len(file.layout.segments) for file in self.files], dtype=np.int64)])

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return int(self.firsts[-1])

    def places(self, splits: Splits) -> tuple[I64, I64]:
        """The rows of all at which splits begin and end, shape [splits] each."""
        begin = self.segments[splits.file]
        first, last = begin + splits.first, begin + splits.last - 1
        starts, stops = splits.start - self.spans[first, 0], splits.stop - self.spans[last, 0]
        return self.firsts[first] + starts, self.firsts[last] + stops


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """The weights of a source's rows; see `RowWeights`.

    Attributes:
        line: the segments of the source.
        weights: of its rows.
        number: how many rows an epoch has.
        seed: of the loader.
    """

    line: Line
    weights: WholeWeights
    number: int
    seed: int

    @cached_property
    def text(self) -> str:
        """See `RowWeights`."""
        return f"{self.weights.digest}, {self.number:,} of {self.line.rows:,} rows"

    @property
    def in_words(self) -> str:
        """See `RowWeights`."""
        drawn = np.count_nonzero(self.weights.numbers)
        some = "" if drawn == self.line.rows else f", {drawn:,} of which have a weight above 0"
        return f"each epoch draws {self.number:,} of {self.line.rows:,} rows{some}"

    @cached_property
    def _starts(self) -> list[int]:
        """Where each segment begins on the line, and the end."""
        firsts = self.line.firsts
        some = np.flatnonzero(np.diff(firsts))
        sums = np.zeros(len(firsts), np.int64)
        sums[some + 1] = np.add.reduceat(self.weights.numbers, firsts[some], dtype=np.int64)
        starts: list[int] = np.cumsum(sums).tolist()
        return starts

    def in_epoch(self, source: Source, epoch: int) -> Source:
        """See `RowWeights`."""
        starts, line = self._starts, self.line
        marks = EpochMarks(self.number, starts[-1], self.seed, epoch)
        drawn = marks.up_to(starts)
        files = tuple(self._files(marks, drawn))
        begin, end = (_in_epoch(places, line.firsts, drawn) for places in line.places(source.splits))
        before = drawn[line.segments[source.splits.file]]
        splits = replace(source.splits, files=files, start=begin - before, stop=end - before)
        return replace(source, files=files, splits=splits)

    def _files(self, marks: EpochMarks, drawn: I64) -> Iterator[DataFile]:
        """The files, with how often their rows are drawn."""
        line, starts, counts = self.line, self._starts, np.diff(drawn).tolist()
        firsts = line.firsts.tolist()
        for file, begin, end in zip(line.files, *(ends.tolist() for ends in _pairs(line.segments)), strict=True):
            own = firsts[begin : end + 1]
            numbers = self.weights.numbers[own[0] : own[-1]]
            rows = tuple(row - own[0] for row in own)
            yield replace(
                file,
                layout=_counted(file.layout, counts[begin:end]),
                draws=FileDraws(numbers, rows, tuple(starts[begin : end + 1]), begin, marks),
            )


def _pairs(ends: I64) -> tuple[I64, I64]:
    return ends[:-1], ends[1:]


def _in_epoch(places: I64, firsts: I64, drawn: I64) -> I64:
    """How many rows are drawn before these rows; within a segment, as many in proportion, whichever they are."""
    segment = np.searchsorted(firsts, places, side="right") - 1
    segment = np.minimum(segment, len(firsts) - 2)
    rows, draws = (np.diff(ends)[segment] for ends in (firsts, drawn))
    whole: I64 = drawn[segment] + (places - firsts[segment]) * draws // np.maximum(rows, 1)
    return whole


def _counted(layout: FileLayout, counts: Sequence[int]) -> FileLayout:
    """The layout with as many rows of each segment."""
    segments = tuple(
        Segment(segment.number, segment.first_row, segment.rows, segment.size_bytes, count)
        for segment, count in zip(layout.segments, counts, strict=True)
    )
    return replace(layout, segments=segments, counted=True)
