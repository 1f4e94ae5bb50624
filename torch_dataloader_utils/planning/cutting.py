"""Cuts files into splits of consecutive segments, in columns: no object is created per segment or split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CountsRequiredError, Example, use
from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.planning.splits import I64, UNKNOWN, Splits


def cut_segments(files: Sequence[DataFile], split_bytes: int | None, split_rows: int | None) -> Splits:
    """Splits of consecutive segments of each file, within the limit: rows if given, else bytes; None means no limit.

    A larger segment is a split of its own, and so is a sequential file. No split is empty, spans two files or crosses
    a pruned segment.

    Raises:
        CountsRequiredError: `split_rows` is given, and a file's row count is unknown.
    """
    segments = _Segments.of(files)
    if split_rows is not None:
        _check_counts(files, segments, split_rows)
    sizes, limit = (segments.sizes, split_bytes) if split_rows is None else (segments.stop - segments.start, split_rows)
    begins, ends = _runs(sizes, _limits(files, segments, sizes, limit), segments.borders)
    totals = np.append(0, np.cumsum(segments.sizes))
    return Splits(
        files,
        segments.file[begins],
        segments.number[begins],
        segments.number[ends - 1] + np.int32(1),
        segments.start[begins],
        segments.stop[ends - 1],
        totals[ends] - totals[begins],
    )


@dataclass(frozen=True, eq=False)
class _Segments:
    """The segments of all files, without those known to hold no plan rows; attributes have the shape [segments].

    Attributes:
        file: the index of its file.
        number: its index in the file's layout.
        start: its first plan row; -1 if known only after reading.
        stop: the end of its plan rows, exclusive.
        sizes: its estimated decoded bytes.
    """

    file: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    start: I64
    stop: I64
    sizes: I64

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> _Segments:
        """The segments of these files."""
        of_files = [file.layout.segments for file in files]
        counts = np.fromiter(map(len, of_files), np.int64, len(files))
        segments = list(chain.from_iterable(of_files))
        file = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        number = np.arange(len(segments), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        start, stop = _plan_rows(files, segments, file, counts)
        sizes = _column(segments, lambda segment: segment.size_bytes)
        whole = cls(file, number.astype(np.int32), start, stop, sizes)
        empty = (start == stop) & (start != UNKNOWN)
        return whole._without(empty) if empty.any() else whole

    @property
    def borders(self) -> I64:
        """The segments that do not continue the previous one's rows, and the number of all segments."""
        gap = (self.start[1:] != self.stop[:-1]) & (self.start[1:] != UNKNOWN)
        inner = np.flatnonzero(gap | (self.file[1:] != self.file[:-1])) + 1
        return np.concatenate([[0][: len(self.file)], inner, [len(self.file)]]).astype(np.int64)

    def _without(self, dropped: npt.NDArray[np.bool_]) -> _Segments:
        kept = ~dropped
        return _Segments(self.file[kept], self.number[kept], self.start[kept], self.stop[kept], self.sizes[kept])


def _plan_rows(
    files: Sequence[DataFile], segments: Sequence[Segment], file: npt.NDArray[np.int32], counts: I64
) -> tuple[I64, I64]:
    """The first plan row of each segment and the end of its plan rows; -1 for both in a file with an unknown count."""
    rows = _column(segments, lambda segment: UNKNOWN if segment.rows is None else segment.rows)
    start = _column(segments, lambda segment: segment.first_row)
    counted = np.fromiter((file.layout.counted for file in files), np.bool_, len(files))
    if counted.any():
        live = _column(segments, lambda segment: segment.live_rows or 0)
        before = np.append(0, np.cumsum(live))
        begins = before[np.cumsum(counts) - counts]  # live rows of all earlier files
        start = np.where(counted[file], before[:-1] - begins[file], start)
        rows = np.where(counted[file], live, rows)
    stop = start + rows
    if (rows < 0).any():
        unknown = (np.bincount(file[rows < 0], minlength=len(files)) > 0)[file]
        start[unknown] = stop[unknown] = UNKNOWN
    return start, stop


def _column(segments: Sequence[Segment], value: Callable[[Segment], int]) -> I64:
    return np.fromiter(map(value, segments), np.int64, len(segments))


def _limits(files: Sequence[DataFile], segments: _Segments, sizes: I64, limit: int | None) -> I64:
    """The largest size of the run that a segment begins, shape [segments]."""
    total = int(sizes.sum())  # as good as no limit, and too small to overflow
    sequential = np.fromiter((file.layout.sequential for file in files), np.bool_, len(files))
    return np.where(sequential[segments.file], total, total if limit is None else min(limit, total))


def _runs(sizes: I64, limits: I64, borders: I64) -> tuple[I64, I64]:
    """Where runs begin and end: as many segments as fit the limit, at least one, none across a border."""
    sums = np.append(0, np.cumsum(sizes))
    fitting = np.searchsorted(sums, sums[:-1] + limits, side="right") - 1
    following = np.maximum(fitting, np.arange(1, len(sizes) + 1))
    following = np.minimum(following, np.repeat(borders[1:], np.diff(borders))).tolist()
    begins, at = [], 0
    while at < len(sizes):
        begins.append(at)
        at = following[at]
    return np.array(begins, dtype=np.int64), np.array([*begins[1:], len(sizes)][: len(begins)], dtype=np.int64)


def _check_counts(files: Sequence[DataFile], segments: _Segments, split_rows: int) -> None:
    unknown = segments.file[segments.start == UNKNOWN]
    if len(unknown):
        raise CountsRequiredError(
            f"split_rows={split_rows}: the row count of {files[int(unknown[0])].info.path!r} is unknown.",
            remedies=[
                use("counts once", count_rows=True),
                use(split_bytes=Example("bytes", "1MiB"), without=["split_rows"]),
            ],
        )
