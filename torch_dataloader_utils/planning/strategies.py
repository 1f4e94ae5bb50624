"""How files are cut into splits.

A strategy is any object with `split(files) -> list[Split]`. `checked_splits` checks the splits of a custom strategy
before they are used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.model import DataFile, DataFileInfo, Rows, Segment, Shard, Split
from torch_dataloader_utils.options.late_clashes import ROWS_UNKNOWN
from torch_dataloader_utils.planning.splits import I64, UNKNOWN, Splits, plan_spans
from torch_dataloader_utils.units import parse_bytes

# Cuts files into splits of consecutive segments, in columns: no object is created per segment or split.


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
        raise ROWS_UNKNOWN.between(f"split_rows={split_rows}", repr(files[int(unknown[0])].info.path))


# Checks the splits of custom strategies, and completes them for planning.

Spans = list[tuple[int, int]] | None


class SplitChecker:
    """Locates splits in the segments of their files."""

    def __init__(self, files: Sequence[DataFile], name: str) -> None:
        self._files = {file.info.path: file for file in files}
        self._spans: dict[str, Spans] = {}
        self._name = name

    def located(self, split: Split) -> list[Split]:
        """The split with rows, segments and bytes filled in: one split for each run of its rows that an epoch reads.

        Raises:
            OptionError: its file does not belong to the source, or the split lies outside its file.
        """
        if not isinstance(split, Split) or split.file.path not in self._files:
            raise OptionError(f"{self._name} returned {split!r}: expected a Split of one of the files it was given.")
        file, spans = self._file(split)
        places = self._places(split, file)
        if spans is None:
            if split.row_range is not None:
                raise CountsRequiredError(
                    f"{self._name} returned rows of {file.info.path!r}, whose row count is unknown: use "
                    "count_rows=True, or return whole files or segments."
                )
            size = sum(segment.size_bytes for segment in file.layout.segments[slice(*places)])
            return [replace(split, file=file.info, segments=places, size_bytes=size)] if places[0] < places[1] else []
        return [_narrowed(file, spans, rows, split.index) for rows in self._runs(split, file, spans, places)]

    def check_disjoint(self, splits: Iterable[Split], *, complete: bool) -> None:
        """Check that no row is in two splits and, if `complete`, that every row is in one.

        Raises:
            OptionError: a row is in two splits, or in none.
        """
        by_file: dict[str, list[tuple[int, int]]] = {path: [] for path in self._files} if complete else {}
        for split in splits:
            by_file.setdefault(split.file.path, []).append(_extent(split))
        for path, extents in by_file.items():
            extents.sort()
            for (_, end), (start, _) in pairwise(extents):
                if start < end:
                    raise OptionError(f"{self._name} returned rows of {path!r} twice: its splits overlap at {start}.")
            if complete and sum(b - a for a, b in extents) != self._size(path):
                raise OptionError(
                    f"{self._name} left out rows of {path!r}: its splits cover {extents[:3]} of {self._size(path)}. "
                    "Every row must be in one split; to read less, pass fewer paths or a filter."
                )

    def _file(self, split: Split) -> tuple[DataFile, Spans]:
        file = self._files[split.file.path]
        if split.file.path not in self._spans:
            self._spans[split.file.path] = plan_spans(file.layout)
        return file, self._spans[split.file.path]

    def _size(self, path: str) -> int:
        """Rows of a file, or segments if its row count is unknown."""
        spans = plan_spans(self._files[path].layout)
        return len(self._files[path].layout.segments) if spans is None else sum(b - a for a, b in spans)

    def _places(self, split: Split, file: DataFile) -> tuple[int, int]:
        count = len(file.layout.segments)
        first, last = split.segments or (0, count)
        if not 0 <= first <= last <= count:
            raise OptionError(
                f"{self._name} returned segments={split.segments} of {file.info.path!r}: expected 0 to {count}."
            )
        return first, last

    def _runs(
        self, split: Split, file: DataFile, spans: list[tuple[int, int]], places: tuple[int, int]
    ) -> list[tuple[int, int]]:
        """Rows `[start, stop)` of the split without the rows that filters pruned."""
        inside = spans[slice(*places)]
        rows = split.row_range
        if rows is not None:
            end = max(spans[-1][1] if spans else 0, 0 if file.layout.counted else file.info.record_count or 0)
            if not rows.contiguous or not 0 <= rows.start <= rows.stop <= end:
                raise OptionError(
                    f"{self._name} returned row_range={rows} of {file.info.path!r}: expected [start, stop) "
                    f"with 0 <= start <= stop <= {end}."
                )
            first = bisect_right(inside, rows.start, key=lambda span: span[1])
            last = bisect_left(inside, rows.stop, key=lambda span: span[0])
            inside = [(max(a, rows.start), min(b, rows.stop)) for a, b in inside[first:last]]
        return _joined(inside)


def checked_splits(splits: Iterable[Split], files: Sequence[DataFile], name: str) -> list[Split]:
    """The splits of the strategy called `name`, ready for planning: located, without empty ones, numbered in order.

    Raises:
        OptionError: splits lie outside their files, overlap, or leave rows out.
    """
    checker = SplitChecker(files, name)
    located = [part for split in splits for part in checker.located(split)]
    checker.check_disjoint(located, complete=True)
    return [replace(split, index=index) for index, split in enumerate(located)]


def _extent(split: Split) -> tuple[int, int]:
    """The rows `[start, stop)` of a split, or its segments if its row count is unknown."""
    if split.row_range is not None:
        return split.row_range.start, split.row_range.stop
    return split.segments or (0, 0)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjacent ranges joined; empty ones removed."""
    out: list[tuple[int, int]] = []
    for start, stop in spans:
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], max(stop, start))
        elif start < stop:
            out.append((start, stop))
    return out


