"""The state of a loader as plain data: the data and options it belongs to, and the progress of the ranks.

    {"version", "plan_version",
     "data": {component: [digest, text]},
     "epoch": int,
     "links": ({"options": {...}, "batches": n or [n of each rank], "cursors": {rank: [turn, [worker's cursor]]}},),
     "skip": [[first, last]],
     "source": {...}, the position in a table's history,
     "worker": index of a worker of a foreign loader,
     "dp_rank_<r>": {"plan_version", "epoch", "links", "skip", "digest"} of this rank, if counts are unknown,
     "digest": of everything else}

A *link* is a phase of the epoch that ran under one set of options; it has "cursors" if row counts are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_dataloader_utils.checkpoint.form import OF_RANK, check_form, check_seal, plain, sealed
from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.model import END, RankCursor, WorkerCursor
from torch_dataloader_utils.planning.phases import Phase
from torch_dataloader_utils.planning.workers import delivered_by_shard
from torch_dataloader_utils.printing import shown

ROW_WEIGHTS = "row_weights"  # a component of the data
COUNTS, UNKNOWN = "row counts", "unknown"  # a component of the data, and its text if states hold cursors


def phase_of(value: Mapping[str, Any]) -> Phase:
    """The phase recorded in a link of a state."""
    batches = value["batches"]
    return Phase(
        dict(value["options"]),
        batches if isinstance(batches, int) else tuple(batches),
        {int(rank): _cursor_of(cursor) for rank, cursor in value.get("cursors", {}).items()},
    )


def link_of(phase: Phase) -> dict[str, Any]:
    """The phase as a link of a state."""
    batches = phase.batches if isinstance(phase.batches, int) else list(phase.batches)
    link = {"options": dict(phase.options), "batches": batches}
    if phase.cursors:
        link["cursors"] = {str(rank): _plain_cursor(cursor) for rank, cursor in phase.cursors.items()}
    return link


def _plain_cursor(cursor: RankCursor | None) -> list[Any] | None:
    if cursor is None:
        return None
    return [cursor.turn, [[at.task, at.rows, at.live, at.lap] for at in cursor.shards]]


def _cursor_of(value: Any) -> RankCursor | None:
    return None if value is None else RankCursor(value[0], tuple(WorkerCursor(*at) for at in value[1]))


def weights_in(state: Mapping[str, Any]) -> str:
    """What a state has of the weights by which rows are drawn: a digest, as text; "" if they are not."""
    return str(state["data"].get(ROW_WEIGHTS, ("", ""))[1])


def short(text: str) -> str:
    """The text, shortened if long."""
    return text if len(text) <= 120 else f"{text[:117]}..."


def steps_taken(state: Mapping[str, Any]) -> int:
    """The batches of the epoch taken by the rank that is furthest ahead."""
    return sum(phase_of(link).steps for link in state["links"])


def is_begun(state: Any) -> bool:
    """Whether this is a state of this package, taken within an epoch."""
    try:
        check_form(state)
    except CheckpointMismatchError:
        return False
    return any(phase_of(link).begun for link in state["links"])


def is_between_windows(state: Mapping[str, Any]) -> bool:
    """Whether no worker is within a block, so that it does not matter how the rows of blocks are batched."""
    phases = [phase_of(link) for link in state["links"]]
    cursors = [cursor for phase in phases for cursor in phase.cursors.values() if cursor is not None]
    return all(phase.cursors for phase in phases if phase.begun) and not any(
        at.rows for cursor in cursors for at in cursor.shards
    )


def of_any_rank(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without the part that holds for its rank alone: that rank's progress if row counts are unknown."""
    *past, last = state["links"]
    without = {name: value for name, value in last.items() if name != "cursors"}
    return sealed({**shared_part(state), "links": (*past, without)})


def shared_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without the keys that hold for one rank alone."""
    return {name: value for name, value in state.items() if not name.startswith(OF_RANK)}


def merge_state_dicts(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of all ranks, from the states of each, in the order of ranks.

    The ranks need not be at the same step: each resumes where it was. A rank that is already in the next epoch counts
    as finished in this one.

    The states of all workers of a foreign loader (of their iterators) are joined into the state of its rank.

    Raises:
        CheckpointMismatchError: the states do not belong to the ranks of one job, or to the workers of one loader.
    """
    if not isinstance(states, Sequence):
        raise CheckpointMismatchError(f"merge_state_dicts({shown(states)}): expected a list of states.")
    states = [plain(state) for state in states]
    for state in states:
        check_form(state)
        check_seal(state)
    if not states:
        raise CheckpointMismatchError("merge_state_dicts([]): expected the states of all ranks, got none.")
    if any("worker" in state for state in states):
        return _of_workers(states)
    epoch = min(state["epoch"] for state in states)
    behind = [state for state in states if state["epoch"] == epoch]
    first = behind[0]
    _check_alike(states, "data", lambda state: state["data"], digests_of)
    _check_alike(behind, "plan version", lambda state: state["plan_version"])
    _check_alike(behind, "options", lambda state: [link["options"] for link in state["links"]])
    _check_alike(behind, "past", lambda state: (state["links"][:-1], state.get("skip")))
    options = first["links"][-1]["options"]
    ranks = options.get("num_ranks", len(states))
    if len(states) != ranks:
        raise CheckpointMismatchError(
            f"merge_state_dicts got {len(states)} states that were taken with num_ranks={ranks}: expected one state of "
            "each rank, in the order of ranks."
        )
    links = [phase_of(state["links"][-1]) if state["epoch"] == epoch else None for state in states]
    return _with_last(first, _joined_link(options, links, unknown=unknown_counts(first)))


