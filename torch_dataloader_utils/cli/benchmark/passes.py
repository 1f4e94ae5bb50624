"""The speed of a loader, where its time goes, and what limits it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch_dataloader_utils.cli.benchmark.units import ROWS, CountUnit
from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.events import BlockEvent, Event
from torch_dataloader_utils.loader.dataset import passes_of
from torch_dataloader_utils.metrics.meter import PassStatus, PassTotals
from torch_dataloader_utils.metrics.totals import STAGES, Totals
from torch_dataloader_utils.metrics.verdict import Reading, Verdict, verdict
from torch_dataloader_utils.storage import usable_cores

_SHORT = 0.1  # seconds


@dataclass(frozen=True)
class MeasuredPasses:
    """Passes of one loader.

    Attributes:
        totals: what happened in them.
        passes: how many were begun.
        started: the seconds to their first batches.
        nbytes: decoded bytes.
        unit: what speed is counted in.
    """

    totals: Totals
    passes: int = 1
    started: float = 0.0
    nbytes: int = 0
    unit: CountUnit = ROWS

    @property
    def amount(self) -> int:
        """How many rows, or of another unit, were delivered."""
        return round(self.totals.rows * self.unit.factor)

    @property
    def rate(self) -> float:
        """Rows, or of another unit, per second."""
        return self.amount / self.totals.seconds if self.totals.seconds else 0.0

    @property
    def short(self) -> bool:
        """Whether passes are so short that their beginning counts more than their settings."""
        return self.totals.seconds / self.passes < _SHORT

    @property
    def waiting(self) -> float:
        """The share of the time for which the loop waited for batches."""
        return min(1.0, self.totals.waited / self.totals.seconds) if self.totals.seconds else 0.0

    @property
    def stages(self) -> Mapping[str, float]:
        """Worker seconds in each stage of reading."""
        return {name: self.totals.of_workers(name) for name in STAGES}

    def verdict(self, reading: Reading) -> Verdict:
        """What limits the speed."""
        now = self.totals
        steady = replace(now, waited=now.waited - self.started, seconds=now.seconds - self.started)
        progress = PassStatus(
            0, now.steps, None, now.rows, None, now.waited, self.started, now.seconds, live=False, complete=True
        )
        return verdict(PassTotals(progress, now, steady), reading)

    def values(self) -> dict[str, Any]:
        """All of it, as plain values."""
        now = self.totals
        plain = {"steps": now.steps, "passes": self.passes, "seconds": now.seconds}
        return {
            self.unit.name: self.amount,
            **plain,
            f"{self.unit.name}_per_s": self.rate,
            "waited": now.waited,
            "decoded_bytes": self.nbytes,
            "worker_seconds": dict(self.stages),
        }


def joined(parts: Sequence[MeasuredPasses]) -> MeasuredPasses:
    """All passes together."""
    totals = [part.totals for part in parts]
    return MeasuredPasses(
        Totals(
            waited=sum(each.waited for each in totals),
            seconds=sum(each.seconds for each in totals),
            steps=sum(each.steps for each in totals),
            rows=sum(each.rows for each in totals),
            workers=dict(enumerate(sums for each in totals for sums in each.workers.values())),
        ),
        sum(part.passes for part in parts),
        sum(part.started for part in parts),
        sum(part.nbytes for part in parts),
        parts[0].unit,
    )


def measured(
    data: Data, seconds: float, steps: int, step_seconds: float = 0.0, unit: CountUnit = ROWS
) -> MeasuredPasses:
    """Passes for about so many seconds, at least one; each batch is dropped after `step_seconds`.

    Every pass ends after so many steps, whatever the settings: if time ended it, one that begins slowly would seem
    far slower than it is.
    """
    with _opened(data) as (loader, dataset):
        if passes_of(dataset).options.worker.worker_mode == "processes":
            _pass(loader, 1, 0.0)  # starts the processes, which stay
        sizes: list[int] = []
        dataset.on_event(lambda event: sizes.append(_size(event)))
        starts: list[float] = []
        meter = passes_of(dataset).meter
        before, began = meter.totals(), time.perf_counter()
        while not starts or time.perf_counter() < began + seconds:
            dataset.set_epoch(len(starts) + 1)
            starts.append(_pass(loader, steps, step_seconds))
        totals = meter.totals().since(before)
        whole = replace(totals, seconds=time.perf_counter() - began)  # with the beginnings and ends of passes
        return MeasuredPasses(whole, len(starts), sum(starts), sum(sizes), unit)


def first_pass(data: Data, seconds: float, step_seconds: float = 0.0) -> tuple[int, float]:
    """The steps of a pass for about so many seconds after its first batch, and the seconds to that batch.

    It has at least the rows of a shuffle window, which are read together, and those that all cores read at first. The
    first batch does not count: after a slow beginning, all later passes would be too short to judge.
    """
    with _opened(data) as (loader, dataset):
        began, first, steps = time.perf_counter(), 0.0, 0
        seconds = max(seconds, 2 * _SHORT)
        least = _least_rows(dataset) // dataset.plan().batch_rows
        batches = iter(loader)
        for _ in batches:
            first = first or time.perf_counter() - began
            steps += 1
            _train(step_seconds)
            if time.perf_counter() - began - first > seconds and steps >= least:
                break
        batches.close()
        return steps, first


def _least_rows(dataset: Any) -> int:
    window = dataset.plan().window
    segments = [segment.rows or 0 for file in passes_of(dataset).source.files for segment in file.layout.segments]
    return max((window and window.rows) or 0, 2 * usable_cores() * max(segments, default=0))


@contextmanager
def _opened(data: Data) -> Iterator[tuple[Any, Any]]:
    loader, dataset = data.open()
    try:
        yield loader, dataset
    finally:
        dataset.close()


def _size(event: Event) -> int:
    return event.nbytes if isinstance(event, BlockEvent) else 0


def _pass(loader: Any, steps: int, step_seconds: float) -> float:
    """Take so many batches of a pass; returns the seconds to the first."""
    began, first = time.perf_counter(), 0.0
    batches = iter(loader)
    for _ in islice(batches, steps):
        first = first or time.perf_counter() - began
        _train(step_seconds)
    batches.close()
    return first


def _train(seconds: float) -> None:
    """A training step."""
    if seconds:
        time.sleep(seconds)