def _narrowed(file: DataFile, spans: list[tuple[int, int]], rows: tuple[int, int], index: int) -> Split:
    """The split of `rows` of a file, with the segments that hold these rows and their share of the segments' bytes."""
    start, stop = rows
    first = bisect_right(spans, start, key=lambda span: span[1])
    last = bisect_left(spans, stop, key=lambda span: span[0])
    size = 0
    for (a, b), segment in zip(spans[first:last], file.layout.segments[first:last], strict=True):
        if a < b:
            size += segment.size_bytes * (min(b, stop) - max(a, start)) // (b - a)
    return Split(file.info, Rows(start, stop), (first, last), size, index)


@runtime_checkable
class SplitStrategy(Protocol):
    """Cuts files into splits; an attribute `assignment = "turn"` assigns them to workers in turn, not by size."""

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, each row in exactly one; rows are delivered in this order unless shuffled."""


@runtime_checkable
class GenerateStrategy(Protocol):
    """Makes the shards of one rank itself; `generate(files, num_workers, epoch)` also works."""

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> Sequence[Shard]:
        """The shards of this rank, at most `num_workers`."""


class TargetSizeSplitStrategy:
    """Groups consecutive segments up to a target size (the default strategy).

    A larger segment is a split of its own, and so is a compressed text file. No split is empty, spans two files or
    crosses a pruned segment.

    Args:
        split_bytes: decoded bytes per split, as a number or a string such as `"128MiB"`, the default.
        split_rows: rows per split; overrides `split_bytes`.
    """

    assignment = "lpt"

    def __init__(self, split_bytes: int | str | None = None, split_rows: int | None = None) -> None:
        self.split_bytes = parse_bytes("128MiB" if split_bytes is None else split_bytes, "split_bytes")
        self.split_rows = split_rows

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return list(self.cut(files))

    def cut(self, files: Sequence[DataFile]) -> Splits:
        """The same splits, in columns."""
        return cut_segments(files, self.split_bytes, self.split_rows)


class SizeBalancedSplitStrategy:
    """One split per file (per run of rows if filters pruned segments), assigned to workers largest first."""

    assignment = "lpt"

    def split(self, files: Sequence[DataFile]) -> list[Split]:
        """The splits of all files, in file order."""
        return list(self.cut(files))

    def cut(self, files: Sequence[DataFile]) -> Splits:
        """The same splits, in columns."""
        return cut_segments(files, None, None)


class RoundRobinSplitStrategy(SizeBalancedSplitStrategy):
    """One split per file (per run of rows if filters pruned segments), assigned to workers in turn."""

    assignment = "turn"


def make_splits(strategy: SplitStrategy, files: Sequence[DataFile]) -> Splits:
    """The splits that `strategy` makes of `files`, checked unless the strategy belongs to this package.

    Raises:
        OptionError: a strategy's splits lie outside their files, overlap or leave rows out.
    """
    of_package = TargetSizeSplitStrategy, SizeBalancedSplitStrategy, RoundRobinSplitStrategy
    if isinstance(strategy, of_package) and type(strategy) in of_package:  # a subclass may override `split`
        return strategy.cut(files)
    return Splits.of(checked_splits(strategy.split(files), files, type(strategy).__name__), files)


def assignment_of(strategy: Any) -> str:
    """How the splits of `strategy` are assigned to workers: `"lpt"` unless it declares `"turn"`."""
    return str(getattr(strategy, "assignment", "lpt"))