def digests_of(data: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What identifies the data of a state: its digests. Their texts hide other secrets in other processes."""
    return {name: component[0] for name, component in data.items()}


def unknown_counts(state: Mapping[str, Any]) -> bool:
    """Whether the rows of the state's data are known only after reading."""
    return bool(state["data"].get(COUNTS, ("", ""))[1] == UNKNOWN)


def _with_last(state: Mapping[str, Any], link: Phase) -> dict[str, Any]:
    """The state with another last link."""
    policy = {name: value for name, value in state["links"][-1].items() if name == "policy"}
    return sealed({**shared_part(state), "links": (*state["links"][:-1], {**link_of(link), **policy})})


def _of_workers(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of one rank from those of all workers of a foreign loader, which takes a batch from each in turn."""
    _check_alike(states, "epochs (give the states of the workers' iterators)", lambda state: state["epoch"])
    _check_alike(states, "data", lambda state: state["data"], digests_of)
    _check_alike(states, "plan version", lambda state: state["plan_version"])
    _check_alike(states, "options", lambda state: (state["links"][-1]["options"], state["links"][:-1]))
    states = sorted(states, key=lambda state: state.get("worker", -1))
    first, links = states[0], [phase_of(state["links"][-1]) for state in states]
    options, given = links[0].options, [state.get("worker") for state in states]
    workers = options.get("num_shards", 1)  # missing with canonical_ranks: only a single worker delivers these
    if given != list(range(workers)):
        raise CheckpointMismatchError(
            f"merge_state_dicts got states of the workers {given} of a foreign loader: expected one state of each of "
            f"its {workers} workers."
        )
    if options["steps_per_epoch"] is not None:
        raise CheckpointMismatchError(
            "merge_state_dicts cannot join a foreign loader's workers with "
            f"steps_per_epoch={options['steps_per_epoch']}: each worker repeats its own rows, which our loader does "
            "not. Resume the foreign loader with these states."
        )
    taken = [link.steps for link in links]
    total = sum(taken)
    # Only the count of a worker that has ended may lag behind.
    most = [count if state.get("ended") else total + 1 for count, state in zip(taken, states, strict=True)]
    expected, turn = delivered_by_shard(most, total)
    if expected != taken:
        raise CheckpointMismatchError(
            f"merge_state_dicts: the workers delivered {taken} batches, but one loader takes a batch from each in "
            "turn. Pass states taken at the same moment, of a loader with in_order=True."
        )
    if unknown_counts(first) and any(link.steps and not link.cursors for link in links):
        raise CheckpointMismatchError(
            "merge_state_dicts: row counts are known only after reading, and a worker's state does not hold its "
            "position. Pass states taken after the worker's first batch."
        )
    state = {name: value for name, value in first.items() if name not in ("worker", "ended")}
    return _with_last(state, Phase(options, total, _joined_cursors(links, turn)))


def _joined_cursors(links: Sequence[Phase], turn: int) -> dict[int, RankCursor | None]:
    """A rank's progress, from that of each of its workers; empty if row counts are known."""
    begun = {rank for link in links for rank in link.cursors}
    at = [next((cursor.shards[0] for cursor in link.cursors.values() if cursor), WorkerCursor()) for link in links]
    return {rank: RankCursor(turn, tuple(at)) for rank in begun}


def _joined_link(options: Mapping[str, Any], links: Sequence[Phase | None], *, unknown: bool) -> Phase:
    """The last links of all ranks (None: the rank had finished) as one."""
    batches = tuple(None if link is None else link.of_rank(rank) for rank, link in enumerate(links))
    same = None not in batches and len(set(batches)) == 1
    merged = Phase(options, batches[0] if same and batches[0] is not None else batches)
    if not unknown:
        return merged
    end = RankCursor(0, (END,) * options["num_shards"])
    cursors: dict[int, RankCursor | None] = {}
    for rank, link in enumerate(links):
        if link is not None and link.of_rank(rank) and rank not in link.cursors:
            raise CheckpointMismatchError(
                f"the state at index {rank} holds the position of rank(s) {sorted(link.cursors)}: expected the "
                f"state of rank {rank} there (pass the states in the order of ranks)."
            )
        cursors[rank] = end if link is None else link.cursors.get(rank)
    return replace(merged, cursors=cursors)


def _check_alike(
    states: Sequence[Mapping[str, Any]],
    name: str,
    of: Callable[[Mapping[str, Any]], Any],
    compared: Callable[[Any], Any] = lambda value: value,
) -> None:
    for state in states[1:]:
        if compared(of(state)) != compared(of(states[0])):
            raise CheckpointMismatchError(
                f"merge_state_dicts: the states have different {name}: {short(str(of(states[0])))} and "
                f"{short(str(of(state)))}. Pass the states of a single job."
            )
