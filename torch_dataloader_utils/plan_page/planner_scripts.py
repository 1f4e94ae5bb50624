"""The planner of the plan page, JavaScript that plans as Python does without a server, and what it gets of splits."""

from __future__ import annotations

from importlib.resources import files

from torch_dataloader_utils.planning.spans import plan_spans
from torch_dataloader_utils.planning.splits import Splits

# In order: each uses those before it.
PLANNER_SCRIPTS = ("hash.js", "order.js", "sharing.js", "windows.js", "options.js", "planner.js")


def planner_script() -> str:
    """The planner as one script, which defines `Planner`."""
    return "\n".join((files(__package__) / name).read_text(encoding="utf-8") for name in PLANNER_SCRIPTS)


def split_segments(splits: Splits) -> list[list[list[int]] | None]:
    """The segments of each split, as [plan rows, estimated decoded bytes] each; None for a split of one segment.

    Shuffle windows draw from whole segments.
    """
    columns = (splits.file.tolist(), splits.first.tolist(), splits.last.tolist())
    return [
        None if last - first < 2 else _segments(splits, file, first, last)
        for file, first, last in zip(*columns, strict=True)
    ]


def _segments(splits: Splits, file: int, first: int, last: int) -> list[list[int]]:
    layout = splits.files[file].layout
    spans = plan_spans(layout) or [(0, 0)] * len(layout.segments)
    sizes = [segment.size_bytes for segment in layout.segments]
    return [[stop - start, size] for (start, stop), size in list(zip(spans, sizes, strict=True))[first:last]]
