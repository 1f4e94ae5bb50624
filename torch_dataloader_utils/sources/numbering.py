"""Numbers of rows in files that do not record how many rows are before a segment, such as CSV: by a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pyarrow as pa

from torch_dataloader_utils.convert.converter import build_converter
from torch_dataloader_utils.errors import CountsRequiredError, use
from torch_dataloader_utils.model import DataFile, FileLayout
from torch_dataloader_utils.options import ConvertOptions
from torch_dataloader_utils.options.sources import POSITION
from torch_dataloader_utils.reading.row_count_scan import RowCounts
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, LiveRows, own_layout


def unnumbered(scan: ScanSpec, files: Sequence[DataFile]) -> bool:
    """Whether rows are to have numbers that the layouts of the files do not say."""
    return POSITION in scan.schema.names and any(map(_is_unnumbered, files))


def _is_unnumbered(file: DataFile) -> bool:
    return not file.layout.known and len(file.layout.segments) > 1


def check_counted(files: Sequence[DataFile], *, counts: bool) -> None:
    """Check that a scan may count the rows.

    Args:
        files: some of which do not say the numbers of rows.
        counts: whether it may.

    Raises:
        CountsRequiredError: it may not.
    """
    path = next(file.info.path for file in files if _is_unnumbered(file))
    if not counts:
        raise CountsRequiredError(
            f"{printable(path)}: {POSITION!r} is the number of a row in its file, and this file does not record how "
            "many rows are before the places where it is cut.",
            remedies=[use("counts once", count_rows=True)],
        )


def reads_all(scan: ScanSpec) -> bool:
    """Whether the scan reads all rows of its files."""
    return not scan.selects_rows and not isinstance(scan.opener, LiveOpener)


def stored_rows(scan: ScanSpec, files: Sequence[DataFile]) -> tuple[ScanSpec, list[DataFile]]:
    """The scan of all rows of these files, those too that are not chosen, with the fewest columns; and the files."""
    opener = scan.opener.inner if isinstance(scan.opener, LiveOpener) else scan.opener
    schema = pa.schema([next(item for item in scan.schema if item.name != POSITION)])
    spec = ScanSpec(
        opener=opener,
        storage=scan.storage,
        format_options=scan.format_options,
        schema=schema,
        partition_names=scan.partition_names.intersection(schema.names),
        predicate=None,
        predicate_columns=(),
        given=schema,
        transform=None,
        transform_rows="same",
        output_schema=schema,
        converter=build_converter(schema, ConvertOptions(), "arrow"),
        arrow=True,
    )
    return spec, [replace(file, layout=own_layout(file.layout)) for file in files]


def numbered(files: Sequence[DataFile], counts: RowCounts) -> tuple[DataFile, ...]:
    """The files whose segments know the number of their first row; how many rows they have stays unknown to plans."""
    if not counts.stored:
        return tuple(files)
    return tuple(replace(file, layout=_begun(file.layout, counts.stored[at])) for at, file in enumerate(files))


def _begun(layout: FileLayout, stored: Sequence[int]) -> FileLayout:
    """The layout whose segments have so many rows."""
    firsts = accumulate(stored, initial=0)
    segments = tuple(replace(segment, first_row=first) for segment, first in zip(layout.segments, firsts, strict=False))
    live = layout.metadata
    inner = replace(live, inner=_begun(live.inner, stored)) if isinstance(live, LiveRows) else live
    return replace(layout, segments=segments, metadata=inner)
