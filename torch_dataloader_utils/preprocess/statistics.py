"""Statistics of the columns of any source, counted in one scan or taken from the footers of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, EmptyDatasetError, OptionError
from torch_dataloader_utils.loader.dataset import LoaderDataset, passes_of
from torch_dataloader_utils.options.showing import progress_of
from torch_dataloader_utils.planning.plan_table import common_folder
from torch_dataloader_utils.preprocess.column_scan import StatisticsScan
from torch_dataloader_utils.preprocess.column_statistics import ColumnStatistics, Histogram, Statistics, statistics_of
from torch_dataloader_utils.preprocess.columns import types_by_name
from torch_dataloader_utils.preprocess.footer_statistics import footer_statistics
from torch_dataloader_utils.preprocess.sources import dataset_of, known_rows, rows_of
from torch_dataloader_utils.printing import shortened
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.storage.cores import usable_cores

__all__ = ["ColumnStatistics", "Histogram", "Statistics", "StatisticsScan", "statistics", "statistics_of"]

_NAME_WIDTH = 72


def statistics(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    footers: bool = False,
    on_rows: Callable[[int], object] | None = None,
    **options: Any,
) -> Statistics:
    """What the columns of a source hold: nulls, distinct values, range, mean, quantiles, most frequent values.

    One scan counts them, with the partials that a fit counts: figures are those that transforms learn, bit for bit.

    Args:
        source: as of `Preprocess.fit`.
        columns: those to count; None for all.
        footers: whether to take what the footers of Parquet files say, without reading rows.
        on_rows: called with the number of rows of each block that was counted.
        **options: keywords of `stream` that say which rows are read, such as `filters` or `subset`.

    Raises:
        ColumnNotFoundError: there are no such columns; it names all of them.
        EmptyDatasetError: there are no rows.
        OptionError: footers do not describe the rows of this source; or options are given with what takes none.
    """
    dataset = dataset_of(source, options, "statistics")
    name = "" if dataset is None else _name_of(dataset)
    if footers:
        if dataset is None:
            raise OptionError(
                "statistics(footers=True): rows in memory and lists of sources have no footers: leave it out."
            )
        return footer_statistics(dataset, name, lambda schema: _chosen(schema, columns))
    rows = rows_of(source, options, "statistics") if dataset is None else rows_of(dataset, {}, "statistics")
    fields = _chosen(rows.schema, columns)
    scan = StatisticsScan(fields)
    with _advancing(dataset, on_rows) as advance, ThreadPoolExecutor(usable_cores()) as pool:
        names = [field.name for field in fields]
        for block in rows.tables(names, names):
            scan.add(block, pool.map)
            advance(block.num_rows)
    if not scan.rows:
        raise EmptyDatasetError("statistics: there are no rows.")
    return statistics_of(scan, name)


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> list[pa.Field]:
    """The fields of the columns asked for, or of fields of structs, as in "parent.child"."""
    names = list(dict.fromkeys(schema.names if columns is None else columns))
    types = types_by_name(schema, names)
    if missing := [name for name in names if name not in types]:
        raise ColumnNotFoundError(f"statistics: no columns {missing}: the columns are {schema.names}.")
    return [pa.field(name, types[name]) for name in names]


def _name_of(dataset: LoaderDataset) -> str:
    """The file or the folder of all files, for people."""
    paths = [file.info.path for file in passes_of(dataset).source.files]
    text = paths[0] if len(paths) == 1 else common_folder(paths)
    return redacted(shortened(text.rstrip("/"), _NAME_WIDTH))


@contextmanager
def _advancing(
    dataset: LoaderDataset | None, on_rows: Callable[[int], object] | None
) -> Iterator[Callable[[int], Any]]:
    """What is told of each block: the given function, or else the progress that the loader's options show."""
    if on_rows is not None or dataset is None:
        yield on_rows or (lambda rows: None)
        return
    passes = passes_of(dataset)
    with progress_of(passes.options).over(known_rows(dataset), "counting values", "rows") as shown:
        yield shown.advance
