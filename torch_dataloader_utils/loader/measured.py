"""What a dataset reports about its own reading."""

from __future__ import annotations

from torch_dataloader_utils.loader.local import LocalEpochs
from torch_dataloader_utils.metrics.meter import Meter


class MeasuredDataset:
    """A dataset whose passes are measured; each process measures its own."""

    _local: LocalEpochs

    @property
    def meter(self) -> Meter:
        """How far the live or last pass is, for any thread to read at any time."""
        return self._local.latest.meter
