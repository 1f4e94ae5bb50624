"""The part of a data file that an epoch reads: its segments, counted without rows deleted by position.

So planning, sharding and batching have no code for deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.iceberg.data_files.deletes import seen_deletes
from torch_dataloader_utils.iceberg.data_files.files import IcebergFile
from torch_dataloader_utils.iceberg.data_files.hints import own_layout
from torch_dataloader_utils.iceberg.data_files.inner import inner_format, inner_options
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.sources.deleted_rows import live_segments
from torch_dataloader_utils.storage import Storage


def iceberg_layout(
    info: DataFileInfo, file: IcebergFile, storage: Storage, options: Mapping[str, Any] | None = None
) -> FileLayout:
    """The segments of a data file that have rows left, with `file` and its own layout as the metadata.

    Row counts are exact after positional deletes and deletion vectors; if equality deletes apply, they are known only
    after reading. Opens the data file once; delete files are read once per process.

    Raises:
        FileReadError: the file, or one of its delete files, is missing or damaged; the message names it.
    """
    form = inner_format(file.format)
    info, inner = own_layout(form, info, file, storage, inner_options(form, options or {}))
    deletes, positions = seen_deletes(file, storage, sum(segment.rows or 0 for segment in inner.segments))
    segments = tuple(live_segments(inner.segments, positions))
    if any(delete.kind == "equality" for delete in file.deletes):
        segments = tuple(replace(segment, first_row=0, rows=None) for segment in segments)
    seen = replace(file, deletes=deletes, inner=inner, near=storage.local, seen=info.file_size)
    return replace(inner, segments=segments, metadata=seen)


def whole_file(file: IcebergFile, size_bytes: int) -> FileLayout:
    """The layout of a data file according to the manifest, without opening it: one segment with all its rows.

    Args:
        file: with a known number of rows, but without positional deletes or deletion vectors.
        size_bytes: estimated decoded bytes.
    """
    rows = None if file.deletes else file.record_count
    return FileLayout((Segment(0, 0, rows, size_bytes),), metadata=replace(file, whole=True))
