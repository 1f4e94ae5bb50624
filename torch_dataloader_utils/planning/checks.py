"""Checks the splits of custom strategies, and completes them for planning."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.model import DataFile, Rows, Split
from torch_dataloader_utils.planning.spans import plan_spans

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
