"""Every keyword of `create_dataloader`, declared once and grouped by what it decides.

The dataclasses hold and check the values; `LoaderOptions` repeats names and types for editors and type checkers (a
test holds the two together). All of them have plain-value forms, so that a config file can build a loader.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypedDict

from torch_dataloader_utils.errors import OptionError, UnknownOptionError
from torch_dataloader_utils.units import parse_bytes

EVEN = ("none", "drop", "pad", "sync")
LAST_BATCH = ("partial", "drop", "pad", "wrap")

NullPolicy = str | Mapping[str, str]


def _one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise OptionError(f"{name}={value!r}: expected one of {choices}.")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r}: expected a whole number of at least {least}.")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: expected True or False.")


def _word_or_words(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check one word, or a dict of column -> word."""
    for word in value.values() if isinstance(value, Mapping) else [value]:
        _one_of(name, word, allowed)


def _value_lists(name: str, value: object) -> None:
    """Check None, or a dict of column -> list of values."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise OptionError(f"{name}={value!r}: expected a dict of column -> list of values.")
    for column, values in value.items():
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            raise OptionError(f"{name}={{{column!r}: {values!r}}}: expected a list of values.")


def _callable_or_none(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise OptionError(f"{name}={value!r}: expected a callable.")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What is read, and from where."""

    format: str | None = None
    columns: Sequence[str] | None = None
    filters: Any = None
    partitioning: str | None = "auto"
    schema: Any = None
    # Credentials: never in a repr, a log or an error.
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)
    format_options: Mapping[str, Any] | None = None
    transform: Callable[..., Any] | None = None
    transform_rows: str = "same"
    transform_schema: Any = None

    def __post_init__(self) -> None:
        _one_of("partitioning", self.partitioning, ("auto", "hive", None))
        _one_of("transform_rows", self.transform_rows, ("same", "any"))
        _callable_or_none("transform", self.transform)
        if isinstance(self.columns, str):
            raise OptionError(f"columns={self.columns!r}: expected a list of names, such as [{self.columns!r}].")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise OptionError(f"columns={list(self.columns)!r}: a name occurs twice.")
        if self.columns is not None and not self.columns:
            raise OptionError("columns=[]: expected at least one name, or None for all columns.")
        if self.storage_options is not None and self.filesystem is not None:
            raise OptionError("storage_options and filesystem were both given: a ready filesystem has its own options.")


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How files are cut into splits."""

    split_bytes: int | str = "128MiB"
    split_rows: int | None = None
    split_strategy: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "split_bytes", parse_bytes(self.split_bytes, "split_bytes"))
        if self.split_rows is not None:
            _whole("split_rows", self.split_rows, 1)
        strategy = self.split_strategy
        if strategy is not None and not (hasattr(strategy, "split") or hasattr(strategy, "generate")):
            raise OptionError(
                f"split_strategy={strategy!r}: expected an object with split(files) or "
                "generate(files, num_workers, epoch, num_ranks, rank)."
            )


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Which rows are this rank's."""

    num_ranks: int | None = None
    rank: int | None = None
    process_group: Any = None
    sharding: str | Callable[..., Any] = "interleave"
    stick_to_shard: bool = False
    full_rotation: bool = False
    shard_batches: bool = False
    split_batches: bool = False
    total_shards: int | None = None
    even: str = "none"
    count_rows: bool = False
    steps_per_epoch: int | None = None
    sync_every: int = 16

    def __post_init__(self) -> None:
        _one_of("even", self.even, EVEN)
        for name in ("stick_to_shard", "full_rotation", "shard_batches", "split_batches", "count_rows"):
            _flag(name, getattr(self, name))
        for name in ("total_shards", "steps_per_epoch"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _whole("sync_every", self.sync_every, 1)
        if self.steps_per_epoch is not None and self.even != "none":
            raise OptionError(
                f"steps_per_epoch={self.steps_per_epoch} with even={self.even!r}: exactly n steps on each rank "
                "are even already; leave even at 'none'."
            )
        if self.num_ranks is not None:
            _whole("num_ranks", self.num_ranks, 1)
        if self.rank is not None:
            _whole("rank", self.rank, 0)
        if (self.num_ranks is None) != (self.rank is None):
            raise OptionError(
                f"num_ranks={self.num_ranks!r}, rank={self.rank!r}: give both, or neither to have them detected."
            )
        if self.num_ranks is not None and self.rank is not None and self.rank >= self.num_ranks:
            raise OptionError(
                f"rank={self.rank} with num_ranks={self.num_ranks}: expected a global rank in [0, {self.num_ranks})."
            )


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions:
    """In which order."""

    shuffle: bool = False
    shuffle_seed: int = 42

    def __post_init__(self) -> None:
        _flag("shuffle", self.shuffle)
        if isinstance(self.shuffle_seed, bool) or not isinstance(self.shuffle_seed, int):
            raise OptionError(f"shuffle_seed={self.shuffle_seed!r}: expected a whole number.")


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What a batch is."""

    batch_size: int = 1024
    last_batch: str = "partial"
    valid_key: str = "valid"
    output_format: str = "torch"
    collate_fn: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        _whole("batch_size", self.batch_size, 1)
        _one_of("last_batch", self.last_batch, LAST_BATCH)
        if not isinstance(self.valid_key, str) or not self.valid_key:
            raise OptionError(f"valid_key={self.valid_key!r}: expected a name.")
        _one_of("output_format", self.output_format, ("torch", "numpy", "arrow", "dict"))
        _callable_or_none("collate_fn", self.collate_fn)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """How Arrow values become tensors."""

    stack: Mapping[str, Sequence[str]] | None = None
    dtypes: Mapping[str, Any] | None = None
    fill_values: Mapping[str, Any] | None = None
    nulls: NullPolicy = "error"
    strings: NullPolicy = "list"
    vocabulary: Mapping[str, Sequence[Any]] | None = field(default=None, repr=False)
    lists: str = "ragged"
    decimals: str = "float64"
    strict_types: bool = False

    def __post_init__(self) -> None:
        _word_or_words("nulls", self.nulls, ("error", "mask", "fill", "drop"))
        _word_or_words("strings", self.strings, ("list", "bytes", "codes"))
        _value_lists("vocabulary", self.vocabulary)
        _one_of("lists", self.lists, ("ragged", "padded", "nested"))
        _one_of("decimals", self.decimals, ("float64", "scaled"))
        _flag("strict_types", self.strict_types)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Who reads, and how far ahead."""

    num_workers: int | None = None
    worker_mode: str = "thread"
    prefetch_bytes: int | str = "256MiB"
    pin_memory: bool = False
    persistent_workers: bool = True
    multiprocessing_context: Any = None
    timeout: float = 600
    show_progress: bool = False
    progress_interval_sec: float = 120

    def __post_init__(self) -> None:
        if self.num_workers is not None:
            _whole("num_workers", self.num_workers, 0)
        _one_of("worker_mode", self.worker_mode, ("thread", "process"))
        _flag("pin_memory", self.pin_memory)
        _flag("persistent_workers", self.persistent_workers)
        object.__setattr__(self, "prefetch_bytes", parse_bytes(self.prefetch_bytes, "prefetch_bytes"))
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or self.timeout < 0:
            raise OptionError(f"timeout={self.timeout!r}: expected seconds (0 for none).")
        _flag("show_progress", self.show_progress)
        interval = self.progress_interval_sec
        if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not interval > 0:
            raise OptionError(f"progress_interval_sec={interval!r}: expected seconds above 0.")
        if self.worker_mode == "process" and self.num_workers is None:
            raise OptionError("worker_mode='process' needs num_workers: give the number of processes, such as 2.")
        if isinstance(self.multiprocessing_context, str):
            _one_of("multiprocessing_context", self.multiprocessing_context, ("fork", "spawn", "forkserver"))

    @property
    def num_shards(self) -> int:
        """W: into how many shards a rank's rows are dealt (None, 0 and 1 workers all mean one)."""
        return max(self.num_workers or 1, 1)


class LoaderOptions(TypedDict, total=False):
    """The keywords of `create_dataloader`, for editors and type checkers; the dataclasses have defaults and checks."""

    format: str | None
    columns: Sequence[str] | None
    filters: Any
    partitioning: str | None
    schema: Any
    storage_options: Mapping[str, Any] | None
    filesystem: Any
    format_options: Mapping[str, Any] | None
    transform: Callable[..., Any] | None
    transform_rows: str
    transform_schema: Any
    split_bytes: int | str
    split_rows: int | None
    split_strategy: Any
    num_ranks: int | None
    rank: int | None
    process_group: Any
    sharding: str | Callable[..., Any]
    stick_to_shard: bool
    full_rotation: bool
    shard_batches: bool
    split_batches: bool
    total_shards: int | None
    even: str
    count_rows: bool
    steps_per_epoch: int | None
    sync_every: int
    shuffle: bool
    shuffle_seed: int
    batch_size: int
    last_batch: str
    valid_key: str
    output_format: str
    collate_fn: Callable[[Any], Any] | None
    stack: Mapping[str, Sequence[str]] | None
    dtypes: Mapping[str, Any] | None
    fill_values: Mapping[str, Any] | None
    nulls: NullPolicy
    strings: NullPolicy
    vocabulary: Mapping[str, Sequence[Any]] | None
    lists: str
    decimals: str
    strict_types: bool
    num_workers: int | None
    worker_mode: str
    prefetch_bytes: int | str
    pin_memory: bool
    persistent_workers: bool
    multiprocessing_context: Any
    timeout: float
    show_progress: bool
    progress_interval_sec: float


@dataclass(frozen=True)
class Options:
    """All options of one loader, grouped."""

    read: ReadOptions
    split: SplitOptions
    shard: ShardOptions
    shuffle: ShuffleOptions
    batch: BatchOptions
    convert: ConvertOptions
    worker: WorkerOptions


_GROUPS: dict[str, type] = {
    "read": ReadOptions,
    "split": SplitOptions,
    "shard": ShardOptions,
    "shuffle": ShuffleOptions,
    "batch": BatchOptions,
    "convert": ConvertOptions,
    "worker": WorkerOptions,
}

# Keywords of torch's DataLoader that mean nothing here, and what to use for them.
_TORCH_KEYWORDS = {
    "drop_last": "last_batch='drop' (the last batch of a rank) or even='drop' (equal steps on all ranks)",
    "prefetch_factor": "prefetch_bytes (a bound in decoded bytes)",
    "sampler": "shuffle=True, or a split_strategy",
    "batch_sampler": "batch_size and shuffle=True",
    "generator": "shuffle_seed",
    "worker_init_fn": "transform (it runs in the workers)",
}


def check_together(options: Options) -> None:
    """Check what options of different groups mean for each other.

    Raises:
        OptionError: two options that exclude each other.
    """
    shard, batch = options.shard, options.batch
    if shard.count_rows and options.read.transform_rows == "any":
        raise OptionError(
            "count_rows=True with transform_rows='any': counting does not run transform, which decides there how many "
            "rows there are. Leave rows out by filters=, or use steps_per_epoch=n or even='sync'."
        )
    if batch.last_batch != "partial" and (shard.even not in ("none", batch.last_batch)):
        raise OptionError(
            f"last_batch={batch.last_batch!r} with even={shard.even!r}: even decides about the last batch; "
            "leave last_batch at 'partial'."
        )
    if batch.last_batch != "partial" and shard.steps_per_epoch is not None:
        raise OptionError(
            f"last_batch={batch.last_batch!r} with steps_per_epoch={shard.steps_per_epoch}: its batches are all full; "
            "leave last_batch at 'partial'."
        )


def repeats_rows(options: Options) -> bool:
    """Whether a pass may deliver rows again, as padding: batches then carry the mask `valid_key`."""
    shard = options.shard
    return shard.even == "pad" or options.batch.last_batch in ("pad", "wrap") or shard.steps_per_epoch is not None


def option_defaults() -> dict[str, Any]:
    """Every keyword with its default, in the order of the groups."""
    found: dict[str, Any] = {}
    for group in _GROUPS.values():
        for item in fields(group):
            found[item.name] = item.default_factory() if item.default_factory is not MISSING else item.default
    return found


def plain_value(value: Any) -> Any:
    """The value with containers of a config file (OmegaConf's, which Hydra passes on) made lists and dicts."""
    if type(value).__module__.startswith("omegaconf."):
        return sys.modules["omegaconf"].OmegaConf.to_container(value, resolve=True)
    return value


def parse_options(keywords: Mapping[str, Any]) -> Options:
    """The grouped, checked options of these keywords.

    Raises:
        UnknownOptionError: a keyword that does not exist, with the one that was probably meant.
        OptionError: a value that cannot work.
    """
    keywords = {name: plain_value(value) for name, value in keywords.items()}
    known = option_defaults()
    for name in keywords:
        if name in _TORCH_KEYWORDS:
            raise UnknownOptionError(f"{name!r} is an option of torch's DataLoader: use {_TORCH_KEYWORDS[name]}.")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see help(StructuredDataset.create_dataloader)."
            raise UnknownOptionError(f"unknown option {name!r}: {hint}")
    groups = {
        group: cls(**{item.name: keywords[item.name] for item in fields(cls) if item.name in keywords})
        for group, cls in _GROUPS.items()
    }
    options = Options(**groups)
    check_together(options)
    return options
