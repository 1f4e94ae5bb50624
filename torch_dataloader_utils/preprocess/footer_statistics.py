"""What the footers of Parquet files say of their columns, without reading: rows, nulls, ends of integers and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.parquet.footer import Footer, row_group_ranges
from torch_dataloader_utils.loader.dataset import LoaderDataset, as_stored, passes_of
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.preprocess.column_statistics import ColumnStatistics, Statistics
from torch_dataloader_utils.preprocess.columns import kind_of
from torch_dataloader_utils.preprocess.sources import READ

_Group = tuple[Any, int]  # the parsed footer of a file, and the number of a row group


def footer_statistics(
    dataset: LoaderDataset, name: str, chosen: Callable[[pa.Schema], Sequence[pa.Field]]
) -> Statistics:
    """The statistics that footers know: what they do not is None.

    Args:
        dataset: whose rows they are of.
        name: of the data.
        chosen: the columns of a schema that are asked for.

    Raises:
        OptionError: files have no such footers, or filters, subsets or deletes choose among the rows of row groups.
    """
    stored = as_stored(dataset, READ, "statistics(footers=True)")
    source = passes_of(stored).source
    footers = [file.layout.metadata for file in source.files]
    if not all(isinstance(footer, Footer) for footer in footers):
        raise OptionError("statistics(footers=True): only Parquet files have footers that tell: leave it out.")
    rows = sum(segment.rows or 0 for file in source.files for segment in file.layout.segments)
    if not source.exact or source.splits.rows != rows:
        raise OptionError(
            "statistics(footers=True): footers know all rows of row groups alone, but filters, a subset or deletes "
            "choose among them: leave these out, or let the rows be read."
        )
    columns = tuple(_of_field(field, source.files, rows) for field in chosen(stored.schema))
    return Statistics(name, rows, columns, from_footers=True)


def _of_field(field: pa.Field, files: Sequence[DataFile], rows: int) -> ColumnStatistics:
    groups = [(file.layout.metadata.metadata, segment.number) for file in files for segment in file.layout.segments]
    nulls = [_nulls(field.name, *group) for group in groups]
    known: dict[str, Any] = {"nulls": None if None in nulls else sum(count or 0 for count in nulls)}
    kind = kind_of(field.type)
    if pt.is_floating(field.type):
        return ColumnStatistics(field.name, str(field.type), kind.text, rows, **known)
    known |= {"nan": 0, "infinite": 0}
    if pt.is_integer(field.type) or pt.is_boolean(field.type) or pt.is_temporal(field.type):
        known |= _ends(field.name, groups, nulls)
    return ColumnStatistics(field.name, str(field.type), kind.text, rows, **known)


def _nulls(name: str, metadata: Any, number: int) -> int | None:
    """The nulls of a flat column in a row group; a file that lacks it says nothing: it may be one of partitions."""
    for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        if column.path == name and not column.max_repetition_level:
            found = metadata.row_group(number).column(leaf).statistics
            return found.null_count if found is not None and found.has_null_count else None
    return None


def _ends(name: str, groups: Sequence[_Group], nulls: Sequence[int | None]) -> dict[str, Any]:
    """The least and the greatest value, if all row groups with values tell."""
    ends = []
    for (metadata, number), null in zip(groups, nulls, strict=True):
        if null == metadata.row_group(number).num_rows:
            continue
        found = row_group_ranges(metadata, number, [name]).get(name)
        if found is None:
            return {}
        ends.append(found)
    if not ends:
        return {}
    return {"min": min(low for low, _ in ends), "max": max(high for _, high in ends)}
