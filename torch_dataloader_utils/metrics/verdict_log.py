"""Logs the verdict on each complete pass."""

from __future__ import annotations

import logging

from torch_dataloader_utils.distributed.ranks import World
from torch_dataloader_utils.events import Event, PassEvent
from torch_dataloader_utils.metrics.meter import Meter
from torch_dataloader_utils.metrics.verdict import Reading, Verdict, verdict

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
