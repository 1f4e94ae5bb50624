"""Which columns' values grow or fall from segment to segment: seen from statistics, nothing is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.reading.files import FileOpener

Range = tuple[Any, Any]

_LOOKED_AT = 64  # segments: enough to see it, few enough for tables of many files and columns


def sorted_columns(files: Sequence[DataFile], opener: FileOpener, names: Iterable[str]) -> tuple[str, ...]:
    """The columns that the rows are sorted by, as far as segments show it: their ranges follow one another.

    Columns that number the rows are left out: every file without a shuffle is sorted by those.

    Args:
        files: as they are read, one after another.
        opener: of the files.
        names: of top-level columns, those from the paths among them.
    """
    seen: dict[str, list[Range]] = {name: [] for name in names}
    chosen = _spread([(file, segment) for file in files for segment in file.layout.segments])
    for file, segment in chosen:
        ranges = {**opener.value_ranges(file.layout, segment.number, seen.keys()), **_of_path(file)}
        seen = {
            name: [*before, ranges[name]]
            for name, before in seen.items()
            if name in ranges and (not before or _apart(before[-1], ranges[name]))
        }
    rows = [segment.rows for _, segment in chosen]
    return tuple(name for name, ranges in seen.items() if _is_sorted(ranges) and not _numbers_rows(ranges, rows))


def _spread(places: Sequence[tuple[DataFile, Segment]]) -> Sequence[tuple[DataFile, Segment]]:
    """So many of them, from the first to the last."""
    count = min(len(places), _LOOKED_AT)
    return [places[number * (len(places) - 1) // max(1, count - 1)] for number in range(count)]


def _of_path(file: DataFile) -> Mapping[str, Range]:
    return {name: (value, value) for name, value in file.partition if value is not None}


def _is_sorted(ranges: Sequence[Range]) -> bool:
    """Whether no range overlaps with its neighbours, and the last lies wholly beyond the first."""
    if len(ranges) < 2:
        return False
    (first_low, first_high), (last_low, last_high) = ranges[0], ranges[-1]
    if first_high < last_low:
        return all(_rises(one, other) for one, other in pairwise(ranges))
    return bool(last_high < first_low) and all(_rises(other, one) for one, other in pairwise(ranges))


def _apart(one: Range, other: Range) -> bool:
    """Whether they have at most an end in common."""
    try:
        return _rises(one, other) or _rises(other, one)
    except TypeError:  # files that disagree about the type
        return False


def _rises(one: Range, other: Range) -> bool:
    return bool(one[1] <= other[0])


def _numbers_rows(ranges: Sequence[Range], rows: Sequence[int | None]) -> bool:
    """Whether the values can be consecutive whole numbers."""
    return all(
        isinstance(low, int) and not isinstance(low, bool) and high - low + 1 == count
        for (low, high), count in zip(ranges, rows, strict=True)
    )
