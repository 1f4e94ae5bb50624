"""The rows that a fit reads: those of any source that a loader reads, or a table in memory, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.api.stream import stream
from torch_dataloader_utils.errors import OptionError, UnsupportedTypeError
from torch_dataloader_utils.formats.parquet.dictionaries import columns_of_few_words
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.loader.dataset import (
    LoaderDataset,
    as_stored,
    data_digest,
    part_of,
    passes_of,
    rows_of_dataset,
)
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.transform import PLACE, DeclaredTransform, RowsRead
from torch_dataloader_utils.preprocess.columns import types_by_name, with_fields
from torch_dataloader_utils.schemas.columns import project
from torch_dataloader_utils.schemas.dictionaries import as_dictionaries, decoded

# Keywords of `stream` that do not say which rows are read.
OF_FIT = ("num_ranks", "rank", "ranks", "timeout", "show_progress", "progress_interval_sec")
_ROWS = 65_536  # at a time; more, if all values have a fixed width: a column's counts are in the cache only once for
_MOST_ROWS = 262_144  # all of them,
_MOST_BYTES = 128 << 20  # as long as they take no more
# Threads read ahead, and as many rows are counted at once as are worth their overhead.
READ: Mapping[str, Any] = {"transform": None, "batch_size": _ROWS, "num_workers": None}


@dataclass(frozen=True)
class FitRows:
    """Rows that can be scanned several times: those of a source, or this process's part of them.

    Attributes:
        schema: of all columns.
        tables: reads tables of some columns, which may have `PLACE` if the rows are those of files. Text of the columns
            named second may come in dictionaries.
        total: how many rows there are; None if known only after reading.
        mark: a digest of what all processes that share the scans must see.
        read: which rows of files were read.
    """

    schema: pa.Schema
    tables: Callable[[Sequence[str], Collection[str]], Generator[pa.Table | pa.RecordBatch]]
    total: int | None
    mark: str
    read: Callable[[], Sequence[RowsRead]] = tuple


def rows_of(source: Any, options: Mapping[str, Any], call: str = "fit", part: int = 0, parts: int = 1) -> FitRows:
    """The rows of a source, or of a list of sources.

    Args:
        source: as of `stream`, a loader, a dataset, or rows in memory: these are one part.
        options: keywords of `stream`.
        call: which reads them, for errors.
        part: which part of the rows.
        parts: the number of parts.

    Raises:
        OptionError: it is none, or takes no options.
        UnsupportedTypeError: a DataFrame has a column that Arrow cannot hold.
    """
    if _several(source):
        return _of_all([rows_of(each, options, call, part, parts) for each in source])
    table = table_of(source)
    if table is not None:
        if options:
            raise OptionError(
                f"{call}(..., {', '.join(options)}=): rows in memory take no options: filter them before."
            )
        return FitRows(table.schema, partial(_batches, table), table.num_rows, "")
    dataset = dataset_of(source, options, call)
    assert dataset is not None
    read: list[RowsRead] = []

    def tables(columns: Sequence[str], counted: Collection[str]) -> Generator[pa.RecordBatch]:
        types = types_by_name(dataset.schema, columns)
        few = _of_few_words(dataset)
        texts = tuple(name for name in counted if name in few and as_dictionaries(types[name]))
        # Only a transform is given the places of rows, and dictionaries as they are stored.
        asked = texts or PLACE in columns
        how = {"transform": StoredRows(tuple(columns), texts)} if asked else {"columns": list(columns)}
        rows = rows_at_once(types.values())
        stored = as_stored(dataset, {**READ, "batch_size": rows, **how}, f"{call}()")
        read.append(rows_of_dataset(stored))
        with closing(part_of(stored, part, parts)) as own:
            if passes_of(own).source.splits:
                yield from own

    stored = as_stored(dataset, READ, f"{call}()")
    total = known_rows(part_of(stored, part, parts))
    return FitRows(stored.schema, tables, total, data_digest(stored), lambda: read[-1:])


def _of_few_words(dataset: LoaderDataset) -> set[str]:
    """The columns of text that are read in dictionaries, by the first row group: others would be hashed twice."""
    for file in passes_of(dataset).source.files[:1]:
        if file.layout.segments and isinstance(file.layout.metadata, Footer):
            return columns_of_few_words(file.layout.metadata.metadata, file.layout.segments[0].number)
    return set()


@dataclass(frozen=True)
class StoredRows(DeclaredTransform):
    """These columns as they are, `PLACE` among them; some of text in dictionaries, as Parquet stores them."""

    columns: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """All of them."""
        return self.columns

    @property
    def encoded(self) -> tuple[str, ...]:
        """Those of text."""
        return self.texts

    @property
    def mark(self) -> str:
        """That of all of its kind."""
        return "stored"

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows."""
        columns = {name: with_fields(rows, [name]).column(name) for name in self.columns}
        columns |= {name: _encoded(columns[name]) for name in self.texts}
        return pa.record_batch(columns)


