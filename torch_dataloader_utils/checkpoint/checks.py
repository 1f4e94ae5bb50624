"""Checks whether a state can be resumed: its phases against the options of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.model import END
from torch_dataloader_utils.planning.mix_epochs import mixing_in_rows
from torch_dataloader_utils.planning.options import PlanOptions
from torch_dataloader_utils.planning.phases import Phase

_PAIRS = 8  # shown


def check_shareable(last: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that the rows a phase left can be sharded under other options.

    Args:
        last: the options of the phase.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: the phase has its own order, which cannot be resumed under other options.
    """
    if "strategy" in {**last, **current}:
        raise CheckpointMismatchError(
            "a strategy with generate() assigns rows itself, so its states can be resumed only under the same "
            f"options. The state has {difference(last, current)}."
        )
    if last.get("canonical_ranks") != current.get("canonical_ranks"):
        raise CheckpointMismatchError(
            "canonical_ranks makes an order that does not depend on the ranks, so it can be resumed only with the same "
            f"canonical_ranks. The state has {difference(last, current)}."
        )
    if current.get("canonical_ranks"):
        raise CheckpointMismatchError(
            "with canonical_ranks, the global batch (num_ranks x batch_size) and the other options that shape the "
            f"order must stay the same. The state has {difference(last, current)}."
        )


def check_boundaries(saved: tuple[PlanOptions, int], current: tuple[PlanOptions, int]) -> None:
    """Check that weights which change at steps change at the same rows of the run as when the state was taken.

    Args:
        saved: the options that the state was taken with, and the number of ranks.
        current: those of the loader.

    Raises:
        CheckpointMismatchError: a step has another number of rows now.
    """
    mixing = current[0].mixing
    if mixing is None or mixing.get("unit") != "step":
        return
    then, now = (mixing_in_rows(mixing, *shape)["phases"] for shape in (saved, current))
    if then != now:
        steps = [step for step, _ in mixing["phases"]]
        pairs = ", ".join(f"({row:_}, ...)" for row, _ in then[:_PAIRS])
        raise CheckpointMismatchError(
            f"weights change at the steps {steps[:_PAIRS]}, which are other rows here than in the state: it was taken "
            f"by {saved[1]} ranks with batch_size={saved[0].batch_size} and even={saved[0].even!r}, and here are "
            f"{current[1]} with {current[0].batch_size} and {current[0].even!r}. Keep them at the rows that the state "
            f"means: weights_unit='row', weights=[{pairs}{', ...' if len(then) > _PAIRS else ''}]."
        )


def check_cursors(past: Sequence[Phase], current: Mapping[str, Any]) -> None:
    """Check that each rank's progress is known, for data whose rows are known only after reading.

    Args:
        past: the phases.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: cursors of ranks are missing, or a rank had finished with rows left out.
    """
    for phase in past:
        _check_finished(phase)
        missing = [rank for rank in range(phase.options["num_ranks"]) if rank not in phase.cursors]
        if missing and phase.begun:
            raise CheckpointMismatchError(
                "row counts are known only after reading, and the state does not hold the position of rank(s) "
                f"{', '.join(map(str, missing))}: it can be resumed only by the same kind of loader with the same "
                f"options ({difference(phase.options, current)}). Save loader.state_dict(all_ranks=True), or join the "
                "states of all ranks with merge_state_dicts([...])."
            )


def _check_finished(phase: Phase) -> None:
    """Check that no rank ended with rows left out whose number is unknown."""
    reasons = [
        f"{name}={value!r}"
        for name, value in (("last_batch", "drop"), ("even", "sync"))
        if phase.options.get(name) == value
    ]
    if phase.options.get("steps_per_epoch") is not None:
        reasons.append(f"steps_per_epoch={phase.options['steps_per_epoch']}")
    ended = [rank for rank, cursor in phase.cursors.items() if cursor is not None and END in cursor.shards]
    if reasons and ended:
        raise CheckpointMismatchError(
            f"rank(s) {', '.join(map(str, ended))} had finished the epoch when the states were taken, and left "
            f"out rows ({', '.join(reasons)}). Row counts are known only after reading, so the state does not say "
            "which. Resume with the same options, or from states taken before any rank finished."
        )


def check_reader(state: Mapping[str, Any], worker: int | None, current: Mapping[str, Any]) -> None:
    """Check that the state belongs to the same reader: this package's loader, or a worker of a foreign one.

    Args:
        state: the state.
        worker: the index of the worker that loads it; None for our loader.
        current: the options of the loader.

    Raises:
        CheckpointMismatchError: it belongs to another one.
    """
    saved = state.get("worker")
    if saved is None and (worker is None or not state.get("skip")):
        return  # a state of our own loader: the workers share the rest
    last = state["links"][-1]["options"]
    if saved != worker or dict(last) != current:
        raise CheckpointMismatchError(
            f"the state belongs to {_reader(saved)}, but was loaded into {_reader(worker)}; it has "
            f"{difference(last, current)}. A worker's state can be resumed only by the same worker with the same "
            "options, and steps cannot be skipped there."
        )


def _reader(worker: int | None) -> str:
    return "this package's loader" if worker is None else f"worker {worker} of a foreign loader"


def difference(saved: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """The options that differ, both sides."""
    names = [name for name in {**saved, **current} if saved.get(name) != current.get(name)]
    theirs = ", ".join(f"{name}={saved.get(name)!r}" for name in names)
    ours = ", ".join(f"{name}={current.get(name)!r}" for name in names)
    return f"{theirs}; here: {ours}" if names else "the same options as here"
