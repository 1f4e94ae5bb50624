"""The planner of the plan page, JavaScript that plans as Python does without a server, and what it gets of splits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from importlib.resources import files

from torch_dataloader_utils.planning.splits import UNKNOWN, Splits
from torch_dataloader_utils.planning.tasks import FileSegments, SegmentTable

# In order: each uses those before it.
PLANNER_SCRIPTS = ("hash.js", "order.js", "sharing.js", "windows.js", "options.js", "planner.js")


def planner_script() -> str:
    """The planner as one script, which defines `Planner`."""
    return "\n".join((files(__package__) / name).read_text(encoding="utf-8") for name in PLANNER_SCRIPTS)


def split_segments(splits: Splits) -> list[list[list[int]] | None]:
    """The segments of each split, as [plan rows in the split, estimated decoded bytes of the segment] each.

    None for a split that is one segment. Shuffle windows draw from whole segments.
    """
    table = SegmentTable({file.info.key: file.layout for file in splits.files})
    columns = (splits.file, splits.first, splits.last, splits.start, splits.stop)
    return [
        None if last - first == 1 else _segments(table[splits.files[file].info.key], first, last, start, stop)
        for file, first, last, start, stop in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _segments(file: FileSegments, first: int, last: int, start: int, stop: int) -> list[list[int]]:
    """The segments of a split; those that hold its rows if a custom strategy gave rows alone."""
    if start == UNKNOWN:
        return [[0, size] for size in (file.sizes if first == UNKNOWN else file.sizes[first:last])]
    if first == UNKNOWN:
        first, last = bisect_right(file.stops, start), bisect_left(file.starts, stop)
    return [
        [max(0, min(stop, file.stops[number]) - max(start, file.starts[number])), file.sizes[number]]
        for number in range(first, last)
    ]
