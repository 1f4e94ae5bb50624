"""The rows that a fit reads: those of any source that a loader reads, or a table in memory, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.api.stream import stream
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.loader.dataset import LoaderDataset, as_stored
from torch_dataloader_utils.loader.loader import StructuredLoader

# Threads read ahead, and as many rows are counted at once as are worth their overhead.
READ: Mapping[str, Any] = {"transform": None, "batch_size": 65_536, "num_workers": None}


@dataclass(frozen=True)
class FitRows:
    """Rows that can be scanned several times.

    Attributes:
        schema: of all columns.
        tables: reads tables of some columns.
    """

    schema: pa.Schema
    tables: Callable[[Sequence[str]], Iterator[pa.Table | pa.RecordBatch]]


def rows_of(source: Any, options: Mapping[str, Any], call: str = "fit") -> FitRows:
    """The rows of a source.

    Args:
        source: the source.
        options: keywords of `stream`.
        call: which reads them, for errors.

    Raises:
        OptionError: it is none, or takes no options.
    """
    dataset = dataset_of(source, options, call)
    if dataset is None:
        table = table_of(source)
        assert table is not None
        return FitRows(table.schema, lambda columns: iter(table.select(list(columns)).to_batches(65_536)))

    def tables(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        stored = as_stored(dataset, {**READ, "columns": list(columns)}, f"{call}()")
        try:
            yield from stored
        finally:
            stored.close()

    return FitRows(as_stored(dataset, READ, f"{call}()").schema, tables)


def dataset_of(source: Any, options: Mapping[str, Any], call: str) -> LoaderDataset | None:
    """The dataset of a source; None for rows in memory.

    Raises:
        OptionError: it is none, or takes no options.
    """
    if table_of(source) is not None:
        if options:
            raise OptionError(
                f"{call}(..., {', '.join(options)}=): rows in memory take no options: filter them before."
            )
        return None
    if isinstance(source, (StructuredLoader, LoaderDataset)):
        if options:
            raise OptionError(
                f"{call}(loader, {', '.join(options)}=): the loader says which rows it reads: replace() it."
            )
        return source.dataset if isinstance(source, StructuredLoader) else source
    return stream(source, **{"num_ranks": 1, "rank": 0, "output_format": "arrow", **options}).dataset


def table_of(source: Any) -> pa.Table | None:
    """Rows in memory as a table; None if the source is something else."""
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source
    kind = type(source).__module__.partition(".")[0]
    if kind == "pandas" and hasattr(source, "columns"):
        return pa.Table.from_pandas(source, preserve_index=False)
    if kind == "polars" and hasattr(source, "to_arrow"):
        return source.to_arrow()
    return None
