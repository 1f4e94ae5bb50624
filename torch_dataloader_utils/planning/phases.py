"""The phases of an epoch: each ran under one set of options, on the rows that the previous one had left.

The rest is a function of the plan and of each rank's progress, so a state does not need to hold rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.feature import Feature
from torch_dataloader_utils.model import Piece, RankCursor
from torch_dataloader_utils.options import Rotate, Strided, name_of, split_sharding
from torch_dataloader_utils.planning.options import PlanOptions, ReadTogether
from torch_dataloader_utils.planning.plan import Plan
from torch_dataloader_utils.planning.rest import RemainingRows, Undelivered, begun_laps, left_by_rank, merged, rest_of
from torch_dataloader_utils.planning.sharding import FUNCTION, policy_name

_ALL = 2**62  # more batches than any rank has: stands for a rank that has finished the epoch
_OF_DATA = ("seed", "shuffle", "by_partition")  # the same in all phases of an epoch: a state stores them with its data
_NOT_PLAIN = (*_OF_DATA, "read_together", "unit_rows")


@dataclass(frozen=True)
class Phase:
    """A part of an epoch that ran under one set of options, and the ranks' progress in it.

    Attributes:
        options: the options that shaped its order, as a state records them (`plain_options`).
        batches: the number of batches that every rank took, or that of each rank; None: all that the rank had.
        cursors: the progress of each rank, by rank, if row counts are unknown; None: at the beginning.
    """

    options: Mapping[str, Any]
    batches: int | tuple[int | None, ...]
    cursors: Mapping[int, RankCursor | None] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of batches of the rank that took the most."""
        if isinstance(self.batches, int):
            return self.batches
        return max((count for count in self.batches if count is not None), default=0)

    @property
    def begun(self) -> bool:
        """Whether any rank took a batch."""
        return self.batches != 0 and (isinstance(self.batches, int) or any(count != 0 for count in self.batches))

    def of_rank(self, rank: int) -> int | None:
        """The number of batches that a rank took; None if it took all."""
        return self.batches if isinstance(self.batches, int) else self.batches[rank]

    def delivered(self, rank: int) -> int | RankCursor | None:
        """A rank's progress: a number of batches, or a cursor if row counts are unknown."""
        if self.cursors:
            return self.cursors.get(rank)
        count = self.of_rank(rank)
        return _ALL if count is None else count

    def shape(self, current: PlanOptions) -> tuple[PlanOptions, int]:
        """The options of the phase's plan, and the number of ranks.

        Args:
            current: the current options, for values that a state does not store.

        Raises:
            CheckpointMismatchError: its policy was a function, and is a different one now.
        """
        names = {item.name for item in fields(PlanOptions)} & self.options.keys() - {"sharding"}
        sharding = _sharding_of(self.options, current.sharding)
        own = {name: self.options[name] for name in names}
        options = replace(current, sharding=sharding, **own, **_units_of(self.options))
        return options, self.options["num_ranks"]

    def keeps_ranks(self, shape: tuple[PlanOptions, int], following: tuple[PlanOptions, int]) -> bool:
        """Whether two shapes differ only in their workers, so that each rank resumes with its own rows."""
        (options, ranks), (then, ranks_then) = shape, following
        same = replace(options, num_shards=1) == replace(then, num_shards=1) and ranks == ranks_then
        in_lockstep = isinstance(self.batches, int) and not self.cursors
        # What "auto" means depends on the number of workers. Ranks at different steps would not end together.
        return same and then.sharding != "auto" and (in_lockstep or then.even == "none")


def plain_options(options: PlanOptions, num_ranks: int, features: Feature) -> dict[str, Any]:
    """The options that shape the order, except those stored with the data, as plain values."""
    plain = {item.name: getattr(options, item.name) for item in fields(options) if item.name not in _NOT_PLAIN}
    return plain | dict(features.saved()) | _saved_units(options) | _saved_sharding(options) | {"num_ranks": num_ranks}


# The names that states have for what the first feature that was not about rows brought.
_TOGETHER = {"rows": "pack_rows", "size_bytes": "pack_bytes", "keyed": "pack_keyed"}
_UNIT_ROWS = "sequence_length"


def _saved_units(options: PlanOptions) -> dict[str, Any]:
    """Which rows are read together, and stay together, as states hold it."""
    absent = ReadTogether(0, 0)
    together = options.read_together or absent
    saved = {name: getattr(together, own) for own, name in _TOGETHER.items()}
    return {**saved, _TOGETHER["rows"]: together.rows or None, _UNIT_ROWS: options.unit_rows}


