"""The public entrance: start here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from torch_dataloader_utils.errors import OptionError, UnknownOptionError
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.loader.tables import TableDataset
from torch_dataloader_utils.options import (
    LoaderOptions,
    Options,
    TableLoaderOptions,
    option_defaults,
    parse_options,
    parse_table_options,
    plain_value,
)
from torch_dataloader_utils.sources.combine import check_keywords, combined_source
from torch_dataloader_utils.sources.source import Source, open_files

if TYPE_CHECKING:
    from torch_dataloader_utils.iceberg.tables import IcebergPlan, SnapshotInfo

PathLike = str | os.PathLike[str]


class StructuredDataset(LoaderDataset):
    """Files of structured data as batches of tensors; `create_dataloader` makes it."""

    def __init__(self, source: Source | None = None, options: Options | None = None, **unknown: Any) -> None:
        if source is None or options is None or unknown:
            raise UnknownOptionError("StructuredDataset(...): use StructuredDataset.create_dataloader(path, ...).")
        super().__init__(source, options)

    @staticmethod
    def create_dataloader(
        path: PathLike | Sequence[PathLike], **options: Unpack[LoaderOptions]
    ) -> tuple[StructuredLoader, StructuredDataset]:
        """A loader over the files at `path`, and its dataset.

        Example:
            ```python
            loader, dataset = StructuredDataset.create_dataloader("data/", batch_size=1024, shuffle=True)
            for epoch in range(3):
                dataset.set_epoch(epoch)
                for batch in loader:
                    ...  # a dict of column -> tensor of shape [batch_size]
            ```

        Args:
            path: a directory (searched recursively), a glob, a file, or a list of these; any URL that fsspec opens.
            **options: see the options page, or `help(StructuredDataset.create_dataloader)` for names and defaults.

        Raises:
            UnknownOptionError: a keyword that does not exist.
            OptionError: a value that cannot work.
            DataNotFoundError: no data files at `path`.
            FileReadError: a file that cannot be read.
            ColumnNotFoundError: a column that no file has.
            SchemaMismatchError: files disagree about a column's type.
            EmptyDatasetError: the files hold no rows.
        """
        parsed = parse_options(options)
        dataset = StructuredDataset(open_files(plain_value(path), parsed), parsed)
        return StructuredLoader(dataset, parsed), dataset


class IcebergDataset(TableDataset):
    """The rows of a snapshot of an Iceberg table as batches of tensors; `create_dataloader` makes it."""

    @staticmethod
    def create_dataloader(table: Any, **options: Unpack[TableLoaderOptions]) -> tuple[StructuredLoader, IcebergDataset]:
        """A loader over a snapshot of an Iceberg table, and its dataset. Needs the iceberg extra.

        The snapshot is found once: every epoch reads the same rows, whatever is committed meanwhile.

        Example:
            ```python
            loader, dataset = IcebergDataset.create_dataloader(
                "analytics.events", catalog_config={"type": "sql", "uri": "sqlite:///catalog.db"}, batch_size=1024
            )
            ```

        Args:
            table: a name such as "namespace.table" (with `catalog_config`), a `pyiceberg.table.Table`, or the path of
                a metadata file or of a table's folder.
            **options: as those of `StructuredDataset.create_dataloader`, and those that choose catalog and snapshot.

        Raises:
            UnknownOptionError: a keyword that does not exist.
            OptionError: a value that cannot work.
            MissingExtraError: pyiceberg is not installed.
            CatalogError: the catalog cannot be reached, or refuses.
            DataNotFoundError: there is no such table.
            SnapshotError: the table has no such snapshot.
            FileReadError: a file that cannot be read.
            ColumnNotFoundError: a column that the table does not have.
            UnsupportedTypeError: a column of a type that cannot be read.
        """
        from torch_dataloader_utils.iceberg.tables import IcebergSource  # needs an extra

        parsed, of_table = parse_table_options(options)
        if parsed.read.columns is not None:
            columns = list(dict.fromkeys([*parsed.read.columns, *of_table.metadata_columns]))
            parsed = replace(parsed, read=replace(parsed.read, columns=columns))
        dataset = IcebergDataset(IcebergSource(plain_value(table), of_table), parsed)
        return StructuredLoader(dataset, parsed), dataset

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The snapshot that is read; None in a table without one."""
        return self._plan.snapshot

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition read: "partition" (column -> value), "spec_id", "files" and "records" (before deletes)."""
        return self._plan.partitions

    @property
    def _plan(self) -> IcebergPlan:
        """The plan of what the live or next pass reads."""
        plan: IcebergPlan = self.source.snapshot  # type: ignore[assignment]
        return plan


class CombinedDataset(LoaderDataset):
    """Several datasets as one, whose rows are mixed."""


def combine(
    datasets: Sequence[Any], *, weights: Sequence[float] | None = None, **options: Unpack[LoaderOptions]
) -> tuple[StructuredLoader, CombinedDataset]:
    """A loader over the rows of several datasets in one epoch, and its dataset.

    The ranks share each dataset by itself; then each rank mixes its rows of all of them, split by split, so that every
    beginning of the epoch holds rows of each in proportion; then `even` acts on what the ranks have.

    Example:
        ```python
        _, speech = StructuredDataset.create_dataloader("data/")
        _, more = StructuredDataset.create_dataloader("data/part-0.parquet")
        loader, dataset = combine([speech, more], batch_size=256, shuffle=True, even="drop")
        ```

    Args:
        datasets: datasets from `create_dataloader` (the loaders made with them are not used, nor are their options for
            ranks, order, batches and workers), and map-style datasets: any object with `__getitem__` and `__len__`
            whose samples are dicts. One that keeps ESPnet3's contract for sharded datasets (`shard(i)`,
            `total_shards`, `dist_world_size`) gives its own shards to `sharding="rotate", total_shards=...`.
        weights: how many rows of each dataset are delivered in the same time, until one ends; by default as many as it
            has. Every row is delivered once, whatever the weights.
        **options: as `create_dataloader` takes them, but for those that say what a dataset reads.

    Raises:
        OptionError: datasets whose keys or dtypes differ, options of the datasets, or a value that cannot work.
        ShardingError: numbers of shards and ranks that do not fit together.
        EmptyDatasetError: a map-style dataset without samples.
    """
    if not isinstance(datasets, (list, tuple)) or not datasets:
        raise OptionError(f"datasets={datasets!r}: expected a list of at least one dataset.")
    check_keywords(options)
    parsed = parse_options(options)
    sources = [item.source if isinstance(item, LoaderDataset) else item for item in datasets]
    dataset = CombinedDataset(combined_source(sources, weights, parsed), parsed)
    return StructuredLoader(dataset, parsed), dataset


def _show_options(function: Any, table: bool = False) -> None:
    """Let `help()` and IDEs see all options and their defaults, which are declared once."""
    hints = TableLoaderOptions.__annotations__ if table else LoaderOptions.__annotations__
    signature = inspect.signature(function)
    named = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name].__forward_arg__)
        for name, default in option_defaults(table).items()
    ]
    function.__signature__ = signature.replace(parameters=[*named, *options])


_show_options(StructuredDataset.create_dataloader)
_show_options(IcebergDataset.create_dataloader, table=True)
_show_options(TableDataset.create_dataloader)
_show_options(combine)
