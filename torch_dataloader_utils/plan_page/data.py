"""What the plan page knows of a dataset, as plain values that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from torch_dataloader_utils.model import FileKey, Piece, Rows, Unit, split_of, split_pieces
from torch_dataloader_utils.options import Options, Rotate, Strided, name_of, repeats_rows
from torch_dataloader_utils.options.clashes import by_wrap
from torch_dataloader_utils.options.sharding import WORDS
from torch_dataloader_utils.options.shuffle import Shuffle
from torch_dataloader_utils.plan_page.call import call_values
from torch_dataloader_utils.plan_page.planner_scripts import split_segments
from torch_dataloader_utils.planner import Planner, plan_options
from torch_dataloader_utils.planning.advice import unknown_steps_advice, unknown_steps_of_ranks_advice
from torch_dataloader_utils.planning.plan import PLAN_VERSION, Plan
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.planning.strategies import assignment_of
from torch_dataloader_utils.redaction import printable, redacted
from torch_dataloader_utils.sources.source import Source, splits_of

# Plans that Python computes for the plan page: those whose rule no browser can run.

_SAFE_INTEGER = 2**53  # JavaScript's numbers are exact below it
_EPOCHS = 4  # shown if a plan is fixed: enough to see whether ranks change places
_PIECES = 200_000  # no further epoch once so many are on the page: they take some 20 bytes each


def why_fixed(source: Source, options: Options) -> str | None:
    """Why only Python can compute the plan, as the end of a sentence; None if the page's planner can."""
    if hasattr(options.split.split_strategy, "generate"):
        return f"the split strategy {type(options.split.split_strategy).__name__} makes the shards itself"
    if options.features.mixes_rows and len(source.parts) == 1:
        return "it repeats or leaves out rows of the dataset"
    if len(source.parts) > 1:
        return f"it {'merges the splits' if options.mix.batches == 'splits' else 'mixes the rows'} of several datasets"
    if options.shard.sharding not in WORDS and not isinstance(options.shard.sharding, (Rotate, Strided)):
        return "the sharding policy is a function of your own"
    if options.shard.canonical_ranks is not None:
        return "canonical_ranks shards for virtual ranks"
    if source.weights is not None:
        return "rows are drawn by weights"
    if source.unit is Unit.TOKEN:
        return "its rows are tokens, which are delivered in whole sequences"
    if abs(options.shuffle.shuffle_seed) >= _SAFE_INTEGER:
        return "the seed is too large for a browser's numbers"
    return None


def fixed_plans(source: Source, options: Options, planner: Planner, epoch: int) -> dict[str, Any]:
    """The plans of a few epochs from this one on, by epoch: fewer if they are large."""
    plans: dict[str, Any] = {}
    pieces = 0
    for number in range(epoch, epoch + _EPOCHS):
        if pieces < _PIECES:
            plan = plans[str(number)] = planned(source, options, planner, number)
            pieces += sum(len(worker["pieces"]) for rank in plan["ranks"] for worker in rank["workers"])
    return plans


def planned(source: Source, options: Options, planner: Planner, epoch: int) -> dict[str, Any]:
    """The plan of all ranks for an epoch, as the page's planner returns it. The number of ranks stays open."""
    plan, steps = planner.plan_of_all_ranks(epoch), options.shard.steps_per_epoch
    of = partial(planner.rank_plan, epoch) if plan is None else partial(plan.rank, epoch)
    unshuffled = of if plan is None else partial(_without_windows(plan).rank, epoch)
    num_ranks = planner.known_world.num_ranks
    ranks = [of(rank) for rank in range(num_ranks)]
    if steps is not None:
        ranks = [replace(rank, steps=steps) for rank in ranks]
    places = {file.info.key: place for place, file in enumerate(source.files)}
    return {
        **_mix(source, options, epoch, num_ranks),
        "ranks": [
            {**_counts(rank, repeats=repeats_rows(options)), "workers": _workers(unshuffled(rank.rank), places)}
            for rank in ranks
        ],
        "uneven": _uneven([rank.steps for rank in ranks]),
        "windows": _window(ranks[0]),
    }


def _mix(source: Source, options: Options, epoch: int, num_ranks: int) -> dict[str, Any]:
    """What an epoch takes of each dataset in words, and its number of rows; empty if no rows are mixed."""
    if not options.features.mixes_rows:
        return {}
    shape = plan_options(options)
    words = options.features.words(source, epoch, shape, num_ranks)
    return {"mix": printable(words), "total": options.features.epoch_rows(shape, num_ranks)}


def _without_windows(plan: Plan) -> Plan:
    """The same plan without row shuffle: which rows a worker reads, not in which order it delivers them."""
    return replace(plan, options=replace(plan.options, buffer_rows=None, window_bytes=None, open_splits=None))


def _counts(plan: RankPlan, *, repeats: bool) -> dict[str, int | None]:
    if plan.rows is None or plan.steps is None:
        return {"rows": plan.rows, "steps": plan.steps, "padded": None}
    surplus = plan.steps * plan.batch_rows - plan.rows
    return {"rows": plan.rows, "steps": plan.steps, "padded": max(0, surplus) if repeats else 0}