def _encoded(values: pa.Array) -> pa.Array:
    """Text in a dictionary: the one in which it is stored, unless that has a word for every second value, or more."""
    if pt.is_dictionary(values.type) and 2 * len(values.dictionary) > len(values):
        values = decoded(pa.chunked_array([values])).chunk(0)
    values = values.dictionary_encode()  # a dictionary as it is
    words = values.dictionary.type
    large = pa.large_string() if pt.is_string(words) or pt.is_large_string(words) else pa.large_binary()
    return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(large))


def rows_at_once(types: Iterable[pa.DataType]) -> int:
    """How many rows of columns of these types are read at a time."""
    try:
        width: int = sum(type_.bit_width for type_ in types) // 8
    except ValueError:  # of any width
        return _ROWS
    return max(_ROWS, min(_MOST_ROWS, _MOST_BYTES // max(width, 1)))


def known_rows(dataset: LoaderDataset) -> int | None:
    """How many rows will be read, if that is known before."""
    source = passes_of(dataset).source
    return source.splits.rows if source.exact else None


def options_of_rows(source: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a fit, those that say which rows of a source are read, and how long to wait for them."""
    waits = not in_memory(source) and given_dataset(source) is None
    return {name: value for name, value in options.items() if name not in OF_FIT or (waits and name == "timeout")}


def given_dataset(source: Any) -> LoaderDataset | None:
    """The dataset of a loader, or itself; of a list, the first; None if there is none."""
    if isinstance(source, StructuredLoader):
        return source.dataset
    if _several(source):
        return next(filter(None, map(given_dataset, source)), None)
    return source if isinstance(source, LoaderDataset) else None


def dataset_of(source: Any, options: Mapping[str, Any], call: str) -> LoaderDataset | None:
    """The dataset of a source; None for rows in memory, and for a list of sources.

    Raises:
        OptionError: it is none, or takes no options.
    """
    if _several(source) or in_memory(source):
        return None
    dataset = given_dataset(source)
    if dataset is None:
        return stream(source, **{"num_ranks": 1, "rank": 0, "output_format": "arrow", **options}).dataset
    if options:
        raise OptionError(f"{call}(loader, {', '.join(options)}=): the loader says which rows it reads: replace() it.")
    return dataset


def in_memory(source: Any) -> bool:
    """Whether rows, or those of a source in a list, are in memory; converts none."""
    if _several(source):
        return any(map(in_memory, source))
    return isinstance(source, (pa.RecordBatch, pa.Table)) or _is_pandas(source) or _is_polars(source)


def _is_pandas(source: Any) -> bool:
    return _package(source) == "pandas" and hasattr(source, "columns")


def _is_polars(source: Any) -> bool:
    return _package(source) == "polars" and hasattr(source, "to_arrow")


def _package(source: Any) -> str:
    return type(source).__module__.partition(".")[0]


def _several(source: Any) -> bool:
    """Whether it is a list of sources, and not one of paths."""
    return isinstance(source, (list, tuple)) and not all(isinstance(each, (str, PathLike)) for each in source)


def _batches(table: pa.Table, columns: Sequence[str], _: Collection[str]) -> Generator[pa.RecordBatch]:
    """Some rows at a time, without places, which rows in memory do not have: who counts them tells what is missing."""
    wanted = project(table, [name for name in columns if name != PLACE])
    yield from wanted.to_batches(rows_at_once(wanted.schema.types))


def _of_all(several: Sequence[FitRows]) -> FitRows:
    """The rows of all, with the columns that each of them has."""
    first, *others = several
    common = [item for item in first.schema if all(item.name in each.schema.names for each in others)]

    def tables(columns: Sequence[str], counted: Collection[str]) -> Generator[pa.Table | pa.RecordBatch]:
        for each in several:
            yield from each.tables(columns, counted)

    def read() -> list[RowsRead]:
        return [rows for each in several for rows in each.read()]

    totals = [each.total for each in several if each.total is not None]
    total = sum(totals) if len(totals) == len(several) else None
    return FitRows(pa.schema(common), tables, total, " ".join(each.mark for each in several), read)


def table_of(source: Any) -> pa.Table | None:
    """Rows in memory as a table; None if the source is something else."""
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        return source
    if _is_pandas(source):
        try:
            return pa.Table.from_pandas(source, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UnsupportedTypeError(f"fit(DataFrame): drop or convert a column: {'. '.join(error.args)}.") from error
    if _is_polars(source):
        return source.to_arrow()
    return None
