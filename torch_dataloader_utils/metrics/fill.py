"""Says that a mix has fewer tokens of a dataset than its weight says, where its sequences or batches are not full."""

from __future__ import annotations

import logging
from collections import Counter

from torch_dataloader_utils.events import BlockEvent, Event
from torch_dataloader_utils.metrics.totals import tokens_of

_LOG = logging.getLogger("torch_dataloader_utils")
_UNITS = 1000  # of a dataset: fewer say little
_FULL = 0.9
_ADVICE = {
    "sequences": "Pack(method='wrap') fills all sequences; a smaller Pack(length) may fill more.",
    "batches": "A larger batch_size, or more batch_tokens, may fill more.",
}

Source = int | str


class FillLog:
    """Warns once, of the first dataset of a mix whose sequences or batches are filled to less than 90 percent."""

    def __init__(self) -> None:
        self._units: Counter[Source] = Counter()
        self._tokens: Counter[Source] = Counter()
        self._real: Counter[Source] = Counter()
        self._warned = False

    def __call__(self, event: Event) -> None:
        """Count the tokens of a block."""
        if self._warned or not isinstance(event, BlockEvent) or not event.work.tokens:
            return
        for (source, kind), count in tokens_of(event).items():
            if source is not None and kind != "trained_tokens":
                (self._tokens if kind == "tokens" else self._real)[source] += round(count)
        for source, unit in {(each.source, each.unit) for each in event.work.tokens if each.source is not None}:
            self._units[source] += event.rows
            read = self._units[source] >= _UNITS and self._tokens.total() > self._tokens[source]
            if read and self._real[source] < _FULL * self._tokens[source]:
                self._warn(source, unit)
                return

    def _warn(self, source: Source, unit: str) -> None:
        self._warned = True
        fill = self._real[source] / self._tokens[source]
        places, real = (counts.total() - counts[source] for counts in (self._tokens, self._real))
        of_others = max(real / places, 1e-9)
        _LOG.warning(
            "the %s of dataset %r are filled to %.0f %%, and those of the others to %.0f %%: beside them it has %.2f "
            "of the tokens that its weight says. %s",
            unit, source, 100 * fill, 100 * of_others, fill / of_others, _ADVICE[unit],
        )  # fmt: skip
