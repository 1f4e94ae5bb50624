"""The public entrance: start here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from torch_dataloader_utils.checkpoint.positions import EpochPosition
from torch_dataloader_utils.errors import OptionError, UnknownOptionError
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.loader import StructuredLoader
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
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.sources.combine import check_keywords, combined_source
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.sources.source import Source, open_files, source_of

if TYPE_CHECKING:
    from torch_dataloader_utils.iceberg.tables import (
        IcebergPlan,
        IcebergRead,
        PinnedSnapshot,
        SnapshotInfo,
        TableHistory,
    )

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


class IcebergDataset(LoaderDataset):
    """The rows of a snapshot of an Iceberg table as batches of tensors; `create_dataloader` makes it."""

    def __init__(
        self,
        plan: IcebergPlan | None = None,
        options: Options | None = None,
        history: TableHistory | None = None,
        **unknown: Any,
    ) -> None:
        if plan is None or options is None or unknown:
            raise UnknownOptionError("IcebergDataset(...): use IcebergDataset.create_dataloader(table, ...).")
        self._history: TableHistory | None = history
        super().__init__(_table_source(plan, options), options)

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
        from torch_dataloader_utils.iceberg.tables import TableHistory, plan_table  # needs an extra

        parsed, own = parse_table_options(options)
        table, read = plain_value(table), _table_read(parsed, own)
        plan = plan_table(table, read)
        if parsed.read.columns is not None:
            columns = list(dict.fromkeys([*parsed.read.columns, *own.metadata_columns]))
            parsed = replace(parsed, read=replace(parsed.read, columns=columns))
        dataset = IcebergDataset(plan, parsed, TableHistory(table, read))
        return StructuredLoader(dataset, parsed), dataset

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The snapshot that is read; None in a table without one."""
        return self._table.snapshot

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition read: "partition" (column -> value), "spec_id", "files" and "records" (before deletes)."""
        return self._table.partitions

    def advance(self, appended_only: bool = False) -> bool:
        """Move to the newest snapshot of the branch that is read: whether there was a newer one.

        Call it between epochs, on every rank: the newest is what rank 0 sees. During a pass it applies from the next
        one on. A copy of the dataset in another process stays where it is.

        Args:
            appended_only: read only the rows appended since the snapshot that was read before. Where there is no newer
                snapshot, nothing changes.

        Raises:
            OptionError: the options pin the snapshot, or this is a copy.
            CatalogError: the catalog cannot be reached, or refuses.
            SnapshotError: with `appended_only`, a snapshot since then has expired, or changed rows otherwise (which
                compactions do not): says which.
        """
        shard = self._options.shard
        here: PinnedSnapshot = self._epochs.next_source.table.pinned
        there = self._known_history("advance()").newest(shard.num_ranks, shard.peers)
        newer = there.end_snapshot_id != here.end_snapshot_id
        if appended_only:
            there = replace(there, start_snapshot_id=here.end_snapshot_id)
        if newer or (not appended_only and there.start_snapshot_id != here.start_snapshot_id):
            self._epochs.move_to(self._source_at(there))
        return newer

    def source_cursor(self) -> dict[str, Any]:
        """Where in the table's history the live or next pass reads: ids of snapshots and schema, JSON-able."""
        pin = self._table.pinned
        return {"start": pin.start_snapshot_id, "end": pin.end_snapshot_id, "schema": pin.schema_id}

    def restore_source(self, cursor: Mapping[str, Any]) -> None:
        """Read at this place of the table's history, unless the options pin another. A live pass ends.

        Raises:
            OptionError: this is a copy of the dataset.
            SnapshotError: the table does not have the snapshot any more.
        """
        from torch_dataloader_utils.iceberg.tables import PinnedSnapshot  # needs an extra

        here = self._table.pinned
        pin = PinnedSnapshot(cursor["end"], cursor["start"], cursor["schema"], here.ref)
        if self._history is not None and self._history.pinned_by is not None:
            return
        if pin != here:
            source = self._source_at(pin)
            self._passes.load(EpochPosition(self._passes.epoch))
            self._epochs.move_to(source)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`: call it before each epoch, with the same number on every rank."""
        super().set_epoch(epoch)
        with self._passes.turn:
            if self._passes.live is None:  # else when the next pass begins
                self._renew()

    def _renew(self) -> None:
        """Let worker processes, too, have the latest credentials."""
        scan = self.source.scan
        assert isinstance(scan, ScanSpec)
        storage = replace(scan.storage.latest, renewal=scan.storage.renewal)
        if storage != scan.storage:
            self._epochs.read_by(replace(scan, storage=storage))

    @property
    def _table(self) -> IcebergPlan:
        """The plan of what the live or next pass reads."""
        plan: IcebergPlan = self.source.table
        return plan

    def _known_history(self, asked: str) -> TableHistory:
        if self._history is None:
            raise OptionError(
                f"{asked}: this dataset is a copy, which holds no catalog: call it on the one that create_dataloader "
                "made."
            )
        return self._history

    def _source_at(self, pin: PinnedSnapshot) -> Source:
        """What another snapshot is read from."""
        return _table_source(self._known_history("another snapshot than its own").plan(pin), self._options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._history = None  # it would hold a catalog
        super().__setstate__(state)


def _table_source(plan: IcebergPlan, options: Options) -> Source:
    from torch_dataloader_utils.iceberg.tables import table_manifest  # needs an extra

    def manifest() -> FileManifest:
        return table_manifest(plan, options.read.format_options or {}, options.split)

    return replace(source_of(manifest, options, plan.name), table=plan)


def _table_read(options: Options, own: TableOptions) -> IcebergRead:
    """What the options ask of a table."""
    from torch_dataloader_utils.iceberg.tables import IcebergRead, SnapshotChoice  # needs an extra

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
