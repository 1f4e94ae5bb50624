"""Every keyword of `create_dataloader`, declared once with its default and check, grouped by what it decides.

All of them have plain-value forms, so that a config file can build a loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch_dataloader_utils.distributed.peers import (
    Peers,
    job_peers,
    peers_of_accelerator,
    peers_of_group,
    peers_of_mesh,
)
from torch_dataloader_utils.errors import OptionError, ShardingError
from torch_dataloader_utils.units import parse_bytes

EVEN = ("none", "drop", "pad", "sync")
LAST_BATCH = ("partial", "drop", "pad", "wrap")
_PEERS = ("process_group", "device_mesh", "accelerator")  # each names the processes that are the ranks

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


def _dict_or_none(name: str, value: object, of: str) -> None:
    """Check None, or a dict."""
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"{name}={value!r}: expected a dict of {of}.")


def _names(name: str, value: Any) -> list[str]:
    """Different names in an order, at least one."""
    if isinstance(value, str):
        raise OptionError(f"{name}={value!r}: expected a list of names, such as [{value!r}].")
    if isinstance(value, (set, frozenset)):
        raise OptionError(f"{name}={value!r}: expected a list; the order of a set differs from process to process.")
    names = list(value) if isinstance(value, Iterable) else []
    if not names or not all(isinstance(item, str) for item in names):
        raise OptionError(f"{name}={value!r}: expected a list of at least one name, or None for all columns.")
    if len(set(names)) != len(names):
        raise OptionError(f"{name}={names!r}: a name occurs twice.")
    return names


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
    manifest: str | os.PathLike[str] | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | str = "10GiB"
    format_options: Mapping[str, Any] | None = None
    transform: Callable[..., Any] | None = None
    transform_rows: str = "same"
    transform_schema: Any = None

    def __post_init__(self) -> None:
        _one_of("partitioning", self.partitioning, ("auto", "hive", None))
        _one_of("transform_rows", self.transform_rows, ("same", "any"))
        _callable_or_none("transform", self.transform)
        if self.columns is not None:
            object.__setattr__(self, "columns", _names("columns", self.columns))
        _dict_or_none("format_options", self.format_options, "option -> value")
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise OptionError("storage_options: expected a dict, as the fsspec filesystem of the path takes it.")
        if self.storage_options is not None and self.filesystem is not None:
            raise OptionError("storage_options and filesystem were both given: a ready filesystem has its own options.")
        for name in ("manifest", "cache_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (str, os.PathLike)) or not os.fspath(value)):
                raise OptionError(f"{name}={value!r}: expected a path.")
        object.__setattr__(self, "cache_bytes", parse_bytes(self.cache_bytes, "cache_bytes"))


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
        plans = not isinstance(strategy, str) and (hasattr(strategy, "split") or hasattr(strategy, "generate"))
        if strategy is not None and not plans:
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
    device_mesh: Any = None
    dp_mesh_dims: Sequence[str] | None = None
    accelerator: Any = None
    sharding: str | Callable[..., Any] = "interleave"
    stick_to_shard: bool = False
    full_rotation: bool = False
    shard_batches: bool = False
    split_batches: bool = False
    total_shards: int | None = None
    canonical_ranks: int | None = None
    even: str = "none"
    count_rows: bool = False
    steps_per_epoch: int | None = None
    sync_every: int = 16

    def __post_init__(self) -> None:
        _one_of("even", self.even, EVEN)
        if not isinstance(self.sharding, str) and not callable(self.sharding):
            raise OptionError(f"sharding={self.sharding!r}: expected the name of a policy, or a function.")
        for name in ("stick_to_shard", "full_rotation", "shard_batches", "split_batches", "count_rows"):
            _flag(name, getattr(self, name))
        for name in ("total_shards", "canonical_ranks", "steps_per_epoch"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _whole("sync_every", self.sync_every, 1)
        if self.steps_per_epoch is not None and self.even != "none":
            raise OptionError(
                f"steps_per_epoch={self.steps_per_epoch} with even={self.even!r}: exactly n steps on each rank "
                "are even already; leave even at 'none'."
            )
        self._check_numbers()
        self._check_peers()

    def _check_numbers(self) -> None:
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

    def _check_peers(self) -> None:
        dims = self.dp_mesh_dims
        if dims is not None and (isinstance(dims, str) or not isinstance(dims, Sequence)):
            raise OptionError(f"dp_mesh_dims={dims!r}: expected names of dimensions, such as ('dp',).")
        if dims is not None and self.device_mesh is None:
            raise OptionError(f"dp_mesh_dims={dims!r} without device_mesh: they name dimensions of a mesh.")
        given = [name for name in _PEERS if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} were given: each says which ranks there are, so pass one.")
        peers = self.peers
        if peers is not None and self.num_ranks not in (None, peers.world.num_ranks):
            raise ShardingError(
                f"num_ranks={self.num_ranks}, but {peers.world.source} has {peers.world.num_ranks} rank(s): leave "
                f"num_ranks and rank out, or leave out {given[0]}."
            )

    @property
    def peers(self) -> Peers | None:
        """The processes that `process_group`, `device_mesh` or `accelerator` names; None where none is given."""
        if self.device_mesh is not None:
            return peers_of_mesh(self.device_mesh, self.dp_mesh_dims)
        if self.process_group is not None:
            return peers_of_group(self.process_group)
        return None if self.accelerator is None else peers_of_accelerator(self.accelerator)

    def __getstate__(self) -> dict[str, Any]:
        """The options without group, mesh and accelerator, which mean nothing outside of this process.

        A process that this one is about to start, such as a worker of torch's DataLoader, is of this one's rank.

        Raises:
            ShardingError: a copy for elsewhere would not know its rank.
        """
        state = {**vars(self), **dict.fromkeys((*_PEERS, "dp_mesh_dims"))}
        given = [name for name in _PEERS if getattr(self, name) is not None]
        starting = get_spawning_popen() is not None
        if given and self.num_ranks is None and not starting:
            raise ShardingError(
                f"{given[0]} cannot be sent to another process: leave it out to have ranks detected there, or pass "
                "num_ranks and rank."
            )
        job = job_peers()
        if starting and self.num_ranks is None and job is not None:
            world = (self.peers or job).world
            state.update(num_ranks=world.num_ranks, rank=world.rank)
        return state


@dataclass(frozen=True, kw_only=True)
class ShuffleOptions:
    """In which order."""

    shuffle: bool = False
    shuffle_seed: int = 42
    shuffle_buffer_size: int | None = None
    shuffle_open_splits: int = 4

    def __post_init__(self) -> None:
        _flag("shuffle", self.shuffle)
        if isinstance(self.shuffle_seed, bool) or not isinstance(self.shuffle_seed, int):
            raise OptionError(f"shuffle_seed={self.shuffle_seed!r}: expected a whole number.")
        if self.shuffle_buffer_size is not None:
            _whole("shuffle_buffer_size", self.shuffle_buffer_size, 1)
        _whole("shuffle_open_splits", self.shuffle_open_splits, 1)


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
        _dict_or_none("stack", self.stack, "key -> list of columns")
        _dict_or_none("dtypes", self.dtypes, "column -> dtype")
        _dict_or_none("fill_values", self.fill_values, "column -> value")
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


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which table, which snapshot of it, and what of it besides its columns."""

    # Credentials: never in a repr, a log or an error.
    catalog_config: Mapping[str, Any] | None = field(default=None, repr=False)
    snapshot_id: int | None = None
    ref: str | None = None
    as_of: datetime | str | int | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    scan_filter: Any = None
    metadata_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.catalog_config is not None and not isinstance(self.catalog_config, Mapping):
            raise OptionError("catalog_config: expected a dict, as pyiceberg's load_catalog takes it.")
        if isinstance(self.metadata_columns, str) or not isinstance(self.metadata_columns, Sequence):
            raise OptionError(f"metadata_columns={self.metadata_columns!r}: expected names, such as ['_file', '_pos'].")