def _uneven(steps: list[int | None]) -> dict[str, int] | None:
    known = [count for count in steps if count is not None]
    return {"min_steps": min(known), "max_steps": max(known)} if len(known) == len(steps) else None


def _workers(plan: RankPlan, places: Mapping[FileKey, int]) -> list[dict[str, Any]]:
    return [{"pieces": _pieces(shard, places)} for shard in plan.shards]


def _pieces(shard: Iterable[Piece], places: Mapping[FileKey, int]) -> list[list[int | None]]:
    real = (piece for piece in split_pieces(shard) if not piece.pad)
    return [[places[split_of(piece).file.key], *_rows(piece.rows)] for piece in real]


def _rows(rows: Rows | None) -> tuple[int | None, ...]:
    """The ends of the rows; and, if ranks take rows in turn, the step, block and phase."""
    if rows is None:
        return None, None
    return (rows.start, rows.stop) if rows.contiguous else (rows.start, rows.stop, rows.step, rows.block, rows.phase)


def _window(plan: RankPlan) -> dict[str, Any] | None:
    """The window of a rank's batches; None if rows are not shuffled."""
    window = plan.window
    if window is None:
        return None
    variance = window.variance_ratio(plan.batch_rows)
    sizes = {"open": window.splits, "of": window.of_splits, "rows": window.rows, "windows": window.windows}
    return {**sizes, "variance": variance}


Values = dict[str, Any]

_SPLIT_BYTES: dict[str, Any] = {
    "unshuffled": False,
    "shuffled": True,
}  # the default of split_bytes depends on it


def page_data(
    dataset: str,
    source: Source,
    options: Options,
    planner: Planner,
    epoch: int,
    of_source: Mapping[str, Any] = MappingProxyType({}),
) -> Values:
    """The data of a plan page: files, splits, options, and Python's own plans if no other planner knows their rule.

    Args:
        dataset: the name of the kind of dataset.
        source: what it reads.
        options: the options of its loader.
        planner: the planner of both.
        epoch: the epoch that the page shows first.
        of_source: from `call.source_values`; empty if nothing is known of it.
    """
    num_ranks, reason = planner.known_world.num_ranks, why_fixed(source, options)
    return {
        "version": PLAN_VERSION,
        "seed": options.shuffle.shuffle_seed,
        "exact": source.exact,
        "unknown": _unknown(options),
        "by_length": _by_length(source, options),
        "unit": source.unit.planned,
        "files": [[redacted(file.info.path), file.info.record_count] for file in source.files],
        "file_bytes": [file.info.file_size for file in source.files],
        "file_parts": [file.info.part for file in source.files],
        "splits": split_lists(source, options, fixed=reason is not None),
        "options": {"epoch": epoch, **plan_values(options, num_ranks)},
        "call": call_values(dataset, source, options, of_source),
        "fixed": None if reason is None else {"reason": reason, "plans": fixed_plans(source, options, planner, epoch)},
    }


def _unknown(options: Options) -> Values:
    """What Python says where row counts are known only after reading, and which options it then refuses."""
    one, many = (
        unknown_steps_advice(options.uncounted),
        unknown_steps_of_ranks_advice(not options.uncounted, options.follow.follows),
    )
    return {
        "why": one.problem,
        "one_rank": one.remedy,
        "ranks": str(many),
        "uncounted": options.uncounted,
        "counted_by": [str(remedy) for remedy in by_wrap(options)],
        "batch_tokens": None if options.bucket.batch_tokens is None else options.bucket.batch_tokens.short(),
    }


def _by_length(source: Source, options: Options) -> Values | None:
    """The fewest rows and bytes of a window whose rows are cut into batches by length; None if none are."""
    together = plan_options(options).read_together if source.unit is Unit.BATCH else None
    return None if together is None else {"rows": together.rows, "bytes": together.size_bytes}


def plan_values(options: Options, num_ranks: int) -> Values:
    """The options that a plan depends on, as plain values, by keyword; a policy that is a function by its name."""
    shard, shuffle = options.shard, options.shuffle
    sharding = shard.sharding
    plain = isinstance(sharding, (str, Rotate, Strided))
    return {
        "num_ranks": num_ranks,
        "num_workers": options.worker.num_workers,
        "batch_size": options.batch.batch_size * options.features.unit_rows,
        "sharding": "contiguous" if options.features.mixes_rows else name_of(sharding) if plain else None,
        **{name: getattr(shard.rotation, name) for name in Rotate.fields},
        "unit": shard.unit,
        "canonical_ranks": shard.canonical_ranks,
        "even": shard.even or "none",
        "last_batch": options.batch.last_batch,
        "steps_per_epoch": shard.steps_per_epoch,
        "shuffle": shuffle.shuffle and (shuffle.shuffle.scope == "rows" or shuffle.shuffle.scope),
        **{name: getattr(shuffle.shuffle or Shuffle(), name) for name in list(Shuffle.fields)[1:]},
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
        size = replace(shuffle, shuffle=shuffled).split_bytes
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
