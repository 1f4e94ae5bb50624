"""The number of tokens of each segment, from footers, if documents are packed one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_dataloader_utils.convert.plan import ColumnPlan
from torch_dataloader_utils.errors import CountsRequiredError, use
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.options.clashes import whole_documents
from torch_dataloader_utils.reading.row_count_scan import RowCounts
from torch_dataloader_utils.reading.scan import ScanSpec

_TASK_TOKENS = 1 << 20  # of small segments that are decoded together


def tokens_in_footers(scan: ScanSpec, files: Sequence[DataFile], key: str) -> RowCounts | None:
    """The tokens of each segment as its live rows; None if they are known only after reading.

    Args:
        scan: reads the documents.
        files: the files.
        key: of a column that is packed.
    """
    plan = _plan_of(scan, key)
    unchanged = not scan.selects_rows and scan.transform is None and plan.nulls != "fill" and not plan.path
    if not unchanged or plan.column in scan.partition_names:
        return None
    live: dict[int, tuple[int, ...]] = {}
    for place, file in enumerate(files):
        values = None if file.layout.counted else scan.opener.list_values(file.layout, plan.column)
        if values is None:
            return None
        live[place] = tuple(values)
    return RowCounts(live_rows=live)


def tokens_unknown(options: Options, name: str, *, limited: bool) -> CountsRequiredError:
    """The error that tokens are not known before reading, and will not be counted.

    Args:
        options: of the loader, or of the combination of which the data is a part.
        name: of the data.
        limited: whether it is a part with a limit, of which only the first rows are read.
    """
    why = (
        "it has a limit, in rows"
        if limited
        else (
            "because of a filter, a subset, a transform or deleted rows, or because only Parquet files with statistics "
            "have it"
        )
    )
    counted = [] if limited else [use("reads the token lists once", count_rows=True)]
    return CountsRequiredError(
        f"Pack(method='wrap') needs the number of tokens of {name}, which its footers do not say: {why}.",
        remedies=[*counted, whole_documents(options)],
    )


def in_tokens(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """These files, whose live rows are tokens, with tasks of as many tokens as documents usually have."""
    return tuple(
        file
        if file.layout.task_rows is not None
        else replace(file, layout=replace(file.layout, task_rows=_TASK_TOKENS))
        for file in files
    )


def _plan_of(scan: ScanSpec, key: str) -> ColumnPlan:
    """The plan of a column that is packed."""
    return next(plan for plan in scan.converter.plans if plan.key == key)
