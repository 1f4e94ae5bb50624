"""Several datasets as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from torch_dataloader_utils.api.calls import implemented_by
from torch_dataloader_utils.api.files import StructuredDataset
from torch_dataloader_utils.errors import OptionError, UnknownOptionError
from torch_dataloader_utils.features import with_features
from torch_dataloader_utils.loader.batch_types import Collated, OutputFormat
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options import MixOptions, Options, Rotate, parse_options
from torch_dataloader_utils.options.shuffle import shuffle_of
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.sources.combine import check_keywords, combined_source
from torch_dataloader_utils.sources.group import labels
from torch_dataloader_utils.sources.mixing import mixing_of
from torch_dataloader_utils.sources.samples import own_shards
from torch_dataloader_utils.sources.source import Source
from torch_dataloader_utils.typing import *

_LOG = logging.getLogger("torch_dataloader_utils")
_OF_RANKS = frozenset(("num_ranks", "ranks"))
_CHOOSES = frozenset({"sharding", "canonical_ranks", *(item.name for item in fields(MixOptions))})
_MADE = (StructuredLoader, LoaderDataset)
_PATHS = (str, os.PathLike)


class CombinedDataset(LoaderDataset):
    """Several datasets as one, with their rows mixed; created by `combine`."""

    def __init__(self, source: Source | None = None, options: Options | None = None, **unknown: Any) -> None:
        if source is None or options is None or unknown:
            raise UnknownOptionError("CombinedDataset(...): use combine(datasets, ...).")
        super().__init__(source, options)


def _combine(datasets: Any, **options: Any) -> tuple[StructuredLoader[Any, Any], CombinedDataset]:
    named = _named(datasets)
    check_keywords(options)
    options = {**_rotation(list(named.values()), options), **options}
    parsed = with_features(parse_options(options, "combine"))
    sources = [_source_of(item, label, parsed) for item, label in zip(named.values(), labels(list(named)), strict=True)]
    source = combined_source(sources, list(named), parsed)
    _warn_of_unused(named, options)
    parsed = replace(parsed, mixing=mixing_of(source, parsed))
    dataset = CombinedDataset(source, parsed)
    return StructuredLoader(dataset, parsed), dataset


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
    """Warn of options for ranks and order that datasets were given, where they have no effect, and `combine` was not.

    Args:
        named: the datasets.
        given: the keywords that `combine` was given.
    """
    for name, item in named.items():
        dataset = _dataset_of(item)
        if not isinstance(dataset, LoaderDataset):
            continue
        shard, shuffle = dataset.options.shard, shuffle_of(dataset.options.shuffle.shuffle)
        unused: dict[str, Any] = {"even": shard.even} if shard.levels else {}
        unused |= {"shuffle": shuffle} if shuffle else {}
        if shard.num_ranks is not None and shard.num_ranks > 1 and not _OF_RANKS.intersection(given):
            unused["num_ranks"] = shard.num_ranks
        texts = [f"{option}={value!r}" for option, value in unused.items() if option not in given]
        if texts:
            text = ", ".join(texts)
            _LOG.warning("options of dataset %r have no effect in a combination: pass %s to combine.", name, text)


def _dataset_of(item: Any) -> Any:
    """The dataset of a loader, or of a pair of both as `create_dataloader` and `combine` return it; else the item."""
    if _is_list(item) and len(item) == len(_MADE) and all(map(isinstance, item, _MADE)):
        item = item[0]
    return item.dataset if isinstance(item, StructuredLoader) else item


def _source_of(item: Any, label: str, options: Options) -> Any:
    """What a combination reads of a dataset, loader, path, or list of paths; the label names it in messages."""
    if isinstance(item, _PATHS) or (_is_list(item) and len(item) and isinstance(item[0], _PATHS)):
        made: Any = StructuredDataset.create_dataloader
        item = made(item, output_format=options.batch.output_format)[1]
    item = _dataset_of(item)
    if not isinstance(item, LoaderDataset):
        return item
    if item.options.follow.follows:
        raise OptionError(f"{label} has follow=True and reads other rows in each pass: it cannot be combined.")
    return item.source


@implemented_by(_combine)
def combine(
    datasets: Sequence[Any] | Mapping[str, Any],
    *,
    # The options: written by scripts/write_signatures.py from their declarations.
    weights: WeightsLike | None = None,
    stop: Literal["once", "first", "all"] = "once",
    repeat: Mapping[str, float] | Sequence[float] | None = None,
    rows_per_epoch: int | None = None,
    batches: Literal["proportional", "single", "splits"] = "proportional",
    source_key: str | None = None,
    split_bytes: int | str | None = None,
    split_rows: int | None = None,
    split_strategy: Any = None,
    num_ranks: int | None = None,
    rank: int | None = None,
    ranks: RanksLike | None = None,
    sharding: ShardingLike = "interleave",
    canonical_ranks: int | None = None,
    even: EvenLike | None = None,
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
    num_workers: int | None = None,
    worker_mode: WorkerModeLike = "threads",
    prefetch_bytes: int | str = "256MiB",
    pin_memory: bool = False,
    device: Any = None,
    timeout: float = 600,
    show_progress: bool | Literal["all"] = False,
    progress_interval_sec: float = 120,
) -> tuple[StructuredLoader[OutputFormat, Collated], CombinedDataset]:
    """A loader that mixes the rows of several datasets in each epoch, and its dataset.

    Each dataset is cut into equal parts for the ranks. On each rank, every batch has rows of all datasets, in
    proportion to `weights`: their numbers depend on the step alone, and stay within a few rows of exact.

    Example:
        ```python
        _, speech = StructuredDataset.create_dataloader("data/")
        _, more = StructuredDataset.create_dataloader("data/part-0.parquet")
        loader, dataset = combine({"speech": speech, "more": more}, weights={"speech": 3, "more": 1}, shuffle=True)
        ```

    Args:
        datasets: a list, or a dict that names them. Each is a dataset from `create_dataloader` (its loader and its
            options for ranks, order, batches and workers are not used), a loader, the pair of both, a path or a list of
            paths, another combination, whose datasets share its weight by their weights, or a map-style dataset: any
            object with `__getitem__` and `__len__` whose samples are dicts. A dataset that follows ESPnet3's contract
            for sharded datasets (`shard(i)`, `total_shards`, `dist_world_size`) provides its own shards for
            `sharding=Rotate(n)` with `batches="splits"`.
        weights: rows of each dataset relative to the others; None: its row count; [(step, weights), ...]; Weights(...).
        stop: when an epoch ends: "once" takes every row, the others rows by weight until the first or all have ended.
        repeat: how often an epoch takes each dataset, instead of stop: {'code': 2.5}; others once.
        rows_per_epoch: the rows of an epoch, over all ranks, shared by weight, instead of stop.
        batches: each batch has rows of all datasets by weight, or rows of a single one; or splits are merged, not rows.
        source_key: a batch entry with the number of each row's dataset (in Arrow and lists its name).
        split_bytes: the maximum decoded size of a split; None for "128MiB", or "8MiB" under a shuffle.
        split_rows: the same in rows; overrides split_bytes.
        split_strategy: an object with split(files) or generate(files, ...) that cuts files instead.
        num_ranks: the number of ranks that share the rows; None detects it.
        rank: this process's global rank; give it together with num_ranks.
        ranks: the processes that are the ranks: a process group, a DeviceMesh, an Accelerator, or Mesh(...).
        sharding: how ranks share rows: a word, Rotate(...), Strided(...), a function, or a dict with kind.
        canonical_ranks: keeps global batches the same for every number of ranks that divides this one.
        even: equal steps on all ranks: "drop" or "pad" rows, "sync" or Sync(...); "none": unequal, no warning.
        steps_per_epoch: exactly this many batches on each rank in every epoch.
        shuffle: True shuffles rows, "splits" the order of splits only, "all" rows of all splits; or Shuffle(...).
        shuffle_seed: the seed of all orders; the same on every rank.
        shuffle_buffer_size: rows per window; without shuffle, rows mix with their neighbours only.
        batch_size: rows per batch.
        last_batch: a short last batch: deliver it, drop it, or fill it up with repeated rows.
        valid_key: the batch entry that is False for repeated rows, if there can be any.
        output_format: "torch" and "numpy" (dicts), "arrow" (record batches) or "dict" (lists).
        collate_fn: maps each finished batch to whatever the loader should yield.
        batch_tokens: the most tokens of a batch, rows * longest row, or Buckets(...); batch_size is the most rows.
        pack: packs documents into sequences of so many tokens, or Pack(...); batches are [B, L] tensors.
        num_workers: I/O workers of a rank; None reads one shard on all cores, 0 in the calling thread.
        worker_mode: "threads", "processes" or Processes(...): what workers are; processes need num_workers.
        prefetch_bytes: the maximum size of decoded data waiting for delivery, per rank.
        pin_memory: put batches in page-locked memory, for faster copies to a GPU.
        device: put batches on "cuda", "cuda:1" or a torch.device; None and "cpu": in main memory.
        timeout: seconds to wait for a batch or a store before BatchTimeoutError; 0 waits forever.
        show_progress: a bar for each epoch and for long work at construction; "all": on all ranks.
        progress_interval_sec: the seconds between two lines about progress where there is no bar.

    Raises:
        OptionError: the datasets' keys or dtypes differ, an option belongs to the datasets, or a value cannot work.
        CountsRequiredError: rows are mixed, but those of a dataset are known only after reading.
        ShardingError: the numbers of shards and ranks do not fit together.
        EmptyDatasetError: a map-style dataset has no samples.
    """
    raise NotImplementedError
