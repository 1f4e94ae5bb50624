"""Tables as batches: of any format, Iceberg's and Delta Lake's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from torch_dataloader_utils.api.calls import implemented_by
from torch_dataloader_utils.errors import OptionError, UnknownOptionError
from torch_dataloader_utils.features import with_features
from torch_dataloader_utils.loader.batch_types import Collated, OutputFormat
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.loader.tables import SnapshotDataset
from torch_dataloader_utils.options import (
    Delta,
    Iceberg,
    Options,
    SourceValue,
    option_defaults,
    parse_call,
    parse_options,
)
from torch_dataloader_utils.sources.tables import TableSource
from torch_dataloader_utils.storage.waiting import limited
from torch_dataloader_utils.typing import *

if TYPE_CHECKING:
    from torch_dataloader_utils.delta.snapshot import DeltaSnapshot
    from torch_dataloader_utils.iceberg.tables import IcebergPlan, SnapshotInfo

_OF_FILES = option_defaults("files").keys() - option_defaults("table").keys()  # a table's own log says


def _table_loader(table: TableSource, **options: Any) -> tuple[StructuredLoader[Any, Any], Any]:
    for name in options:
        if name in _OF_FILES:
            checked = name == "on_error"
            why = "only an Iceberg table is checked" if checked else "the table's own log determines it"
            raise UnknownOptionError(f"{name!r} is an option for files: leave it out, because {why}.")
    if not isinstance(table, TableSource):
        raise OptionError(f"table={table!r}: expected a TableSource (with pinned, newest and snapshot).")
    return _loader(table, parse_options(options, "table"))


def table_of(source: SourceValue | TableSource) -> Any:
    """The table that a source names: an `IcebergSource`, a `DeltaSource`, or the one of the user's own."""
    if isinstance(source, Iceberg):
        from torch_dataloader_utils.iceberg.tables import IcebergSource  # needs an extra

        return IcebergSource(source)
    if isinstance(source, Delta):
        from torch_dataloader_utils.delta.tables import DeltaSource  # needs an extra

        return DeltaSource(source)
    assert isinstance(source, TableSource)
    return source


def opened(source: SourceValue | TableSource, options: Options) -> SnapshotDataset:
    """The dataset of a table."""
    with limited(options.worker.timeout):
        table = table_of(source)
        if isinstance(source, Iceberg):
            return IcebergDataset(table, options, table.options)
        if isinstance(source, Delta):
            return DeltaDataset(table, options, table.options)
        return TableDataset(table, options)


def _loader(source: SourceValue | TableSource, options: Options) -> tuple[StructuredLoader[Any, Any], SnapshotDataset]:
    options = with_features(options)
    dataset = opened(source, options)
    return StructuredLoader(dataset, options), dataset


