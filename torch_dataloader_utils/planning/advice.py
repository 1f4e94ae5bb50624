"""Advice about plans that may surprise: ranks or workers without rows, uneven steps, shuffles that mix little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch_dataloader_utils.options import ShuffleOptions
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.rank_plan import RankPlan
from torch_dataloader_utils.printing import listed, plural

_FEW_SPLITS = 4  # a shuffle window of fewer splits mixes little

_PAD = "even='pad' (repeats rows under a mask)"
_EVEN = f"even='drop' (leaves out less than one global batch) or {_PAD}"
_HANGS = "A training loop with collectives (DDP) then hangs."


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem and its remedy, as sentences."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def idle_ranks_advice(plan: Plan, epoch: int) -> Advice | None:
    """Advice about ranks that get no rows; None if every rank gets some, or if there is nothing to read."""
    idle = plan.idle_ranks(epoch) if plan.splits and plan.options.even in ("none", "sync") else []
    if not idle:
        return None
    verb, (why, remedy) = "has" if len(idle) == 1 else "have", why_idle(plan)
    return Advice(
        f"{len(idle)} of the {plural(plan.num_ranks, 'rank')} {verb} no {_units(plan)}s in epoch {epoch} "
        f"({_rows_of_ranks(plan, epoch, idle)}): {why}. {_effect(plan, len(idle))}",
        remedy,
    )


def unknown_steps_advice(uncounted: str, fixable: bool = True) -> Advice:
    """Why a rank's number of batches is unknown before reading, and the remedy.

    Args:
        uncounted: why `count_rows` cannot count them, as a clause; "" if it can.
        fixable: whether `steps_per_epoch` can fix the number: not if each row is to be read once.
    """
    decides = (
        "a filter, a subset by columns, nulls='drop', Transform(rows='any') or a format without row counts decides "
        "which rows there are"
    )
    ways = ["count_rows=True to count them once"] if not uncounted else []
    ways += ["steps_per_epoch=n to fix the number"] if fixable else []
    return Advice(
        f"the number of batches is known only after reading, because {uncounted or decides}.",
        f"Set {', or '.join(ways)}." if ways else "Iterate without it; no option fixes it with follow=True.",
    )


def unknown_steps_of_ranks_advice(countable: bool, grows: bool = False) -> Advice:
    """What unknown numbers of batches mean for several ranks, and the remedy.

    Args:
        countable: whether `count_rows` can count the rows.
        grows: whether each pass reads what was appended, so that no row may be left out.
    """
    if grows:
        counted = f"count_rows=True with {_PAD}, or " if countable else ""
        remedy = f"Use {counted}torch's Join around the loop."
    elif countable:
        remedy = "Use count_rows=True with even='drop' or even='pad', steps_per_epoch=n, or even='sync'."
    else:
        remedy = "Use steps_per_epoch=n or even='sync'."
    return Advice(f"the ranks' numbers of steps are not known before reading, and may differ. {_HANGS}", remedy)


def uneven_steps_advice(plan: Plan, epoch: int, countable: bool = True, *, wanted: bool = False) -> Advice | None:
    """Advice about ranks whose steps differ; None if they do not, or if the options make them equal.

    Args:
        plan: of all ranks.
        epoch: the epoch.
        countable: whether `count_rows` can count the rows of the plan.
        wanted: whether `even="none"` says that steps may differ.
    """
    if wanted or plan.num_ranks == 1 or plan.options.even != "none" or plan.options.steps_per_epoch is not None:
        return None
    steps = plan.steps(epoch)
    if steps is None:
        return unknown_steps_of_ranks_advice(countable, plan.grows)
    if len(set(steps)) == 1:
        return None
    return Advice(
        f"the {plan.num_ranks} ranks have different numbers of steps in epoch {epoch}: {listed(steps)}. {_HANGS}",
        f"Use {_ways_to_level(plan)}, or torch's Join around the loop.",
    )


def idle_workers_advice(splits_of_workers: Sequence[int]) -> Advice | None:
    """Advice about workers that get no rows; None if every worker gets some, or there is only one.

    Args:
        splits_of_workers: for each worker of a rank, the number of splits from which it delivers rows.
    """
    idle, workers = splits_of_workers.count(0), len(splits_of_workers)
    if workers == 1 or not idle or not any(splits_of_workers):
        return None
    return Advice(
        f"{idle} of the rank's {workers} workers {'has' if idle == 1 else 'have'} nothing to read: there are too few "
        "splits or batches for them.",
        "Use fewer workers, smaller splits (split_bytes=, split_rows=), or a smaller batch_size.",
    )


def small_windows_advice(plan: RankPlan, shuffle: ShuffleOptions) -> Advice | None:
    """Advice about shuffle windows that draw from too few splits to mix sorted data; None if they draw from enough."""
    window = None if shuffle.window_bytes is None or shuffle.by_partition else plan.window
    if window is None or window.splits >= min(_FEW_SPLITS, window.of_splits):
        return None
    workers = 1 if plan.joint else sum(bool(shard) for shard in plan.shards)
    if window.windows == workers > 1:
        why = f"each of the {workers} workers shuffles the splits that it reads"
        remedy = "Use num_workers=None, which reads with all cores and shuffles all splits together."
    else:
        shared = f", which {workers} workers share" if workers > 1 else ""
        why = f"window_bytes={shuffle.window_bytes:,}{shared} has no room for more"
        remedy = "Increase window_bytes of Shuffle, or make splits smaller: by split_bytes, or by smaller row groups."
    return Advice(
        f"each shuffle window holds {window.splits} of {window.of_splits} splits: {why}. "
        "If the data are sorted, batches are not random samples.",
        remedy,
    )


def _rows_of_ranks(plan: Plan, epoch: int, idle: Sequence[int]) -> str:
    rows = plan.rows(epoch)
    return (
        f"rank{'s' * (len(idle) > 1)} {listed(idle)}" if rows is None else f"{_units(plan)}s per rank: {listed(rows)}"
    )


def _units(plan: Plan) -> str:
    """What a plan counts, in a word."""
    return plan.unit.planned


def why_idle(plan: Plan) -> tuple[str, str]:
    """Why ranks get no rows, and the remedy."""
    ranks, splits = plural(plan.num_ranks, "rank"), len(plan.splits)
    if plan.exact and plan.options.last_batch == "drop":
        return (
            f"last_batch='drop' leaves out what is less than a batch of {plural(plan.batch_rows, _units(plan))}",
            "Use a smaller batch_size, or last_batch='partial'.",
        )
    rows = plan.splits.rows
    if rows is not None and rows < plan.num_ranks:
        return f"there {_are(rows, _units(plan))} for {ranks}", "Use fewer ranks."
    length = plan.options.unit_rows
    if rows is not None and length > 1 and rows < plan.num_ranks * length:
        return (
            f"there {_are(rows, 'token')}, which do not fill a sequence of {length} for each of {ranks}",
            "Use fewer ranks, a smaller Pack(length), or even='pad' (delivers them under a mask).",
        )
    why = f"there {_are(splits, 'split')} for {ranks}"
    if len(plan.parts) > 1:
        most = max(Counter(plan.splits.files[file].info.part for file in plan.splits.file.tolist()).values())
        why = f"each of the {len(plan.parts)} datasets is shared by itself, and has at most {plural(most, 'split')}"
    if _most_splits(plan) >= plan.num_ranks > splits:
        return why, "Use a smaller split_bytes= or split_rows=, which makes more splits."
    return why, f"Use {_ways_to_cut(plan)}; or write more and smaller row groups or files."


def _ways_to_cut(plan: Plan) -> str:
    """The options that let ranks share the rows of one split."""
    contiguous = "sharding='contiguous', which lets several ranks read parts of one split"
    if plan.uncounted:
        return f"count_rows=True with {contiguous}"
    movable = plan.exact and plan.options.even == "none" and plan.options.steps_per_epoch is None
    return f"{_ways_to_level(plan)}, or {contiguous}" if movable else contiguous


def _ways_to_level(plan: Plan) -> str:
    """The options that give all ranks equal steps if rows are counted; no row of growing data may be left out."""
    return _PAD if plan.grows else _EVEN


def _are(number: int, noun: str) -> str:
    return f"{'is' if number == 1 else 'are'} {plural(number, noun)}"


def _most_splits(plan: Plan) -> int:
    """The largest number of splits that these files allow."""
    layouts = [file.layout for file in plan.files]
    return sum(1 if layout.sequential else len(layout.segments) for layout in layouts)


def _effect(plan: Plan, idle: int) -> str:
    """What happens in an epoch in which `idle` ranks have no rows."""
    if idle == plan.num_ranks:
        return "The loader is empty."
    if plan.options.even == "sync":
        return "even='sync' then ends the epoch of all ranks before the first step."
    if plan.options.steps_per_epoch is not None:
        return "They repeat the rows of other ranks."
    return _HANGS
