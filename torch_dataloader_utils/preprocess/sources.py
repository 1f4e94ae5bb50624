"""The rows that a fit reads: those of any source that a loader reads, or a table in memory, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.api.stream import stream
from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.loader.dataset import LoaderDataset, as_stored, rows_of_dataset
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.transform import PLACE, DeclaredTransform, RowsRead
from torch_dataloader_utils.preprocess.columns import with_fields
from torch_dataloader_utils.schemas.columns import project

# Threads read ahead, and as many rows are counted at once as are worth their overhead.
READ: Mapping[str, Any] = {"transform": None, "batch_size": 65_536, "num_workers": None}


@dataclass(frozen=True)
class FitRows:
    """Rows that can be scanned several times.

    Attributes:
        schema: of all columns.
        tables: reads tables of some columns, which may have `PLACE` if the rows are those of files.
        read: which rows of files were read.
    """

    schema: pa.Schema
    tables: Callable[[Sequence[str]], Iterator[pa.Table | pa.RecordBatch]]
    read: Callable[[], Sequence[RowsRead]] = tuple


def rows_of(source: Any, options: Mapping[str, Any], call: str = "fit") -> FitRows:
    """The rows of a source, or of a list of sources.

    Args:
        source: the source.
        options: keywords of `stream`.
        call: which reads them, for errors.

    Raises:
        OptionError: it is none, or takes no options.
        UnsupportedTypeError: a DataFrame has a column that Arrow cannot hold.
    """
    if _several(source):
        return _of_all([rows_of(each, options, call) for each in source])
    table = table_of(source)
    if table is not None:
        if options:
            raise OptionError(
                f"{call}(..., {', '.join(options)}=): rows in memory take no options: filter them before."
            )
        return FitRows(table.schema, lambda columns: iter(_selected(table, columns).to_batches(65_536)))
    dataset = dataset_of(source, options, call)
    assert dataset is not None

    read: list[RowsRead] = []

    def tables(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Only a transform is given the places of rows.
        how = {"transform": PlacedRows(tuple(columns))} if PLACE in columns else {"columns": list(columns)}
        stored = as_stored(dataset, {**READ, **how}, f"{call}()")
        read.append(rows_of_dataset(stored))
        try:
            yield from stored
        finally:
            stored.close()

    return FitRows(as_stored(dataset, READ, f"{call}()").schema, tables, lambda: read[-1:])


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """These columns, without those that rows in memory do not have: who counts them tells what is missing."""
    return project(table, [name for name in columns if name != PLACE])


@dataclass(frozen=True)
class PlacedRows(DeclaredTransform):
    """These columns as they are, `PLACE` among them."""

    columns: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """All of them."""
        return self.columns

    @property
    def mark(self) -> str:
        """That of all of its kind."""
        return "places"

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows."""
        return with_fields(rows, self.columns).select(list(self.columns))


def dataset_of(source: Any, options: Mapping[str, Any], call: str) -> LoaderDataset | None:
    """The dataset of a source; None for rows in memory, and for a list of sources.

    Raises:
        OptionError: it is none, or takes no options.
    """
    if isinstance(source, (StructuredLoader, LoaderDataset)):
        if options:
            raise OptionError(
                f"{call}(loader, {', '.join(options)}=): the loader says which rows it reads: replace() it."
            )
        return source.dataset if isinstance(source, StructuredLoader) else source
    if _several(source) or table_of(source) is not None:
        return None
    return stream(source, **{"num_ranks": 1, "rank": 0, "output_format": "arrow", **options}).dataset


def _several(source: Any) -> bool:
    """Whether it is a list of sources, and not one of paths."""
    return isinstance(source, (list, tuple)) and not all(isinstance(each, (str, PathLike)) for each in source)


def _of_all(several: Sequence[FitRows]) -> FitRows:
    """The rows of all, with the columns that each of them has."""
    first, *others = several
    common = [item for item in first.schema if all(item.name in each.schema.names for each in others)]
    return FitRows(
        pa.schema(common),
        lambda columns: chain.from_iterable(each.tables(columns) for each in several),
        lambda: [rows for each in several for rows in each.read()],
    )


def table_of(source: Any) -> pa.Table | None:
    """Rows in memory as a table; None if the source is something else."""
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source
    kind = type(source).__module__.partition(".")[0]
    if kind == "pandas" and hasattr(source, "columns"):
        try:
            return pa.Table.from_pandas(source, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UnsupportedTypeError(f"fit(DataFrame): drop or convert a column: {'. '.join(error.args)}.") from error
    if kind == "polars" and hasattr(source, "to_arrow"):
        return source.to_arrow()
    return None
