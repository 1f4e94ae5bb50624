"""`limit=`: the first rows of all, in file order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_dataloader_utils.model import DataFile, Segment
from torch_dataloader_utils.options.late_clashes import LIMIT_UNKNOWN


def first_rows(files: Sequence[DataFile], limit: int | None, exact: bool) -> tuple[DataFile, ...]:
    """The files with only the first `limit` rows of all, in order; None for all.

    Args:
        files: the files, with counts of the rows that are delivered.
        limit: the number of rows.
        exact: whether the counts are those of the rows that are delivered.

    Raises:
        OptionError: the counts are not known.
    """
    if limit is None:
        return tuple(files)
    if not exact or not all(file.layout.counted or file.layout.known for file in files):
        raise LIMIT_UNKNOWN.between(f"limit={limit}")
    kept: list[DataFile] = []
    for file in files:
        if limit == 0:
            break
        rows = sum(_live(segment, file.layout.counted) for segment in file.layout.segments)
        kept.append(file if rows <= limit else _beginning(file, limit))
        limit -= min(rows, limit)
    return tuple(kept)


def _live(segment: Segment, counted: bool) -> int:
    return int((segment.live_rows if counted else segment.rows) or 0)


def _beginning(file: DataFile, limit: int) -> DataFile:
    """The file with only its first `limit` rows: readers of counted segments never take rows after the counts."""
    layout, kept, left = file.layout, [], limit
    for segment in layout.segments:
        if left:
            rows = min(_live(segment, layout.counted), left)
            kept.append(replace(segment, live_rows=rows))
            left -= rows
    layout = replace(layout, segments=tuple(kept), counted=True)
    return replace(file, info=replace(file.info, record_count=limit), layout=layout)
