"""What each rank records before a step that it takes together with others, and what is wrong with these records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.printing import listed

ENTERED, LATE, DONE = "entered", "late", "done"  # waits for others; has waited too long, but runs; has finished
_SHOWN = 16  # processes and options named in a message


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank does together with its peers.

    Attributes:
        does: in words, such as "create this loader".
        limit: seconds to wait for the others; 0 for no limit.
        options: those that decide which steps there are, as text by name: they must be the same on all ranks.
        named: other options, for messages about plans that differ.
    """

    does: str
    limit: float = 0
    options: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The latest step of a rank.

    Attributes:
        number: of the step.
        state: ENTERED, LATE or DONE.
        does: the step in words.
        options: as for `Step`, of both kinds.
    """

    number: int
    state: str
    does: str
    options: Mapping[str, str]


def absent(records: Mapping[int, Record], members: Sequence[int], number: int) -> list[int]:
    """The members that have not arrived at this step, or give no sign of life since."""
    return [
        rank
        for rank in members
        if rank not in records
        or records[rank].number < number
        or (records[rank].number == number and records[rank].state == ENTERED)
    ]


def not_here(records: Mapping[int, Record], members: Sequence[int], number: int) -> list[int]:
    """The members that have not arrived at this step."""
    return [rank for rank in members if rank not in records or records[rank].number < number]


def lateness(records: Mapping[int, Record], missing: Sequence[int], step: Step) -> str:
    """The message about ranks that did not take a step in time."""
    before = {records[rank].does if rank in records else "none" for rank in missing}
    return (
        f"process(es) {listed(missing)} did not {step.does} within timeout={step.limit} s (the last step before: "
        f"{listed(sorted(before))}): they failed, are stopped, or do something else, such as another number of passes. "
        "See their own output. (For a loader that only one process uses, pass num_ranks=1, rank=0.)"
    )


def difference(records: Mapping[int, Record]) -> str | None:
    """What differs between the steps of these ranks, or None."""
    options = differing_options({rank: record.options for rank, record in records.items()})
    if options:
        return (
            f"the ranks have different options: {options}. Pass the same ones, and install one version, on every rank."
        )
    steps = _by_value({rank: record.does for rank, record in records.items()})
    if len(steps) < 2:
        return None
    return (
        f"the ranks are at different steps: {steps_text(steps)}. Every rank must create the same loaders and run the "
        "same number of passes. (For a loader that only one process uses, pass num_ranks=1, rank=0.)"
    )


def differing_options(options: Mapping[int, Mapping[str, str]]) -> str:
    """The options by rank that differ, with the values of each rank; "" for none."""
    names = [name for name in next(iter(options.values())) if all(name in known for known in options.values())]
    texts = []
    for name in names:
        values = _by_value({rank: known[name] for rank, known in options.items()})
        if len(values) > 1:
            texts.append(f"{name} is " + ", ".join(f"{value} on process(es) {of}" for value, of in values.items()))
    return "; ".join(texts[:_SHOWN])


def steps_text(steps: Mapping[str, str]) -> str:
    """Who is about to do what."""
    return ", ".join(f"process(es) {ranks} {does!r}" for does, ranks in steps.items())


def _by_value(values: Mapping[int, str]) -> dict[str, str]:
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return {value: listed(members) for value, members in ranks.items()}
