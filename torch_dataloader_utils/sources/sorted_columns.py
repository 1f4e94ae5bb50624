"""Columns whose values rise or fall from segment to segment, judged by statistics; reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.reading.files import FileOpener

Range = tuple[Any, Any]

_LOOKED_AT = 64  # segments: enough to detect sorting, few enough for tables with many files and columns


def sorted_columns(files: Sequence[DataFile], opener: FileOpener, names: Iterable[str]) -> tuple[str, ...]:
    """The columns by which the rows appear to be sorted: their ranges in consecutive segments do not overlap.

    Columns that number the rows are excluded: every file that was written unshuffled is sorted by them.

    Args:
        files: in reading order.
        opener: opens the files.
        names: top-level columns, including those from folder names.
    """
    seen: dict[str, list[Range]] = {name: [] for name in names}
    chosen = _spread([(file, segment) for file in files for segment in file.layout.segments])
    for file, segment in chosen:
        ranges = {**opener.value_ranges(file.layout, segment.number, seen.keys()), **ranges_of_path(file)}
        seen = {
            name: [*before, ranges[name]]
            for name, before in seen.items()
            if name in ranges and (not before or _apart(before[-1], ranges[name]))
        }
    rows = [segment.rows for _, segment in chosen]
    return tuple(name for name, ranges in seen.items() if _is_sorted(ranges) and not _numbers_rows(ranges, rows))


def _spread(places: Sequence[tuple[DataFile, Segment]]) -> Sequence[tuple[DataFile, Segment]]:
    """Up to `_LOOKED_AT` of them, evenly spaced from the first to the last."""
    count = min(len(places), _LOOKED_AT)
    return [places[number * (len(places) - 1) // max(1, count - 1)] for number in range(count)]


def ranges_of_path(file: DataFile) -> Mapping[str, Range]:
    """The values of the columns that a file's path names."""
    return {name: (value, value) for name, value in file.partition if value is not None}


def _is_sorted(ranges: Sequence[Range]) -> bool:
    """Whether no range overlaps its neighbours, and the first and last do not touch."""
    if len(ranges) < 2:
        return False
    (first_low, first_high), (last_low, last_high) = ranges[0], ranges[-1]
    if first_high < last_low:
        return all(_rises(one, other) for one, other in pairwise(ranges))
    return bool(last_high < first_low) and all(_rises(other, one) for one, other in pairwise(ranges))


def _apart(one: Range, other: Range) -> bool:
    """Whether they share at most an endpoint."""
    try:
        return _rises(one, other) or _rises(other, one)
    except TypeError:  # the column's type differs between files
        return False


def _rises(one: Range, other: Range) -> bool:
    return bool(one[1] <= other[0])


def _numbers_rows(ranges: Sequence[Range], rows: Sequence[int | None]) -> bool:
    """Whether the values can be consecutive integers."""
    return all(
        isinstance(low, int) and not isinstance(low, bool) and high - low + 1 == count
        for (low, high), count in zip(ranges, rows, strict=True)
    )