class TableDataset(SnapshotDataset):
    """The rows of a snapshot of a table as batches of tensors; created by `create_dataloader`."""

    @staticmethod
    @implemented_by(_table_loader)
    def create_dataloader(
        table: TableSource,
        *,
        # The options: written by scripts/write_signatures.py from their declarations.
        columns: Sequence[str] | None = None,
        filters: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
        metadata_columns: Sequence[str] = (),
        cache: CacheLike | None = None,
        format_options: Mapping[str, Any] | None = None,
        transform: TransformLike | None = None,
        subset: SubsetLike | None = None,
        fraction: SampleLike | None = None,
        limit: int | None = None,
        class_weights: Mapping[str, Mapping[str | int | bool | None, float] | Literal["balanced"]] | None = None,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: Any = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        ranks: RanksLike | None = None,
        sharding: ShardingLike = "interleave",
        canonical_ranks: int | None = None,
        even: EvenLike | None = None,
        count_rows: bool = False,
        steps_per_epoch: int | None = None,
        shuffle: ShuffleLike = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        batch_size: int = 1024,
        last_batch: Literal["partial", "drop", "pad", "wrap"] = "partial",
        valid_key: str = "valid",
        output_format: OutputFormat = "torch",  # type: ignore[assignment]
        collate_fn: Callable[[Any], Collated] | None = None,
        batch_tokens: BucketsLike | None = None,
        pack: PackLike | None = None,
        sequences: WindowsLike | None = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        jagged: Mapping[str, Sequence[str]] | None = None,
        dtypes: Mapping[Any, Any] | Any = None,
        nulls: NullsLike = "error",
        strings: StringsLike = "list",
        lists: ListsLike = "ragged",
        decimals: Literal["float64", "scaled"] | Mapping[str, str] = "float64",
        num_workers: int | None = None,
        worker_mode: WorkerModeLike = "threads",
        prefetch_bytes: int | str = "256MiB",
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 600,
        show_progress: bool | Literal["all"] = False,
        progress_interval_sec: float = 120,
        follow: FollowLike = False,
    ) -> tuple[StructuredLoader[OutputFormat, Collated], TableDataset]:
        """A loader of a snapshot of a table of any format, and its dataset.

        The snapshot is resolved once: every epoch reads the same rows, regardless of later commits.

        Args:
            table: the table, which finds its snapshots.
            columns: the columns of a batch, in this order, or patterns such as "f*"; None for all.
            filters: the rows to keep: DNF tuples, a pyarrow Expression, or SQL text (iceberg extra).
            storage_options: options of the path's fsspec filesystem, such as credentials.
            filesystem: an existing fsspec or pyarrow filesystem, instead of storage_options.
            metadata_columns: columns that name rows, "_file" and "_pos", to add.
            cache: a local folder that caches remote data; Cache(...) limits its size.
            format_options: options of the file format, such as {"on_bad_lines": "skip"}.
            transform: maps each Arrow record batch to another; or a list of such functions, or Transform(...).
            subset: one of the subsets that rows are split into by hash: Subsets({"train": 0.8, "val": 0.2})["train"].
            fraction: a sample of this share of the rows, by hash, or Sample(...); larger samples hold smaller ones.
            limit: only the first rows in file order, after filters.
            class_weights: copies of rows by label, drawn in each epoch: {"label": {1: 2.5}} or {"label": "balanced"}.
            split_bytes: the maximum decoded size of a split; None for "128MiB", or "8MiB" under a shuffle.
            split_rows: the same in rows; overrides split_bytes.
            split_strategy: an object with split(files) or generate(files, ...) that cuts files instead.
            num_ranks: the number of ranks that share the rows; None detects it.
            rank: this process's global rank; give it together with num_ranks.
            ranks: the processes that are the ranks: a process group, a DeviceMesh, an Accelerator, or Mesh(...).
            sharding: how ranks share rows: a word, Rotate(...), Strided(...), a function, or a dict with kind.
            canonical_ranks: keeps global batches the same for every number of ranks that divides this one.
            even: equal steps on all ranks: "drop" or "pad" rows, "sync" or Sync(...); "none": unequal, no warning.
            count_rows: count rows in a scan if files do not record them.
            steps_per_epoch: exactly this many batches on each rank in every epoch.
            shuffle: True: rows in windows; "splits"; "all": all rows; "partition": by partition; or Shuffle(...).
            shuffle_seed: the seed of all orders; the same on every rank.
            shuffle_buffer_size: rows per window; without shuffle, rows mix with their neighbours only.
            batch_size: rows per batch.
            last_batch: a short last batch: deliver it, drop it, or fill it up with repeated rows.
            valid_key: the batch entry that is False for repeated rows and failed ones, if there can be any.
            output_format: "torch" and "numpy" (dicts), "arrow" (record batches) or "dict" (lists).
            collate_fn: maps each finished batch to whatever the loader should yield.
            batch_tokens: the maximum of rows * longest row in a batch, or Buckets(...); batch_size limits the rows.
            pack: packs documents into sequences of this many tokens, or Pack(...); batches are [B, L] tensors.
            sequences: windows over time of the rows of each key, by Windows(length, order=...): [B, length] tensors.
            stack: columns to join into one [B, k] tensor: {"key": ["column", ...]}.
            jagged: columns of lists to join as in a KeyedJaggedTensor: {"key": ["column", ...]}.
            dtypes: casts: "float32" for all floats, or {"column" or "float64": dtype or its name}.
            nulls: nulls where the dtype holds none: raise, add a mask, drop the row, or Fill(value); or by column.
            strings: strings as lists, as bytes with offsets, or as "codes" of a vocabulary, Codes(...); or by column.
            lists: lists of varying length: values with offsets, nested tensors, or padded, Padded(...); or by column.
            decimals: decimals as rounded floats, or as exact scaled integers; or by column.
            num_workers: I/O workers of a rank; None reads one shard on all cores, 0 in the calling thread.
            worker_mode: the kind of workers: "threads", "processes" or Processes(...); processes need num_workers.
            prefetch_bytes: the maximum size of decoded data waiting for delivery, per rank.
            pin_memory: put batches in page-locked memory, for faster copies to a GPU.
            device: put batches on "cuda", "cuda:1" or a torch.device; None and "cpu": in main memory.
            timeout: seconds to wait for a batch or a store before BatchTimeoutError; 0 waits forever.
            show_progress: a bar for each epoch and for long work at construction; "all": on all ranks.
            progress_interval_sec: seconds between log lines about progress, where no bar is shown.
            follow: each pass after the first reads what was added since the pass before it; Follow(...) says how.

        Raises:
            UnknownOptionError: a keyword does not exist.
            OptionError: a value cannot work.
            SnapshotError: the table has no such snapshot.
            FileReadError: a file cannot be read.
            ColumnNotFoundError: the table does not have a column.
        """
        raise NotImplementedError


