"""Several datasets as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch_dataloader_utils.api.calls import implemented_by
from torch_dataloader_utils.api.stream import opened_source, source_of
from torch_dataloader_utils.errors import CountsRequiredError, OptionError
from torch_dataloader_utils.features import with_features
from torch_dataloader_utils.loader.batch_types import Collated, OutputFormat
from torch_dataloader_utils.loader.dataset import LoaderDataset, passes_of
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options import (
    Files,
    MixOptions,
    Options,
    Rotate,
    SourceValue,
    parse_combination,
    parse_part,
    plain_value,
    unused_in_combination,
)
from torch_dataloader_utils.options.clashes import FOLLOWED_PART
from torch_dataloader_utils.options.together import check_together
from torch_dataloader_utils.plan_page.call import combination_values
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.reading.combined import most_failed
from torch_dataloader_utils.redaction import remember_secrets
from torch_dataloader_utils.sources.combine import combined_source
from torch_dataloader_utils.sources.group import labels
from torch_dataloader_utils.sources.samples import own_shards
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.sources.tables import TableSource
from torch_dataloader_utils.sources.vocabularies import with_one_vocabulary
from torch_dataloader_utils.typing import *

_LOG = logging.getLogger("torch_dataloader_utils")
_CHOOSES = frozenset({"sharding", "canonical_ranks", *(item.name for item in fields(MixOptions))})
_MADE = (StructuredLoader, LoaderDataset)
_PATHS = (str, os.PathLike)


class CombinedDataset(LoaderDataset):
    """Several datasets as one, with their rows mixed; that of a loader from `combine`."""


def _combine(datasets: Any, **given: Any) -> StructuredLoader[Any, Any]:
    named = {name: _part(item) for name, item in _named(datasets).items()}
    given = {**_rotation(list(named.values()), given), **given}
    options, defaults = parse_combination(given, sum(map(_datasets, named.values())))
    options = with_features(options)
    read = {name: value for name, value in defaults.items() if name != "count_rows"}  # which `combine` does itself, too
    if read and not any(isinstance(part, _ToOpen) for part in named.values()):
        _refuse(read)
    _warn_of_unused(named, given)
    parts = dict(zip(named, _sources(named, defaults, options), strict=True))
    options = replace(options, part_skips=any(map(_skips_rows, parts.values())))
    source, options = _of_parts(parts, options)
    options = replace(options, features=options.features.resolved(source, options))
    of_source = {name: part.given if isinstance(part, _ToOpen) else None for name, part in named.items()}
    return StructuredLoader(
        CombinedDataset(source, options, of_source=combination_values(of_source, defaults)), options
    )


def _of_parts(parts: Mapping[str | int, Any], options: Options) -> tuple[Source, Options]:
    """The source over all parts, and the options by which it is read.

    Tokens that are cut into sequences are counted as they are read, if they are not known before and an epoch is a
    number of them.
    """
    try:
        return combined_source(list(parts.values()), list(parts), options), options
    except CountsRequiredError:
        if not (options.pack.wraps and options.mixes_rows and options.mix.tokens_per_epoch is not None):
            raise
    options = replace(options, pack=replace(options.pack, uncounted=True))
    options = replace(options, features=options.features.of(options))
    check_together(options)
    return combined_source(list(parts.values()), list(parts), options), options


@dataclass(frozen=True)
class _ToOpen:
    """A part that is still to be opened: what it reads, and its keywords."""

    source: SourceValue | TableSource
    keywords: Mapping[str, Any]

    @property
    def given(self) -> Any:
        """How it can be given in one line."""
        source: Any = self.source
        if isinstance(source, Files) and list(source.given()) == ["path"]:
            source = list(source.path) if isinstance(source.path, tuple) else source.path
        return {"source": source, **self.keywords} if self.keywords else source

    def opened(self, label: str, defaults: Mapping[str, Any], options: Options) -> Source:
        """What it reads, with the defaults of all parts and the options of the whole."""
        named = self.source if isinstance(self.source, SourceValue) else None
        return opened_source(self.source, with_features(parse_part(label, named, self.keywords, defaults, options)))


def _part(item: Any) -> Any:
    """A part that is still to be opened, or what was given: a dataset, also of a loader or of a pair of both."""
    item = plain_value(item)
    keywords = dict(item) if isinstance(item, Mapping) and "source" in item else {"source": item}
    source = plain_value(keywords.pop("source"))
    paths = isinstance(source, _PATHS) or (_is_list(source) and len(source) and isinstance(source[0], _PATHS))
    named = isinstance(source, (SourceValue, TableSource)) or (isinstance(source, Mapping) and "kind" in source)
    if not (paths or named or source is not item):
        return _dataset_of(item)
    found = source_of(list(source) if paths and _is_list(source) else source)
    remember_secrets(keywords, vars(found) if isinstance(found, SourceValue) else None)
    return _ToOpen(found, keywords)


def _sources(named: Mapping[str | int, Any], defaults: Mapping[str, Any], options: Options) -> list[Any]:
    """What a combination reads of its parts; those that are opened here share their vocabularies."""
    pairs = list(zip(named.values(), labels(list(named)), strict=True))
    for part, label in pairs:
        if isinstance(part, LoaderDataset):
            FOLLOWED_PART.check(replace(passes_of(part).options, part=label))
    opened = {
        place: part.opened(label, defaults, options)
        for place, (part, label) in enumerate(pairs)
        if isinstance(part, _ToOpen)
    }
    shared = dict(zip(opened, with_one_vocabulary(list(opened.values())), strict=True))
    made = [passes_of(part).source if isinstance(part, LoaderDataset) else part for part, _ in pairs]
    return [shared.get(place, part) for place, part in enumerate(made)]


def _skips_rows(part: Any) -> bool:
    """Whether a transform of this part, or of one within it, may fail for rows."""
    return isinstance(part, Source) and bool(most_failed(part.scan))


def _datasets(part: Any) -> int:
    """The number of datasets of a part, which may be a combination."""
    return len(passes_of(part).source.parts) if isinstance(part, LoaderDataset) else 1


def _refuse(defaults: Mapping[str, Any]) -> None:
    given = ", ".join(f"{name}={shown(value)}" for name, value in defaults.items())
    raise OptionError(
        f"{given} would define what parts read, but all of them are datasets that were made before: pass it where they "
        "are made, or pass sources to combine."
    )


def _rotation(datasets: Sequence[Any], given: Collection[str]) -> dict[str, Any]:
    """The options with which datasets that define their own shards rotate, unless the given keywords say otherwise."""
    shards = None if _CHOOSES.intersection(given) else own_shards(datasets)
    if shards is None:
        return {}
    _LOG.info(
        "the datasets have total_shards=%d of their own: sharding=Rotate(%d) gives each rank one in an epoch",
        shards,
        shards,
    )
    return {"sharding": Rotate(shards), **({"batches": "splits"} if len(datasets) > 1 else {})}


def _named(datasets: Any) -> dict[str | int, Any]:
    """The datasets by the names given, in the order of names, or by number."""
    if isinstance(datasets, Mapping) and datasets and all(isinstance(name, str) and name for name in datasets):
        # Equal dicts must give equal orders of rows, and YAML's writers sort keys.
        return dict(sorted(datasets.items()))
    if _is_list(datasets) and len(datasets):
        return dict(enumerate(datasets))
    if isinstance(datasets, Mapping) and datasets:
        raise OptionError(f"datasets has the names {shown(list(datasets))}: expected strings that are not empty.")
    raise OptionError(
        f"datasets={shown(datasets)}: expected a list of at least one dataset, or a dict of name -> dataset."
    )


def _is_list(item: Any) -> bool:
    """Whether it is a list, also one of a config (such as OmegaConf's)."""
    return isinstance(item, Sequence) and not isinstance(item, (str, bytes))


def _warn_of_unused(named: Mapping[str | int, Any], given: Collection[str]) -> None:
    """Warn, once for all datasets that were made before, of their options that the combination does not use.

    Args:
        named: the datasets.
        given: the keywords that `combine` was given.
    """
    of_each: dict[str, list[str]] = {}
    for label, item in zip(labels(list(named)), named.values(), strict=True):
        unused = unused_in_combination(passes_of(item).options, given) if isinstance(item, LoaderDataset) else {}
        if unused:
            texts = ", ".join(f"{name}={shown(value)}" for name, value in unused.items())
            of_each.setdefault(texts, []).append(label)
    if of_each:
        found = "; ".join(f"{texts} of {listed(owners)}" for texts, owners in of_each.items())
        _LOG.warning(
            "options of datasets have no effect in a combination, which has its own: pass to combine %s", found
        )


def _dataset_of(item: Any) -> Any:
    """The dataset of a loader, or of a pair of both as `create_dataloader` returns it; else the item."""
    if _is_list(item) and len(item) == len(_MADE) and all(map(isinstance, item, _MADE)):
        item = item[0]
    return item.dataset if isinstance(item, StructuredLoader) else item


@implemented_by(_combine)
def combine(
    datasets: Sequence[Any] | Mapping[str, Any],
    *,
    # The options: written by scripts/write_signatures.py from their declarations.
    weights: WeightsLike | None = None,
    stop: Literal["once", "first", "all"] = "once",
    repeat: Mapping[str, float] | Sequence[float] | None = None,
    rows_per_epoch: int | None = None,
    tokens_per_epoch: int | None = None,
    batches: Literal["proportional", "single", "splits"] = "proportional",
    source_key: str | None = None,
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
    """A loader that mixes the rows of several datasets in each epoch.

    Each dataset is cut into equal parts for the ranks. On each rank, every batch has rows of all datasets, in
    proportion to `weights`: their numbers depend on the step alone, and stay within a few rows of exact.

    Example:
        ```python
        parts = {"speech": "data/", "more": {"source": "data/part-0.parquet", "fraction": 0.5}}
        loader = combine(parts, weights={"speech": 3, "more": 1}, columns=["id", "label"], shuffle=True)
        ```

    Args:
        datasets: a list, or a dict that names them. Each is what `stream` reads (a path, a list of paths, Files(...), a
            table); a dict of keywords of `stream`, with its source; a loader or dataset that was made before, of which
            the options for ranks, order, batches and workers are not used; another combination, whose datasets share
            its weight by their weights; or a map-style dataset: any object with `__getitem__` and `__len__` whose
            samples are dicts. A dataset that follows ESPnet3's contract for sharded datasets (`shard(i)`,
            `total_shards`, `dist_world_size`) provides its own shards for `sharding=Rotate(n)` with `batches="splits"`.
            Keywords that say what a dataset reads (`columns`, `filters`, `transform`, `nulls`, ...) are the defaults of
            all sources and dicts, with one vocabulary for `strings="codes"`.
        weights: the relative share of each dataset; None: its row count; [(step, weights), ...]; Weights(...).
        stop: when an epoch ends: "once" takes every row, the others rows by weight until the first or all have ended.
        repeat: how often an epoch takes each dataset, instead of stop: {'code': 2.5}; others once.
        rows_per_epoch: the rows of an epoch, over all ranks, shared by weight, instead of stop.
        tokens_per_epoch: with pack or batch_tokens: the tokens of an epoch, in whole steps, instead of stop.
        batches: each batch has rows of all datasets by weight, or rows of a single one; or splits are merged, not rows.
        source_key: a batch entry with the number of each row's dataset (in Arrow and lists its name).
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
        OptionError: the datasets' keys or dtypes differ, a part has an option of the whole, or a value cannot work.
        CountsRequiredError: rows are mixed, but those of a dataset are known only after reading.
        ShardingError: the numbers of shards and ranks do not fit together.
        EmptyDatasetError: a map-style dataset has no samples.
    """
    raise NotImplementedError
