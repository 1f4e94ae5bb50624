"""Rows for which a transform fails in a pass, if that is no error: reported, counted, and an error if they are many."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from torch_dataloader_utils.errors import TooManyErrors
from torch_dataloader_utils.events import BlockEvent, Event, FailedRow, Hooks, RowFailedEvent

_LOG = logging.getLogger("torch_dataloader_utils")
_LEAST = 10  # rows that a share allows in any case: a share of the first rows would be none
_SHOWN = 3  # rows in an error

Source = int | str | None


class FailedRows:
    """Those of one pass; called with its events, which it passes on.

    Args:
        hooks: where events are reported.
        epoch: the epoch.
        most: for each dataset that skips such rows, by its name or number, how many it may: a share, as a float, or a
            number; for a single dataset, by None.
    """

    def __init__(self, hooks: Hooks, epoch: int, most: Mapping[Source, float]) -> None:
        self._hooks, self._epoch, self._most = hooks, epoch, most
        self._rows: Counter[Source] = Counter()
        self._kinds: dict[Source, Counter[str]] = {source: Counter() for source in most}
        self._shown: dict[Source, list[FailedRow]] = {source: [] for source in most}

    def __call__(self, event: Event) -> None:
        """Report an event, and the rows that failed in its block.

        Raises:
            TooManyErrors: there are more than allowed.
        """
        self._hooks(event)
        if not self._most or not isinstance(event, BlockEvent):
            return
        for source, rows in event.work.sources or ((None, event.rows),):
            self._rows[source] += rows
        for row in event.work.failed:
            self._tell(row)
        for source in dict.fromkeys(row.source for row in event.work.failed):
            self._check(source)

    def _tell(self, row: FailedRow) -> None:
        kinds, shown = self._kinds[row.source], self._shown[row.source]
        kinds[row.kind] += 1
        if len(shown) < _SHOWN:
            shown.append(row)
        count = kinds[row.kind]
        if count == 10 ** (len(str(count)) - 1):  # the first, and the 10th, 100th, ...
            _LOG.warning(
                "epoch %d: a transform failed for %s with %s%s; on_error= goes on without it: %s",
                self._epoch, row.where, row.kind, "" if count == 1 else f", the {count:,}th such row", row.error,
            )  # fmt: skip
        self._hooks(RowFailedEvent(self._epoch, row))

    def _check(self, source: Source) -> None:
        kinds, rows, most = self._kinds[source], self._rows[source], self._most[source]
        failed, allowed = kinds.total(), most if isinstance(most, int) else max(_LEAST, most * rows)
        if failed <= allowed:
            return
        kind, count = kinds.most_common(1)[0]
        of = "" if source is None else f" of dataset {source}"
        first = "; ".join(f"{row.where}: {row.kind}: {row.error}" for row in self._shown[source])
        raise TooManyErrors(
            f"epoch {self._epoch}: a transform failed for {failed:,} of the {rows:,} rows read{of}, more than "
            f"max_errors={most!r} allows; most often with {kind} ({count:,} rows). The first: {first}. Repair them, or "
            "the transform, or raise Transform(max_errors=)."
        )
