"""Every keyword of `create_dataloader`, declared once with its default and check, grouped by what it decides.

All of them have plain-value forms, so that a config file can build a loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options.checks import (
    Checked,
    credentials,
    flag,
    function,
    interval,
    mapping,
    maybe,
    names,
    num_bytes,
    one_of,
    option,
    path,
    seconds,
    value_lists,
    values,
    whole,
    word,
    word_or_words,
)
from torch_dataloader_utils.options.policies import PolicyOptions
from torch_dataloader_utils.options.ranks import RankOptions

EVEN = ("none", "drop", "pad", "sync")
LAST_BATCH = ("partial", "drop", "pad", "wrap")

NullPolicy = str | Mapping[str, str]


_policy = values(
    "the name of a policy, {'policy': name, option: value}, or a function",
    lambda value: isinstance(value, (str, Mapping)) or callable(value),
)
_shuffle = values("False, True, 'splits' or 'all'", lambda value: isinstance(value, bool) or value in ("splits", "all"))
_split_strategy = values(
    "an object with split(files) or generate(files, num_workers, epoch, num_ranks, rank)",
    lambda value: not isinstance(value, str) and (hasattr(value, "split") or hasattr(value, "generate")),
)
_start_method = values(
    "one of 'fork', 'spawn', 'forkserver'",
    lambda value: not isinstance(value, str) or value in ("fork", "spawn", "forkserver"),
)
_column_names = values(
    "names, such as ['_file', '_pos']", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Checked):
    """What is read, and from where."""

    format: str | None = None
    columns: Sequence[str] | None = option(None, maybe(names))
    filters: Any = None
    partitioning: str | None = option("auto", one_of("auto", "hive", None))
    schema: Any = None
    # Credentials: never in a repr, a log or an error.
    storage_options: Mapping[str, Any] | None = option(
        None, credentials("as the fsspec filesystem of the path takes it"), repr=False
    )
    filesystem: Any = field(default=None, repr=False)
    manifest: str | os.PathLike[str] | None = option(None, maybe(path))
    cache_dir: str | os.PathLike[str] | None = option(None, maybe(path))
    cache_bytes: int | str = option("10GiB", num_bytes)
    format_options: Mapping[str, Any] | None = option(None, mapping("option -> value"))
    transform: Callable[..., Any] | None = option(None, maybe(function))
    transform_rows: str = option("same", one_of("same", "any"))
    transform_schema: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage_options is not None and self.filesystem is not None:
            raise OptionError("storage_options and filesystem were both given: a ready filesystem has its own options.")


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Checked):
    """How files are cut into splits."""

    split_bytes: int | str | None = option(None, maybe(num_bytes))  # None: by `shuffle`
    split_rows: int | None = option(None, maybe(whole(1)))
    split_strategy: Any = option(None, maybe(_split_strategy))


@dataclass(frozen=True, kw_only=True)
class ShardOptions(PolicyOptions, RankOptions):
    """Which rows are this rank's."""

    sharding: str | Mapping[str, Any] | Callable[..., Any] = option("interleave", _policy)
    canonical_ranks: int | None = option(None, maybe(whole(1)))
    even: str = option("none", one_of(*EVEN))
    count_rows: bool = option(False, flag)
    steps_per_epoch: int | None = option(None, maybe(whole(1)))
    sync_every: int = option(16, whole(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_policy(self.sharding)
        if self.steps_per_epoch is not None and self.even != "none":
            raise OptionError(
                f"steps_per_epoch={self.steps_per_epoch} with even={self.even!r}: exactly n steps on each rank "
                "are even already; leave even at 'none'."
            )


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions(Checked):
    """In which order."""

    shuffle: bool | Literal["splits", "all"] = option(False, _shuffle)
    shuffle_seed: int = option(42, whole())
    shuffle_bytes: int | str = option("128MiB", num_bytes)
    shuffle_buffer_size: int | None = option(None, maybe(whole(1)))
    shuffle_open_splits: int | None = option(None, maybe(whole(1)))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle == "splits" and (self.shuffle_buffer_size or self.shuffle_open_splits):
            raise OptionError(
                "shuffle='splits' keeps the rows of a split in order: give shuffle=True with shuffle_buffer_size or "
                "shuffle_open_splits."
            )
        if self.shuffle == "all" and self.shuffle_open_splits:
            raise OptionError(
                f"shuffle_open_splits={self.shuffle_open_splits} with shuffle='all', which opens every split: give "
                "shuffle=True to open fewer."
            )
        if self.shuffle_open_splits and not self.shuffle and not self.shuffle_buffer_size:
            raise OptionError(
                f"shuffle_open_splits={self.shuffle_open_splits} with shuffle=False: nothing is shuffled; give "
                "shuffle=True."
            )

    @property
    def split_bytes(self) -> int:
        """The default of the option of this name: smaller under a shuffle, so that one file is many splits."""
        return (8 if self.shuffle else 128) * 2**20

    @property
    def window_bytes(self) -> int | None:
        """Decoded bytes of a rank's shuffle windows; None where they are sized by rows, or rows are not shuffled."""
        by_bytes = self.shuffle in (True, "all") and self.shuffle_buffer_size is None
        return int(self.shuffle_bytes) if by_bytes else None


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Checked):
    """What a batch is."""

    batch_size: int = option(1024, whole(1))
    last_batch: str = option("partial", one_of(*LAST_BATCH))
    valid_key: str = option("valid", word)
    output_format: str = option("torch", one_of("torch", "numpy", "arrow", "dict"))
    collate_fn: Callable[[Any], Any] | None = option(None, maybe(function))


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Checked):
    """How Arrow values become tensors."""

    stack: Mapping[str, Sequence[str]] | None = option(None, mapping("key -> list of columns"))
    dtypes: Mapping[Any, Any] | Any = None  # a dtype of torch or numpy, by name or itself, or a dict of these
    fill_values: Mapping[str, Any] | None = option(None, mapping("column -> value"))
    nulls: NullPolicy = option("error", word_or_words("error", "mask", "fill", "drop"))
    strings: NullPolicy = option("list", word_or_words("list", "bytes", "codes"))
    vocabulary: Mapping[str, Sequence[Any]] | None = option(None, value_lists, repr=False)
    lists: str = option("ragged", one_of("ragged", "padded", "nested"))
    decimals: str = option("float64", one_of("float64", "scaled"))
    strict_types: bool = option(False, flag)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Checked):
    """Who reads, and how far ahead."""

    num_workers: int | None = option(None, maybe(whole(0)))
    worker_mode: str = option("thread", one_of("thread", "process"))
    prefetch_bytes: int | str = option("256MiB", num_bytes)
    pin_memory: bool = option(False, flag)
    persistent_workers: bool = option(True, flag)
    multiprocessing_context: Any = option(None, _start_method)
    timeout: float = option(600, seconds)
    show_progress: bool = option(False, flag)
    progress_interval_sec: float = option(120, interval)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.worker_mode == "process" and self.num_workers is None:
            raise OptionError("worker_mode='process' needs num_workers: give the number of processes, such as 2.")

    @property
    def num_shards(self) -> int:
        """W: into how many shards a rank's rows are cut (None, 0 and 1 workers all mean one)."""
        return max(self.num_workers or 1, 1)


@dataclass(frozen=True, kw_only=True)
class TableOptions(Checked):
    """Which table, which snapshot of it, and what of it besides its columns."""

    # Credentials: never in a repr, a log or an error.
    catalog_config: Mapping[str, Any] | None = option(
        None, credentials("as pyiceberg's load_catalog takes it"), repr=False
    )
    snapshot_id: int | None = None
    ref: str | None = None
    as_of: datetime | str | int | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    scan_filter: Any = None
    metadata_columns: Sequence[str] = option((), _column_names)
