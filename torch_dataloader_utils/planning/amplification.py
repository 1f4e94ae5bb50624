"""Read amplification: how much is decoded because several ranks share a segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.model import DataFile, FileKey
from torch_dataloader_utils.planning.order import SplitTable
from torch_dataloader_utils.planning.runs import I64, Runs
from torch_dataloader_utils.planning.spans import plan_spans


@dataclass(frozen=True, eq=False)
class SegmentMap:
    """Which segment holds a row.

    All splits' rows are counted in file order; a *slot* is what one segment holds of one split.

    Attributes:
        base: number of each split's first row, shape [splits].
        starts: number of each slot's first row, ascending, shape [slots].
        segment: the segment of each slot, shape [slots].
        rows: physical rows of each segment, shape [segments].
    """

    base: I64
    starts: I64
    segment: I64
    rows: I64

    def touched(self, runs: Runs) -> npt.NDArray[np.bool_]:
        """Which segments hold rows of `runs`, shape [segments]."""
        runs = runs.select(runs.first < runs.last)
        base = self.base[runs.source]
        begin, end = base + runs.first, base + runs.last
        low = np.searchsorted(self.starts, begin, side="right") - 1
        counts = np.searchsorted(self.starts, end, side="left") - low
        run = np.repeat(np.arange(len(begin)), counts)
        slot = low[run] + np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = np.append(self.starts, end.max(initial=0))
        first = np.maximum(begin[run], edges[slot]) - base[run]
        last = np.minimum(end[run], edges[slot + 1]) - base[run]
        meant = replace(runs.select(run), first=first, last=last).rows > 0
        touched = np.zeros(len(self.rows), dtype=np.bool_)
        touched[self.segment[slot[meant]]] = True
        return touched


def segment_map(files: Sequence[DataFile], table: SplitTable) -> SegmentMap:
    """The map of all segments of `files`, for splits whose rows are all known."""
    spans = {file.info.key: plan_spans(file.layout) or [] for file in files}
    first: dict[FileKey, int] = {}
    rows: list[int] = []
    for file in files:
        first[file.info.key] = len(rows)
        rows += [segment.rows or 0 for segment in file.layout.segments]
    base = np.cumsum(table.lengths) - table.lengths
    starts: list[int] = []
    segment: list[int] = []
    for at, split in zip(base.tolist(), table.splits, strict=True):
        if split.row_range is None or split.segments is None:
            raise ValueError("a map of segments needs splits with rows and segments")
        begin = split.row_range.start
        for number in range(*split.segments):
            start, stop = spans[split.file.key][number]
            if start < stop:
                starts.append(at + max(start - begin, 0))
                segment.append(first[split.file.key] + number)
    return SegmentMap(base, *(np.array(column, dtype=np.int64) for column in (starts, segment, rows)))


def read_amplification(segments: SegmentMap, ranks: Iterable[Sequence[Runs]]) -> float:
    """Rows of the segments that each rank reads, added up, per row of a segment that any rank reads."""
    total = 0
    by_any = np.zeros(len(segments.rows), dtype=np.bool_)
    for parts in ranks:
        by_rank = np.zeros(len(segments.rows), dtype=np.bool_)
        for runs in parts:
            by_rank |= segments.touched(runs)
        total += int(segments.rows[by_rank].sum())
        by_any |= by_rank
    distinct = int(segments.rows[by_any].sum())
    return total / distinct if distinct else 1.0
