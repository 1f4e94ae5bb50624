"""The keywords of `create_dataloader`, grouped by topic; each is declared once, with default, check and description.

All of them accept plain values, so that a config file can build a loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.options.even import EVEN
from torch_dataloader_utils.options.lists import ListsLike, check_lists
from torch_dataloader_utils.options.nulls import NullsLike, check_nulls, nulls_text
from torch_dataloader_utils.options.ranks import RankOptions
from torch_dataloader_utils.options.sharding import ShardingOptions, of_sharding
from torch_dataloader_utils.options.sources import Files, Hive
from torch_dataloader_utils.options.strings import StringsLike, check_strings
from torch_dataloader_utils.options.workers import device_name
from torch_dataloader_utils.progress import check_bars
from torch_dataloader_utils.values import (
    ByColumn,
    Checked,
    a,
    credentials,
    flag,
    function,
    interval,
    mapping,
    maybe,
    name_lists,
    names,
    num_bytes,
    one_of,
    option,
    option_of,
    seconds,
    values,
    whole,
    word,
)

MOST_WORKERS = 4096
LAST_BATCH = ("partial", "drop", "pad", "wrap")

_split_strategy = values(
    "an object with split(files) or generate(files, num_workers, epoch, num_ranks, rank)",
    lambda value: not isinstance(value, (str, bytes)) and (hasattr(value, "split") or hasattr(value, "generate")),
)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Checked):
    """What is read, and from where."""

    format: str | None = option_of(Files, "format")
    columns: Sequence[str] | None = option(
        None, maybe(names), doc='the columns of a batch, in this order, or patterns such as "f*"; None for all'
    )
    filters: Any = option(None, doc="the rows to keep: DNF tuples, a pyarrow Expression, or SQL text (iceberg extra)")
    partitioning: Hive | str | None = option_of(Files, "partitioning", given="PartitioningLike")
    schema: Any = option_of(Files, "schema")
    # Credentials: never in a repr, a log or an error.
    storage_options: Mapping[str, Any] | None = option(
        None,
        credentials("as the fsspec filesystem of the path takes it"),
        doc="options of the path's fsspec filesystem, such as credentials",
        repr=False,
    )
    filesystem: Any = option(
        None, doc="an existing fsspec or pyarrow filesystem, instead of storage_options", repr=False
    )
    manifest: str | os.PathLike[str] | None = option_of(Files, "manifest")
    metadata_columns: Sequence[str] = option_of(Files, "metadata_columns")
    cache: Cache | None = option(
        None,
        maybe(a(Cache)),
        given="CacheLike | None",
        doc="a local folder that caches remote data; Cache(...) limits its size",
    )
    format_options: Mapping[str, Any] | None = option(
        None, mapping("option -> value"), doc='options of the file format, such as {"on_bad_lines": "skip"}'
    )
    on_error: str = option(
        "raise",
        one_of("raise", "skip"),
        doc='damaged files: an error, or "skip" decodes all files once and leaves those out',
    )
    transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None = option(
        None,
        given="TransformLike | None",
        doc="maps each Arrow record batch to another; or a list of such functions, or Transform(...)",
    )
    transform_rows: str = option("same", keyword=False)
    transform_schema: Any = option(None, keyword=False)
    transform_format: str = option("arrow", keyword=False)
    transform_random: bool = option(False, keyword=False)
    transform_on_error: Any = option("raise", keyword=False)
    transform_max_errors: float = option(0.01, keyword=False)

    @property
    def transform_skips(self) -> bool:
        """Whether rows for which the transform fails are no errors."""
        return self.transform is not None and self.transform_on_error != "raise"


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Checked):
    """How files are cut into splits."""

    split_bytes: int | str | None = option(
        None, maybe(num_bytes), doc='the maximum decoded size of a split; None for "128MiB", or "8MiB" under a shuffle'
    )
    split_rows: int | None = option(None, maybe(whole(1)), doc="the same in rows; overrides split_bytes")
    split_strategy: Any = option(
        None, maybe(_split_strategy), doc="an object with split(files) or generate(files, ...) that cuts files instead"
    )


@dataclass(frozen=True, kw_only=True)
class ShardOptions(ShardingOptions, RankOptions):
    """Which rows this rank gets."""

    sharding: Any = option(
        "interleave",
        of_sharding,
        given="ShardingLike",
        doc="how ranks share rows: a word, Rotate(...), Strided(...), a function, or a dict with kind",
    )
    canonical_ranks: int | None = option(
        None, maybe(whole(1)), doc="keeps global batches the same for every number of ranks that divides this one"
    )
    even: str | None = option(
        None,
        maybe(one_of(*EVEN)),
        given="EvenLike | None",
        doc='equal steps on all ranks: "drop" or "pad" rows, "sync" or Sync(...); "none": unequal, no warning',
    )
    count_rows: bool = option(False, flag, doc="count rows in a scan if files do not record them")
    steps_per_epoch: int | None = option(
        None, maybe(whole(1)), doc="exactly this many batches on each rank in every epoch"
    )
    sync_every: int = option(16, keyword=False)

    @property
    def levels(self) -> bool:
        """Whether `even` gives all ranks equal steps."""
        return self.even not in (None, "none")


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Checked):
    """What a batch looks like."""

    batch_size: int = option(1024, whole(1), doc="rows per batch")
    last_batch: str = option(
        "partial", one_of(*LAST_BATCH), doc="a short last batch: deliver it, drop it, or fill it up with repeated rows"
    )
    valid_key: str = option(
        "valid", word, doc="the batch entry that is False for repeated rows and failed ones, if there can be any"
    )
    output_format: str = option(
        "torch",
        one_of("torch", "numpy", "arrow", "dict"),
        doc='"torch" and "numpy" (dicts), "arrow" (record batches) or "dict" (lists)',
    )
    collate_fn: Callable[[Any], Any] | None = option(
        None, maybe(function), doc="maps each finished batch to whatever the loader should yield"
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Checked):
    """How Arrow values become tensors."""

    stack: Mapping[str, Sequence[str]] | None = option(
        None, name_lists, doc='columns to join into one [B, k] tensor: {"key": ["column", ...]}'
    )
    jagged: Mapping[str, Sequence[str]] | None = option(
        None, name_lists, doc='columns of lists to join as in a KeyedJaggedTensor: {"key": ["column", ...]}'
    )
    # A torch or numpy dtype, or its name, or a dict of these.
    dtypes: Mapping[Any, Any] | Any = option(
        None, doc='casts: "float32" for all floats, or {"column" or "float64": dtype or its name}'
    )
    nulls: NullsLike = option(
        "error",
        check_nulls,
        given="NullsLike",
        doc="nulls where the dtype holds none: raise, add a mask, drop the row, or Fill(value); or by column",
    )
    strings: StringsLike = option(
        "list",
        check_strings,
        given="StringsLike",
        doc='strings as lists, as bytes with offsets, or as "codes" of a vocabulary, Codes(...); or by column',
    )
    lists: ListsLike = option(
        "ragged",
        check_lists,
        given="ListsLike",
        doc="lists of varying length: values with offsets, nested tensors, or padded, Padded(...); or by column",
    )
    decimals: str | Mapping[str, str] = option(
        "float64",
        ByColumn(("float64", "scaled")),
        given='Literal["float64", "scaled"] | Mapping[str, str]',
        doc="decimals as rounded floats, or as exact scaled integers; or by column",
    )

    @property
    def nulls_text(self) -> str:
        """Which nulls are left out, as a text that distinguishes it."""
        return nulls_text(self.nulls)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Checked):
    """How many workers read, and how far ahead."""

    num_workers: int | None = option(
        None,
        maybe(whole(0, MOST_WORKERS)),
        doc="I/O workers of a rank; None reads one shard on all cores, 0 in the calling thread",
    )
    worker_mode: str = option(
        "threads",
        one_of("threads", "processes"),
        given="WorkerModeLike",
        doc='the kind of workers: "threads", "processes" or Processes(...); processes need num_workers',
    )
    prefetch_bytes: int | str = option(
        "256MiB", num_bytes, doc="the maximum size of decoded data waiting for delivery, per rank"
    )
    pin_memory: bool = option(False, flag, doc="put batches in page-locked memory, for faster copies to a GPU")
    device: Any = option(
        None,
        maybe(device_name),
        doc='put batches on "cuda", "cuda:1" or a torch.device; None and "cpu": in main memory',
    )
    persistent_workers: bool = option(True, keyword=False)
    multiprocessing_context: Any = option(None, keyword=False)
    timeout: float = option(
        600, seconds, doc="seconds to wait for a batch or a store before BatchTimeoutError; 0 waits forever"
    )
    show_progress: bool | Literal["all"] = option(
        False,
        one_of(False, True, "all"),
        doc='a bar for each epoch and for long work at construction; "all": on all ranks',
    )
    progress_interval_sec: float = option(
        120, interval, doc="seconds between log lines about progress, where no bar is shown"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.show_progress:
            check_bars()

    @property
    def num_shards(self) -> int:
        """The number of shards that a rank's rows are cut into (W); None, 0 and 1 workers all mean one."""
        return max(self.num_workers or 1, 1)
