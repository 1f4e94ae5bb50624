"""One call for files and tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch_dataloader_utils.api import files, tables
from torch_dataloader_utils.api.calls import implemented_by
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.features import with_features
from torch_dataloader_utils.loader.batch_types import Collated, OutputFormat
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options import Files, Options, SourceValue, parse_stream
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.sources.source import Source, open_files, open_snapshot
from torch_dataloader_utils.sources.tables import TableSource
from torch_dataloader_utils.storage.waiting import limited
from torch_dataloader_utils.typing import *
from torch_dataloader_utils.values import plain_value


def _stream(source: Any, **options: Any) -> StructuredLoader[Any, Any]:
    named = source_of(plain_value(source))
    parsed = with_features(parse_stream(named if isinstance(named, SourceValue) else None, options))
    return StructuredLoader(_opened(named, parsed), parsed)


def _opened(source: SourceValue | TableSource, options: Options) -> LoaderDataset:
    """The dataset of a source."""
    return files.opened(source, options) if isinstance(source, Files) else tables.opened(source, options)


def opened_source(source: SourceValue | TableSource, options: Options) -> Source:
    """What that dataset would read."""
    with limited(options.worker.timeout):
        if isinstance(source, Files):
            return open_files(source.path, options)
        return open_snapshot(tables.table_of(source).snapshot(None, options), options)


def source_of(given: Any) -> SourceValue | TableSource:
    """What a source stands for: paths are files, and a dict says its kind.

    Raises:
        OptionError: it is none.
    """
    if isinstance(given, (SourceValue, TableSource)):
        return given
    if isinstance(given, Mapping) and "kind" in given:
        return SourceValue.from_dict(given)
    if isinstance(given, (str, os.PathLike)) or (isinstance(given, (list, tuple)) and given):
        return Files(given)
    raise OptionError(
        f"source={shown(given)}: expected a path or a list of paths, Files(...), Iceberg(...), Delta(...), "
        "a TableSource, or a dict with kind: files, iceberg or delta."
    )


@implemented_by(_stream)
def stream(
    source: SourceLike,
    *,
    # The options: written by scripts/write_signatures.py from their declarations.
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
) -> StructuredLoader[OutputFormat, Collated]:
    """A loader of files or of a table.

    Example:
        ```python
        loader = stream("data/", batch_size=1024, shuffle=True)
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                ...  # a dict of column -> tensor of shape [batch_size]
        ```

    Args:
        source: a directory (searched recursively), a glob, a file, or a list of these; any URL that fsspec opens; or
            Files(...), Delta(...), or any TableSource.
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
        DataNotFoundError: there are no data files at a path.
        SnapshotError: the table has no such snapshot.
        FileReadError: a file cannot be read.
        ColumnNotFoundError: no file has a column.
        SchemaMismatchError: files disagree about a column's type.
        EmptyDatasetError: the files hold no rows.
    """
    raise NotImplementedError
