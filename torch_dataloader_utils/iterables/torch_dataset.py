"""A shard of a torch `IterableDataset`: again one, so that torch's DataLoader takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from torch_dataloader_utils.iterables.rounds import StreamShard


@dataclass(frozen=True, eq=False)
class TorchStreamShard(StreamShard, IterableDataset[Any]):
    """One shard of a torch `IterableDataset` (see `StreamShard`)."""
