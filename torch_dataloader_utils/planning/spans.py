"""The plan rows of each segment of a file."""

from __future__ import annotations

from torch_dataloader_utils.model import FileLayout


def plan_spans(layout: FileLayout) -> list[tuple[int, int]] | None:
    """The plan rows `[start, stop)` of each segment, or None if known only after reading.

    Live rows are contiguous; physical rows have gaps where filters pruned a segment.
    """
    if layout.counted:
        spans, at = [], 0
        for segment in layout.segments:
            spans.append((at, at + (segment.live_rows or 0)))
            at = spans[-1][1]
        return spans
    spans = []
    for segment in layout.segments:
        if segment.rows is None:
            return None
        spans.append((segment.first_row, segment.first_row + segment.rows))
    return spans
