"""The public entrance: start here."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from torch_dataloader_utils.assembly import Source, open_files, source_of
from torch_dataloader_utils.combination import check_keywords, combined_source
from torch_dataloader_utils.dataset import LoaderDataset
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.loader import StructuredLoader
from torch_dataloader_utils.options import (
    LoaderOptions,
    Options,
    TableLoaderOptions,
    TableOptions,
    option_defaults,
    parse_options,
    parse_table_options,
    plain_value,
)
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.reading.blocks import Driver
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.manifest import Manifest
from torch_dataloader_utils.storage import Storage

if TYPE_CHECKING:
    from torch_dataloader_utils.sources.iceberg import IcebergPlan, IcebergRead, SnapshotInfo

PathLike = str | os.PathLike[str]


class StructuredDataset(LoaderDataset):
    """Files of structured data as batches of tensors."""

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


class IcebergDataset(LoaderDataset):
    """The rows of a snapshot of an Iceberg table as batches of tensors."""

    def __init__(
        self,
        source: Source,
        options: Options,
        plan: IcebergPlan,
        renewed: Callable[[], tuple[Storage, float | None]] | None = None,
    ) -> None:
        super().__init__(source, options)
        self._plan_of_table = plan
        self._renewed = renewed
        self._renew_at = _half_life(plan.expires_at)

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
            ColumnNotFoundError: a column that the table has not.
            UnsupportedTypeError: a column of a type that cannot be read.
        """
        from torch_dataloader_utils.sources.iceberg import plan_table, refreshed_storage, table_manifest  # an extra

        parsed, own = parse_table_options(options)
        table, read = plain_value(table), _table_read(parsed, own)
        plan = plan_table(table, read)
        if parsed.read.columns is not None:
            columns = list(dict.fromkeys([*parsed.read.columns, *own.metadata_columns]))
            parsed = replace(parsed, read=replace(parsed.read, columns=columns))

        def manifest() -> Manifest:
            return table_manifest(plan, parsed.read.format_options or {}, parsed.split)

        renewed = partial(refreshed_storage, table, read)
        dataset = IcebergDataset(source_of(manifest, parsed, plan.name), parsed, plan, renewed)
        return StructuredLoader(dataset, parsed), dataset

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The snapshot that is read; None in a table without one."""
        return self._plan_of_table.snapshot

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition read: "partition" (column -> value), "spec_id", "files" and "records" (before deletes)."""
        return self._plan_of_table.partitions

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank."""
        if self._passes.live is None:  # else when the next pass begins
            self._renew()
        super().set_epoch(epoch)

    def _driver(self, plan: RankPlan) -> Driver:
        self._renew()  # after the ranks have agreed: an error of one leaves no other waiting for it
        return super()._driver(plan)

    def _renew(self) -> None:
        """Ask the catalog again for the credentials of the table's files, once half of their time is over."""
        if self._renewed is None or self._renew_at is None or time.time() < self._renew_at:
            return
        storage, expires_at = self._renewed()
        scan = self._source.scan
        assert isinstance(scan, ScanSpec)
        if storage != scan.storage:
            self._read_by(replace(scan, storage=storage))
        self._plan_of_table = replace(self._plan_of_table, storage=storage, expires_at=expires_at)
        self._renew_at = _half_life(expires_at)

    def __getstate__(self) -> dict[str, Any]:
        """Plain data, as `LoaderDataset` has it; no catalog: a copy keeps the credentials that it has."""
        return {**super().__getstate__(), "plan": self._plan_of_table}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plan_of_table = state["plan"]
        self._renewed = self._renew_at = None


def _half_life(expires_at: float | None) -> float | None:
    """When half of the time from now is over; times are seconds since 1970."""
    return None if expires_at is None else (time.time() + expires_at) / 2


def _table_read(options: Options, own: TableOptions) -> IcebergRead:
    """What the options ask of a table."""
    from torch_dataloader_utils.sources.iceberg import IcebergRead, SnapshotChoice  # needs an extra

    read = options.read
    return IcebergRead(
        catalog_config=own.catalog_config,
        snapshot=SnapshotChoice(own.snapshot_id, own.ref, own.as_of, own.start_snapshot_id, own.end_snapshot_id),
        filters=read.filters,
        scan_filter=own.scan_filter,
        columns=read.columns,
        metadata_columns=tuple(own.metadata_columns),
        storage_options=read.storage_options,
        filesystem=read.filesystem,
    )


class CombinedDataset(LoaderDataset):
    """Several datasets as one, whose rows are mixed."""


def combine(
    datasets: Sequence[Any], *, weights: Sequence[float] | None = None, **options: Unpack[LoaderOptions]
) -> tuple[StructuredLoader, CombinedDataset]:
    """A loader over the rows of several datasets in one epoch, and its dataset.

    Each dataset is dealt to the ranks by itself; then their rows are mixed on each rank, split by split, so that every
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
        weights: how many rows of each dataset come in the same time, until one ends; by default as many as it has.
            Every row comes once, whatever the weights.
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


def _signature(*first: inspect.Parameter, table: bool = False) -> inspect.Signature:
    """The signature `(*first, *, every option=default)`, for `help()` and IDEs."""
    hints = TableLoaderOptions.__annotations__ if table else LoaderOptions.__annotations__
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in option_defaults(table).items()
    ]
    return inspect.Signature([*first, *options])


_PATH = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=PathLike | Sequence[PathLike])
# One declaration of the options serves help(), IDEs and the docs.
StructuredDataset.create_dataloader.__signature__ = _signature(_PATH)  # type: ignore[attr-defined]
_TABLE = inspect.Parameter("table", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Any)
IcebergDataset.create_dataloader.__signature__ = _signature(_TABLE, table=True)  # type: ignore[attr-defined]
_DATASETS = inspect.Parameter("datasets", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Sequence[Any])
_WEIGHTS = inspect.Parameter("weights", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Sequence[float] | None)
combine.__signature__ = _signature(_DATASETS, _WEIGHTS)  # type: ignore[attr-defined]
