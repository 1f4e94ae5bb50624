"""Plans that Python computes for the plan page: those whose rule no browser can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch_dataloader_utils.mixing.curriculum import rows_of_epoch
from torch_dataloader_utils.model import FileKey, Piece, Rows, split_of, split_pieces
from torch_dataloader_utils.options import Options, repeats_rows
from torch_dataloader_utils.planner import Planner, plan_options
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.sources.mixing import mix_in_words
from torch_dataloader_utils.sources.source import Source

_KNOWN = ("interleave", "contiguous", "rotate", "strided", "auto")
_SAFE_INTEGER = 2**53  # JavaScript's numbers are exact below it
_EPOCHS = 4  # shown if a plan is fixed: enough to see whether ranks change places
_PIECES = 200_000  # no further epoch once so many are on the page: they take some 20 bytes each


def why_fixed(source: Source, options: Options) -> str | None:
    """Why only Python can compute the plan, as the end of a sentence; None if the page's planner can."""
    if hasattr(options.split.split_strategy, "generate"):
        return f"the split strategy {type(options.split.split_strategy).__name__} makes the shards itself"
    if options.mixing is not None and len(source.parts) == 1:
        return "it repeats or leaves out rows of the dataset"
    if len(source.parts) > 1:
        return f"it {'merges the splits' if options.mix.batches == 'splits' else 'mixes the rows'} of several datasets"
    if options.shard.sharding not in _KNOWN:
        return "the sharding policy is a function of your own"
    if options.shard.canonical_ranks is not None:
        return "canonical_ranks shards for virtual ranks"
    if options.pack.wraps:
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
    plan, steps = planner.plan_of_all_ranks(), options.shard.steps_per_epoch
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
    if options.mixing is None:
        return {}
    words = mix_in_words(source, options, epoch, plan_options(options), num_ranks)
    return {"mix": printable(words), "total": rows_of_epoch(options.mixing)}


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
