"""What a dataset reports about its own reading."""

from __future__ import annotations

from torch_dataloader_utils.loader.local import LocalEpochs
from torch_dataloader_utils.metrics.meter import Meter
from torch_dataloader_utils.metrics.prometheus import prometheus_text
from torch_dataloader_utils.metrics.report import metrics
from torch_dataloader_utils.metrics.verdict import Verdict
from torch_dataloader_utils.redaction import revealing_nothing


@revealing_nothing
class MeasuredDataset:
    """A dataset whose passes are measured; each process measures its own."""

    _local: LocalEpochs

    @property
    def meter(self) -> Meter:
        """How far the live or last pass is, for any thread to read at any time."""
        return self._local.latest.meter

    def metrics(self, detail: bool = False, total: bool = False) -> dict[str, float]:
        """What happened since the last call, by name (see `docs/metrics.md`). For any thread.

        Args:
            detail: whether to include seconds by stage, for all I/O workers together and for each.
            total: whether to return what happened since the dataset was created; other calls are not affected.
        """
        totals, epochs = self.meter.read() if total else self.meter.take(), self._local.latest
        ranks = epochs.planner.world.num_ranks if totals.sources else 1
        return metrics(totals, {name: rows / ranks for name, rows in epochs.source.lap_rows.items()}, detail=detail)

    def metrics_text(self, detail: bool = False) -> str:
        """The metrics since the dataset was created, in Prometheus' text format, with this process's rank as a label.

        Args:
            detail: whether to include seconds by stage and I/O worker.
        """
        return prometheus_text(self.metrics(detail, total=True), self._local.latest.planner.world.rank)

    def verdict(self) -> Verdict | None:
        """What limited the speed of the last complete pass, and what to change; None before it."""
        return self._local.latest.verdicts.last
