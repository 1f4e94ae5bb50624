"""A shard of a torch `IterableDataset`: an `IterableDataset` too, so that torch's DataLoader accepts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from torch_dataloader_utils.iterables.rounds import StreamShard


@dataclass(frozen=True, eq=False)
class TorchStreamShard(StreamShard, IterableDataset[Any]):
    """One shard of a torch `IterableDataset` (see `StreamShard`)."""
