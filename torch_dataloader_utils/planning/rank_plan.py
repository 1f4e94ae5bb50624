"""What one rank delivers in one epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch_dataloader_utils.model import FileKey, FileLayout, Piece, Shard, Split, Task
from torch_dataloader_utils.planning.tasks import FileSegments, make_tasks
from torch_dataloader_utils.planning.workers import Shards


@dataclass(frozen=True)
class RankPlan:
    """What one rank delivers in one epoch.

    Attributes:
        epoch: the epoch.
        rank: the global rank.
        shards: the pieces of each worker, in delivery order.
        steps: batches, or None where only reading tells.
        rows: real rows (padding not among them), or None where only reading tells.
        layouts: of each file, by its key.
    """

    epoch: int
    rank: int
    shards: Shards
    steps: int | None
    rows: int | None
    layouts: Mapping[FileKey, FileLayout] = field(repr=False, compare=False)
    _segments: dict[FileKey, FileSegments] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_splits(self) -> int:
        """Splits of which this rank delivers rows."""
        return len({piece.source.index for shard in self.shards for piece in shard if not piece.pad})

    def as_repeats(self) -> RankPlan:
        """The same rows in the same order, marked as repeats."""
        return replace(self, shards=tuple(tuple(replace(piece, pad=True) for piece in shard) for shard in self.shards))

    def shard(self, worker: int) -> Shard:
        """What a worker delivers, as a public value: splits narrowed to the rows delivered, without padding."""
        splits = tuple(_as_split(piece) for piece in self.shards[worker] if not piece.pad)
        counts = [split.row_count for split in splits]
        known = [count for count in counts if count is not None]
        rows = sum(known) if len(known) == len(counts) else None
        return Shard(worker, splits, rows, sum(split.size_bytes for split in splits))

    def tasks(self, worker: int) -> tuple[Task, ...]:
        """The decode jobs of a worker, in delivery order."""
        return make_tasks(self.shards[worker], self.layouts, self._segments)


def _as_split(piece: Piece) -> Split:
    """The source of the piece, narrowed to its rows, with their share of the bytes."""
    source = piece.source
    if piece.rows == source.row_range:
        return source
    share = source.size_bytes * len(piece) // max(source.row_count or 0, 1)
    return replace(source, row_range=piece.rows, segments=None, size_bytes=share)
