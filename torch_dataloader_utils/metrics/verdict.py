"""The verdict on a pass: what limited its speed, and the one knob to turn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.events import Event, PassEvent
from torch_dataloader_utils.metrics.meter import Meter, PassStatus, PassTotals
from torch_dataloader_utils.metrics.totals import batch_seconds
from torch_dataloader_utils.printing import damage_in_words, plural

# Logs the verdict on each complete pass.

_LOG = logging.getLogger("torch_dataloader_utils")


class VerdictLog:
    """The verdicts on a dataset's passes, of which each is logged once.

    Args:
        meter: measures the passes.
        reading: how the dataset is read.

    Attributes:
        world: the number of ranks and this process's rank, set when a pass begins; nothing is logged without it.
    """

    def __init__(self, meter: Meter, reading: Reading) -> None:
        self._meter = meter
        self._reading = reading
        self.world: World | None = None

    @property
    def last(self) -> Verdict | None:
        """The verdict on the last complete pass; None before it."""
        completed = self._meter.completed
        return None if completed is None else verdict(completed, self._reading)

    def log(self, event: Event) -> None:
        """Log the verdict if the event is the end of a complete pass."""
        world, ended = self.world, isinstance(event, PassEvent) and event.complete
        if world is not None and ended and _LOG.isEnabledFor(logging.INFO):
            _LOG.info("rank %d of %d, %s", world.rank, world.num_ranks, self.last)


Limit: TypeAlias = Literal[
    "storage", "decode", "delete", "filter", "transform", "shuffle", "convert", "batches", "start", "consumer"
]

_WAITING = 0.1  # the share of the time waited from which on the loader limits the speed
# The stages of `Work` that each of these limits covers.
_STAGES: Mapping[Limit, tuple[str, ...]] = {
    "storage": ("read",),
    "decode": ("decode",),
    "delete": ("delete",),
    "filter": ("filter",),
    "transform": ("transform",),
    "shuffle": ("shuffle",),
    "convert": ("convert", "pack"),
}
_NAMES: Mapping[Limit, str] = {
    "storage": "waiting for the store",
    "decode": "decoding",
    "delete": "leaving out deleted rows",
    "filter": "filtering",
    "transform": "your transform",
    "shuffle": "shuffling rows",
    "convert": "converting to the arrays of batches",
}
_KNOBS: Mapping[Limit, str] = {
    "storage": "Set cache=folder to keep the data on a local disk, or raise num_workers for more requests at a time.",
    "decode": "Read fewer columns with columns=, or give the process more cores.",
    "delete": "Compact the table, so that fewer rows are deleted whenever it is read.",
    "filter": "Sort the data by the filtered columns, so that whole row groups are skipped.",
    "transform": "Vectorize it, or use worker_mode='processes' if it is Python code.",
    "shuffle": "Read fewer columns with columns=, or shuffle in smaller windows.",
    "convert": "Read fewer columns with columns=, or store them in the types that batches have.",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a dataset is read, as far as advice depends on it.

    Attributes:
        inline: whether blocks are read in the consumer's thread.
        processes: whether I/O workers are processes.
        local: whether the data is on this machine.
        collates: whether there is a `collate_fn`.
        in_step: whether ranks wait for each other between steps (`even="sync"`).
        units: what a pass counts, in a word.
    """

    inline: bool = False
    processes: bool = False
    local: bool = True
    collates: bool = False
    in_step: bool = False
    units: str = "rows"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limited the speed of a pass. Print it for a sentence or two.

    Attributes:
        progress: the pass: its rows, steps and seconds.
        limit: what limited it: "storage", "decode", "delete", "filter", "transform", "shuffle", "convert", "batches"
            (cutting them, `collate_fn`, the device), "start" (the wait for the first batch) or "consumer" (training).
        waited_fraction: the share of the time for which `next` was blocked.
        seconds: that I/O workers spent, by the limits from "storage" to "convert".
        advice: what to change.
        skipped: damaged files that `on_error="skip"` left out, and their rows as far as known.
        units: what is counted as rows: "rows", "sequences", "tokens" or "batches".
    """

    progress: PassStatus
    limit: Limit
    waited_fraction: float
    seconds: Mapping[Limit, float]
    advice: str
    skipped: tuple[int, int] = (0, 0)
    units: str = "rows"

    @property
    def share(self) -> float:
        """Of the seconds of reading, the share of those that were spent on what took most."""
        return _fraction(max(self.seconds.values()), sum(self.seconds.values()))

    @property
    def rows_per_s(self) -> float:
        """Rows per second."""
        return _fraction(self.progress.rows, self.progress.seconds)

    @property
    def _left_out(self) -> str:
        return f" Left out: {damage_in_words(*self.skipped)}." if self.skipped[0] else ""

    def __str__(self) -> str:
        now, units = self.progress, self.units
        expected = "" if now.rows_expected is None else f" of {now.rows_expected:,}"
        first = "" if now.first_wait is None else f" ({now.first_wait:.2g} s of it for the first batch)"
        return (
            f"epoch {now.epoch}: {now.rows:,}{expected} {units} in {plural(now.steps, 'step')}, {self.rows_per_s:,.0f} "
            f"{units}/s, {self.waited_fraction:.0%} of {now.seconds:.3g} s waiting for data{first}. "
            f"{self.advice}{self._left_out}"
        )


def verdict(ended: PassTotals, reading: Reading) -> Verdict:
    """The verdict on a pass.

    If the wait for the first batch took half of the time, the start limits the speed. Otherwise the loader does if
    `next` was blocked for a tenth of the time after the first batch: the stage in which I/O workers spent most
    seconds, unless most of that wait was for cutting batches and `collate_fn`.

    Args:
        ended: what was measured.
        reading: how the dataset is read.
    """
    now = ended.progress
    seconds = {limit: sum(map(ended.totals.of_workers, stages)) for limit, stages in _STAGES.items()}
    slowest = max(seconds, key=seconds.__getitem__)
    limit = _limit(ended, slowest)
    waited = _fraction(now.waited, now.seconds)
    judged = Verdict(now, limit, waited, seconds, "No row was delivered.", ended.totals.skipped, reading.units)
    return replace(judged, advice=_advice(limit, slowest, judged, reading)) if now.steps else judged


def _limit(ended: PassTotals, slowest: Limit) -> Limit:
    steady, now = ended.steady, ended.progress
    if 2 * (now.first_wait or 0.0) > now.seconds:
        return "start"
    if _fraction(steady.waited, steady.seconds) < _WAITING:
        return "consumer"
    return "batches" if 2 * batch_seconds(steady) > steady.waited else slowest


def _advice(limit: Limit, slowest: Limit, judged: Verdict, reading: Reading) -> str:
    """What limits the speed, and what to change, in words."""
    name = _NAMES[slowest]
    if slowest == "decode" and reading.local:
        name += ", which includes reading local files,"
    if limit == "consumer" and judged.waited_fraction >= _WAITING:
        return (
            "After the first batch, training limits the speed: a faster loader would change nothing, and the wait for "
            "the first batch matters less in long epochs."
        )
    if limit == "consumer":
        return "Training limits the speed: a faster loader would change nothing."
    if limit == "start":
        return (
            f"Most of that is the wait for the first batch, mostly {name.rstrip(',')}: it matters less in long epochs."
        )
    if limit == "batches":
        return _batches_advice(reading)
    knob = _KNOBS[limit]
    if reading.inline:
        knob = "num_workers=0 reads between training steps: set num_workers=2 or more to read ahead."
    elif reading.processes and limit in ("decode", "transform"):
        knob = "Raise num_workers, if there are idle cores."
    return (
        f"{name[0].upper()}{name[1:]} limits the speed, with {judged.share:.0%} of the time that reading takes. {knob}"
    )


def _batches_advice(reading: Reading) -> str:
    parts = ["cutting blocks", *["collate_fn"] * reading.collates, "the copy to the device"]
    parts += ["waiting for the other ranks"] * reading.in_step
    if not reading.collates:
        knob = "Use a larger batch_size=, or strings='bytes' for columns of text."
    elif reading.inline:
        knob = "Move work from collate_fn to transform=, and set num_workers=2 or more, so that it runs ahead."
    else:
        knob = "Move work from collate_fn to transform=, which runs ahead."
    return f"Making batches ({', '.join(parts)}) limits the speed: it happens between training steps. {knob}"


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