def _units_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The options of which a state holds what `_saved_units` returned."""
    given = {own: saved[name] for own, name in _TOGETHER.items() if name in saved}
    together = ReadTogether(**given) if given.get("rows") else None
    return {"read_together": together, "unit_rows": saved.get(_UNIT_ROWS, 1)}


_UNITS: Mapping[str, Literal["batch", "split_batch"]] = {"shard_batches": "batch", "split_batches": "split_batch"}


def _saved_sharding(options: PlanOptions) -> dict[str, Any]:
    """The policy as states hold it: its name, and the options of rotation and of turns each by itself."""
    rotation = {name: getattr(options.rotation, name) for name in Rotate.fields}
    turns = {name: options.unit == unit for name, unit in _UNITS.items()}
    given = options.sharding
    named = name_of(given) if isinstance(given, (Rotate, Strided)) else policy_name(given)
    if isinstance(named, Mapping):
        kind, own = split_sharding(named)
        named = {"policy": kind, **own}
    return {**rotation, **turns, "sharding": named}


def _sharding_of(saved: Mapping[str, Any], current: Any) -> Any:
    """The policy of which a state holds what `_saved_sharding` returned."""
    policy = _policy_named(saved["sharding"], current)
    if policy == "rotate":
        return Rotate(**{name: saved[name] for name in Rotate.fields if name in saved})
    if policy == "strided":
        return Strided(next((unit for name, unit in _UNITS.items() if saved.get(name)), "row"))
    return policy


def _policy_named(saved: Any, current: Any) -> Any:
    """The policy named in a state; a function is taken from the current options."""
    function = current["kind"] if isinstance(current, Mapping) else current
    if isinstance(saved, Mapping):
        own = {name: value for name, value in saved.items() if name != "policy"}
        return {"kind": _policy_named(saved["policy"], function), **own}
    if not saved.startswith(FUNCTION):
        return saved
    if policy_name(function) != saved:
        raise CheckpointMismatchError(
            f"the state was taken with sharding={saved}, but this loader has {policy_name(current)}, with which the "
            "delivered rows cannot be inferred: pass the former, or register it under a name with register_policy."
        )
    return function


def plan_of_rest(first: Plan, epoch: int, past: Sequence[Phase]) -> Plan:
    """The plan of the rows of an epoch that earlier phases left, for the options and ranks of `first`.

    Args:
        first: the plan of the whole epoch; returned unchanged if there are no phases.
        epoch: the epoch.
        past: the phases, from the epoch's beginning.
    """
    rest = None
    shapes = [*(phase.shape(first.options) for phase in past), (first.options, first.num_ranks)]
    for phase, shape, following in zip(past, shapes, shapes[1:], strict=False):
        features = first.features.as_saved(phase.options)
        plan = replace(first, options=shape[0], num_ranks=shape[1], rest=rest, features=features)
        by_rank = not first.features.mixes_rows and phase.keeps_ranks(shape, following)
        rest = _left(plan, epoch, phase, by_rank=by_rank)
    return first if rest is None else replace(first, rest=rest)


def _left(plan: Plan, epoch: int, phase: Phase, *, by_rank: bool) -> RemainingRows:
    """The rows of `epoch` that are left after `phase` of `plan`; with `by_rank`, each rank keeps its own."""
    number = 1 if plan.rest is None else plan.rest.phase + 1
    if plan.features.streams:
        begun = [begun_laps(partial(plan.rank, epoch, rank), phase.cursors.get(rank)) for rank in range(plan.num_ranks)]
        return plan.remaining(epoch, number, Undelivered(begun=begun, steps=phase.steps))
    done = [phase.delivered(rank) for rank in range(plan.num_ranks)]
    steps, most = plan.steps(epoch), plan.options.steps_per_epoch
    if most is not None:  # this many steps end the epoch, whatever rows they leave out or repeat
        steps = steps and [most] * plan.num_ranks
        done = [min(n, most) if isinstance(n, int) else n for n in done]
    rest = partial(plan.remaining, epoch, number)
    if steps and all(isinstance(n, int) and n >= step for n, step in zip(done, steps, strict=True)):
        return rest(Undelivered())
    left = [left_by_rank(partial(plan.rank, epoch, rank), n, laps=most is not None) for rank, n in enumerate(done)]
    left_out = plan.left_out(epoch)
    if by_rank:
        return RemainingRows(epoch, number, rest_of(plan.splits, left_out), tuple(map(_few, left)))
    real = [piece for pieces in left for piece in pieces if not piece.pad]
    return rest(Undelivered([*real, *left_out]))


def _few(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The pieces of a rank, merged into as few as possible, padding last."""
    return (*merged(piece for piece in pieces if not piece.pad), *(piece for piece in pieces if piece.pad))