def _iceberg_loader(table: Any, **options: Any) -> tuple[StructuredLoader[Any, Any], Any]:
    return _loader(*parse_call("iceberg", table, options))


class IcebergDataset(TableDataset):
    """The rows of a snapshot of an Iceberg table as batches of tensors; created by `create_dataloader`."""

    @staticmethod
    @implemented_by(_iceberg_loader)
    def create_dataloader(
        table: Any,
        *,
        # The options: written by scripts/write_signatures.py from their declarations.
        catalog_config: CatalogLike | None = None,
        snapshot_id: int | None = None,
        ref: str | None = None,
        as_of: datetime | str | int | None = None,
        appended: AppendedLike | None = None,
        follow: FollowLike = False,
        scan_filter: Any = None,
        metadata_columns: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        filters: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
        cache: CacheLike | None = None,
        format_options: Mapping[str, Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        transform: TransformLike | None = None,
        subset: SubsetLike | None = None,
        fraction: SampleLike | None = None,
        limit: int | None = None,
        class_weights: Mapping[str, Mapping[str | int | bool | None, float] | Literal["balanced"]] | None = None,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: Any = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        ranks: RanksLike | None = None,
        sharding: ShardingLike = "interleave",
        canonical_ranks: int | None = None,
        even: EvenLike | None = None,
        count_rows: bool = False,
        steps_per_epoch: int | None = None,
        shuffle: ShuffleLike = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        batch_size: int = 1024,
        last_batch: Literal["partial", "drop", "pad", "wrap"] = "partial",
        valid_key: str = "valid",
        output_format: OutputFormat = "torch",  # type: ignore[assignment]
        collate_fn: Callable[[Any], Collated] | None = None,
        batch_tokens: BucketsLike | None = None,
        pack: PackLike | None = None,
        sequences: WindowsLike | None = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        jagged: Mapping[str, Sequence[str]] | None = None,
        dtypes: Mapping[Any, Any] | Any = None,
        nulls: NullsLike = "error",
        strings: StringsLike = "list",
        lists: ListsLike = "ragged",
        decimals: Literal["float64", "scaled"] | Mapping[str, str] = "float64",
        num_workers: int | None = None,
        worker_mode: WorkerModeLike = "threads",
        prefetch_bytes: int | str = "256MiB",
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 600,
        show_progress: bool | Literal["all"] = False,
        progress_interval_sec: float = 120,
    ) -> tuple[StructuredLoader[OutputFormat, Collated], IcebergDataset]:
        """A loader of a snapshot of an Iceberg table, and its dataset. Needs the iceberg extra.

        The snapshot is resolved once: every epoch reads the same rows, regardless of later commits.

        Example:
            ```python
            loader, dataset = IcebergDataset.create_dataloader(
                "analytics.events", catalog_config={"type": "sql", "uri": "sqlite:///catalog.db"}, batch_size=1024
            )
            ```

        Args:
            table: a name such as "namespace.table" (with `catalog_config`), a `pyiceberg.table.Table`, or the path of
                a metadata file or of a table's folder.
            catalog_config: a name in pyiceberg's configuration, properties for load_catalog, or a pyiceberg Catalog.
            snapshot_id: read this snapshot, with its own schema.
            ref: read this branch or tag.
            as_of: read what was current at this time: a datetime with zone, ISO text, or milliseconds.
            appended: read only rows appended after a snapshot: Appended(...).
            follow: each pass after the first reads what was added since the pass before it; Follow(...) says how.
            scan_filter: skips files and row groups as filters do, but drops no single row.
            metadata_columns: columns that name rows, "_file" and "_pos", to add.
            columns: the columns of a batch, in this order, or patterns such as "f*"; None for all.
            filters: the rows to keep: DNF tuples, a pyarrow Expression, or SQL text (iceberg extra).
            storage_options: options of the path's fsspec filesystem, such as credentials.
            filesystem: an existing fsspec or pyarrow filesystem, instead of storage_options.
            cache: a local folder that caches remote data; Cache(...) limits its size.
            format_options: options of the file format, such as {"on_bad_lines": "skip"}.
            on_error: damaged files: an error, or "skip" decodes all files once and leaves those out.
            transform: maps each Arrow record batch to another; or a list of such functions, or Transform(...).
            subset: one of the subsets that rows are split into by hash: Subsets({"train": 0.8, "val": 0.2})["train"].
            fraction: a sample of this share of the rows, by hash, or Sample(...); larger samples hold smaller ones.
            limit: only the first rows in file order, after filters.
            class_weights: copies of rows by label, drawn in each epoch: {"label": {1: 2.5}} or {"label": "balanced"}.
            split_bytes: the maximum decoded size of a split; None for "128MiB", or "8MiB" under a shuffle.
            split_rows: the same in rows; overrides split_bytes.
            split_strategy: an object with split(files) or generate(files, ...) that cuts files instead.
            num_ranks: the number of ranks that share the rows; None detects it.
            rank: this process's global rank; give it together with num_ranks.
            ranks: the processes that are the ranks: a process group, a DeviceMesh, an Accelerator, or Mesh(...).
            sharding: how ranks share rows: a word, Rotate(...), Strided(...), a function, or a dict with kind.
            canonical_ranks: keeps global batches the same for every number of ranks that divides this one.
            even: equal steps on all ranks: "drop" or "pad" rows, "sync" or Sync(...); "none": unequal, no warning.
            count_rows: count rows in a scan if files do not record them.
            steps_per_epoch: exactly this many batches on each rank in every epoch.
            shuffle: True: rows in windows; "splits"; "all": all rows; "partition": by partition; or Shuffle(...).
            shuffle_seed: the seed of all orders; the same on every rank.
            shuffle_buffer_size: rows per window; without shuffle, rows mix with their neighbours only.
            batch_size: rows per batch.
            last_batch: a short last batch: deliver it, drop it, or fill it up with repeated rows.
            valid_key: the batch entry that is False for repeated rows and failed ones, if there can be any.
            output_format: "torch" and "numpy" (dicts), "arrow" (record batches) or "dict" (lists).
            collate_fn: maps each finished batch to whatever the loader should yield.
            batch_tokens: the maximum of rows * longest row in a batch, or Buckets(...); batch_size limits the rows.
            pack: packs documents into sequences of this many tokens, or Pack(...); batches are [B, L] tensors.
            sequences: windows over time of the rows of each key, by Windows(length, order=...): [B, length] tensors.
            stack: columns to join into one [B, k] tensor: {"key": ["column", ...]}.
            jagged: columns of lists to join as in a KeyedJaggedTensor: {"key": ["column", ...]}.
            dtypes: casts: "float32" for all floats, or {"column" or "float64": dtype or its name}.
            nulls: nulls where the dtype holds none: raise, add a mask, drop the row, or Fill(value); or by column.
            strings: strings as lists, as bytes with offsets, or as "codes" of a vocabulary, Codes(...); or by column.
            lists: lists of varying length: values with offsets, nested tensors, or padded, Padded(...); or by column.
            decimals: decimals as rounded floats, or as exact scaled integers; or by column.
            num_workers: I/O workers of a rank; None reads one shard on all cores, 0 in the calling thread.
            worker_mode: the kind of workers: "threads", "processes" or Processes(...); processes need num_workers.
            prefetch_bytes: the maximum size of decoded data waiting for delivery, per rank.
            pin_memory: put batches in page-locked memory, for faster copies to a GPU.
            device: put batches on "cuda", "cuda:1" or a torch.device; None and "cpu": in main memory.
            timeout: seconds to wait for a batch or a store before BatchTimeoutError; 0 waits forever.
            show_progress: a bar for each epoch and for long work at construction; "all": on all ranks.
            progress_interval_sec: seconds between log lines about progress, where no bar is shown.

        Raises:
            UnknownOptionError: a keyword does not exist.
            OptionError: a value cannot work.
            MissingExtraError: pyiceberg is not installed.
            CatalogError: the catalog cannot be reached or refuses access.
            DataNotFoundError: there is no such table.
            SnapshotError: the table has no such snapshot.
            FileReadError: a file cannot be read.
            ColumnNotFoundError: the table does not have a column.
            UnsupportedTypeError: the type of a column cannot be read.
        """
        raise NotImplementedError

    @property
    def snapshot(self) -> SnapshotInfo | None:
        """The snapshot that is read; None if the table has none."""
        return self._plan.snapshot

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition read: "partition" (column -> value), "spec_id", "files" and "records" (before deletes)."""
        return self._plan.partitions

    @property
    def _plan(self) -> IcebergPlan:
        """The plan of the live or next pass."""
        plan: IcebergPlan = self._source.snapshot  # type: ignore[assignment]
        return plan


def _delta_loader(table: Any, **options: Any) -> tuple[StructuredLoader[Any, Any], Any]:
    return _loader(*parse_call("delta", table, options))


class DeltaDataset(SnapshotDataset):
    """The rows of a version of a Delta table as batches of tensors; created by `create_dataloader`."""

    @staticmethod
    @implemented_by(_delta_loader)
    def create_dataloader(
        table: Any,
        *,
        # The options: written by scripts/write_signatures.py from their declarations.
        version: int | None = None,
        as_of: datetime | str | int | None = None,
        follow: FollowLike = False,
        metadata_columns: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        filters: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache: CacheLike | None = None,
        format_options: Mapping[str, Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        transform: TransformLike | None = None,
        subset: SubsetLike | None = None,
        fraction: SampleLike | None = None,
        limit: int | None = None,
        class_weights: Mapping[str, Mapping[str | int | bool | None, float] | Literal["balanced"]] | None = None,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: Any = None,
        num_ranks: int | None = None,
        rank: int | None = None,
        ranks: RanksLike | None = None,
        sharding: ShardingLike = "interleave",
        canonical_ranks: int | None = None,
        even: EvenLike | None = None,
        count_rows: bool = False,
        steps_per_epoch: int | None = None,
        shuffle: ShuffleLike = False,
        shuffle_seed: int = 42,
        shuffle_buffer_size: int | None = None,
        batch_size: int = 1024,
        last_batch: Literal["partial", "drop", "pad", "wrap"] = "partial",
        valid_key: str = "valid",
        output_format: OutputFormat = "torch",  # type: ignore[assignment]
        collate_fn: Callable[[Any], Collated] | None = None,
        batch_tokens: BucketsLike | None = None,
        pack: PackLike | None = None,
        sequences: WindowsLike | None = None,
        stack: Mapping[str, Sequence[str]] | None = None,
        jagged: Mapping[str, Sequence[str]] | None = None,
        dtypes: Mapping[Any, Any] | Any = None,
        nulls: NullsLike = "error",
        strings: StringsLike = "list",
        lists: ListsLike = "ragged",
        decimals: Literal["float64", "scaled"] | Mapping[str, str] = "float64",
        num_workers: int | None = None,
        worker_mode: WorkerModeLike = "threads",
        prefetch_bytes: int | str = "256MiB",
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 600,
        show_progress: bool | Literal["all"] = False,
        progress_interval_sec: float = 120,
    ) -> tuple[StructuredLoader[OutputFormat, Collated], DeltaDataset]:
        """A loader of a version of a Delta table, and its dataset. Needs the delta extra.

        The version is resolved once: every epoch reads the same rows, regardless of later commits.

        Example:
            ```python
            loader, dataset = DeltaDataset.create_dataloader("s3://bucket/events", version=12, batch_size=1024)
            for batch in loader:
                batch["feature_a"]  # a tensor
            ```

        Args:
            table: path or URL of the table's folder, "uc://catalog.schema.table" in a Unity Catalog, or a
                deltalake.DeltaTable, which is read at its version.
            version: read this version, with its own schema.
            as_of: read what was current at this time: a datetime with zone, ISO text, or milliseconds.
            follow: each pass after the first reads what was added since the pass before it; Follow(...) says how.
            metadata_columns: columns that name rows, "_file" and "_pos", to add.
            columns: the columns of a batch, in this order, or patterns such as "f*"; None for all.
            filters: the rows to keep: DNF tuples, a pyarrow Expression, or SQL text (iceberg extra).
            storage_options: options of the path's fsspec filesystem, such as credentials.
            cache: a local folder that caches remote data; Cache(...) limits its size.
            format_options: options of the file format, such as {"on_bad_lines": "skip"}.
            on_error: damaged files: an error, or "skip" decodes all files once and leaves those out.
            transform: maps each Arrow record batch to another; or a list of such functions, or Transform(...).
            subset: one of the subsets that rows are split into by hash: Subsets({"train": 0.8, "val": 0.2})["train"].
            fraction: a sample of this share of the rows, by hash, or Sample(...); larger samples hold smaller ones.
            limit: only the first rows in file order, after filters.
            class_weights: copies of rows by label, drawn in each epoch: {"label": {1: 2.5}} or {"label": "balanced"}.
            split_bytes: the maximum decoded size of a split; None for "128MiB", or "8MiB" under a shuffle.
            split_rows: the same in rows; overrides split_bytes.
            split_strategy: an object with split(files) or generate(files, ...) that cuts files instead.
            num_ranks: the number of ranks that share the rows; None detects it.
            rank: this process's global rank; give it together with num_ranks.
            ranks: the processes that are the ranks: a process group, a DeviceMesh, an Accelerator, or Mesh(...).
            sharding: how ranks share rows: a word, Rotate(...), Strided(...), a function, or a dict with kind.
            canonical_ranks: keeps global batches the same for every number of ranks that divides this one.
            even: equal steps on all ranks: "drop" or "pad" rows, "sync" or Sync(...); "none": unequal, no warning.
            count_rows: count rows in a scan if files do not record them.
            steps_per_epoch: exactly this many batches on each rank in every epoch.
            shuffle: True: rows in windows; "splits"; "all": all rows; "partition": by partition; or Shuffle(...).
            shuffle_seed: the seed of all orders; the same on every rank.
            shuffle_buffer_size: rows per window; without shuffle, rows mix with their neighbours only.
            batch_size: rows per batch.
            last_batch: a short last batch: deliver it, drop it, or fill it up with repeated rows.
            valid_key: the batch entry that is False for repeated rows and failed ones, if there can be any.
            output_format: "torch" and "numpy" (dicts), "arrow" (record batches) or "dict" (lists).
            collate_fn: maps each finished batch to whatever the loader should yield.
            batch_tokens: the maximum of rows * longest row in a batch, or Buckets(...); batch_size limits the rows.
            pack: packs documents into sequences of this many tokens, or Pack(...); batches are [B, L] tensors.
            sequences: windows over time of the rows of each key, by Windows(length, order=...): [B, length] tensors.
            stack: columns to join into one [B, k] tensor: {"key": ["column", ...]}.
            jagged: columns of lists to join as in a KeyedJaggedTensor: {"key": ["column", ...]}.
            dtypes: casts: "float32" for all floats, or {"column" or "float64": dtype or its name}.
            nulls: nulls where the dtype holds none: raise, add a mask, drop the row, or Fill(value); or by column.
            strings: strings as lists, as bytes with offsets, or as "codes" of a vocabulary, Codes(...); or by column.
            lists: lists of varying length: values with offsets, nested tensors, or padded, Padded(...); or by column.
            decimals: decimals as rounded floats, or as exact scaled integers; or by column.
            num_workers: I/O workers of a rank; None reads one shard on all cores, 0 in the calling thread.
            worker_mode: the kind of workers: "threads", "processes" or Processes(...); processes need num_workers.
            prefetch_bytes: the maximum size of decoded data waiting for delivery, per rank.
            pin_memory: put batches in page-locked memory, for faster copies to a GPU.
            device: put batches on "cuda", "cuda:1" or a torch.device; None and "cpu": in main memory.
            timeout: seconds to wait for a batch or a store before BatchTimeoutError; 0 waits forever.
            show_progress: a bar for each epoch and for long work at construction; "all": on all ranks.
            progress_interval_sec: seconds between log lines about progress, where no bar is shown.

        Raises:
            UnknownOptionError: a keyword does not exist.
            OptionError: a value cannot work.
            MissingExtraError: deltalake is not installed.
            DataNotFoundError: there is no such table.
            SnapshotError: the table has no such version.
            FileReadError: the log or a file cannot be read, or the table requires of readers what is not supported.
            ColumnNotFoundError: the table does not have a column.
            UnsupportedTypeError: the type of a column cannot be read.
        """
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The version that is read."""
        version = self._plan.cursor.end
        assert isinstance(version, int)
        return version

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Each partition read: "partition" (column -> value), "files" and "records" (before deletes)."""
        return self._plan.partitions

    @property
    def _plan(self) -> DeltaSnapshot:
        """The snapshot of the live or next pass."""
        plan: DeltaSnapshot = self._source.snapshot  # type: ignore[assignment]
        return plan
