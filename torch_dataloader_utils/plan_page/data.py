"""What the plan page knows of a dataset, as plain values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from torch_dataloader_utils.options import Options, PolicyOptions
from torch_dataloader_utils.plan_page.call import call_values
from torch_dataloader_utils.plan_page.fixed import fixed_plans, why_fixed
from torch_dataloader_utils.plan_page.planner_scripts import split_segments
from torch_dataloader_utils.planner import Planner
from torch_dataloader_utils.planning.advice import unknown_steps_advice, unknown_steps_of_ranks_advice
from torch_dataloader_utils.planning.plan import PLAN_VERSION
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.strategies import assignment_of
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.sources.source import Source, splits_of

Values = dict[str, Any]

_SPLIT_BYTES = {"unshuffled": False, "shuffled": True}  # the default of split_bytes depends on the shuffle


def page_data(
    dataset: str,
    source: Source,
    options: Options,
    planner: Planner,
    epoch: int,
    of_table: Mapping[str, Values] = MappingProxyType({}),
) -> Values:
    """The data of a plan page: files, splits, options, and Python's own plans if no other planner knows their rule.

    Args:
        dataset: the name of the kind of dataset.
        source: what it reads.
        options: the options of its loader.
        planner: the planner of both.
        epoch: the epoch that the page shows first.
        of_table: the options of its table, from `call.table_values`; empty if it has none.
    """
    num_ranks, reason = planner.known_world.num_ranks, why_fixed(source, options)
    return {
        "version": PLAN_VERSION,
        "seed": options.shuffle.shuffle_seed,
        "exact": source.exact,
        "unknown": _unknown(options),
        "by_length": _by_length(options),
        "unit": "token" if options.pack.wraps else "row",
        "files": [[redacted(file.info.path), file.info.record_count] for file in source.files],
        "file_bytes": [file.info.file_size for file in source.files],
        "file_parts": [file.info.part for file in source.files],
        "splits": split_lists(source, options, fixed=reason is not None),
        "options": {"epoch": epoch, **plan_values(options, num_ranks)},
        "call": call_values(dataset, source, options, of_table),
        "fixed": None if reason is None else {"reason": reason, "plans": fixed_plans(source, options, planner, epoch)},
    }


def _unknown(options: Options) -> Values:
    """What Python says where row counts are known only after reading, and which options it then refuses."""
    one, many = (
        unknown_steps_advice(options.uncounted),
        unknown_steps_of_ranks_advice(not options.uncounted, options.follow.follow),
    )
    return {
        "why": one.problem,
        "one_rank": one.remedy,
        "ranks": str(many),
        "uncounted": options.uncounted,
        "batch_tokens": options.bucket.batch_tokens,
    }


def _by_length(options: Options) -> Values | None:
    """The fewest rows and bytes of a window whose rows are cut into batches by length; None if none are."""
    bucket = options.bucket
    return None if bucket.batch_tokens is None else {"rows": bucket.rows, "bytes": bucket.window_bytes}


def plan_values(options: Options, num_ranks: int) -> Values:
    """The options that a plan depends on, as plain values, by keyword; a policy that is a function by its name."""
    shard, shuffle = options.shard, options.shuffle
    sharding = shard.sharding
    return {
        "num_ranks": num_ranks,
        "num_workers": options.worker.num_workers,
        "batch_size": options.batch.batch_size * options.pack.token_length,
        "sharding": (sharding if isinstance(sharding, str) else None) if options.mixing is None else "contiguous",
        **{item.name: getattr(shard, item.name) for item in fields(PolicyOptions)},
        "canonical_ranks": shard.canonical_ranks,
        "even": shard.even,
        "last_batch": options.batch.last_batch,
        "steps_per_epoch": shard.steps_per_epoch,
        "shuffle": shuffle.shuffle,
        "shuffle_bytes": shuffle.shuffle_bytes,
        "shuffle_buffer_size": shuffle.shuffle_buffer_size,
        "shuffle_open_splits": shuffle.shuffle_open_splits,
        "assignment": assignment_of(options.split.split_strategy),
    }


def split_lists(source: Source, options: Options, *, fixed: bool) -> dict[str, Values]:
    """The splits without and with a shuffle: the same columns unless the default of `split_bytes` cut them.

    Args:
        source: what is read.
        options: the options of the loader.
        fixed: whether the page shows only the splits that the source has.
    """
    actual = split_columns(source.splits)
    split, shuffle = options.split, options.shuffle
    cut_by_default = split.split_bytes == shuffle.split_bytes and split.split_rows is None
    if fixed or split.split_strategy is not None or not cut_by_default:
        return dict.fromkeys(_SPLIT_BYTES, actual)
    lists = {}
    for name, shuffled in _SPLIT_BYTES.items():
        size = replace(shuffle, shuffle=shuffled, shuffle_open_splits=None).split_bytes
        cut = splits_of(source.files, replace(split, split_bytes=size))
        lists[name] = actual if size == split.split_bytes else split_columns(cut)
    return lists


def split_columns(splits: Splits) -> Values:
    """The splits as columns in planning order; start and rows are None where row counts are unknown."""
    known = splits.counted.tolist()
    rows = np.where(splits.counted, splits.stop - splits.start, 0).tolist()
    return {
        "file": splits.file.tolist(),
        "start": [start if count else None for start, count in zip(splits.start.tolist(), known, strict=True)],
        "rows": [number if count else None for number, count in zip(rows, known, strict=True)],
        "nbytes": splits.sizes.tolist(),
        "segments": split_segments(splits),
    }
