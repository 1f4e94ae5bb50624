"""What decode threads have claimed: the progress of each shard, and the tasks that are being read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils.events import NO_WORK, Work
from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, SharedRead


@dataclass(slots=True)
class ShardQueue:
    """The progress of one shard; tasks `[taken, started)` are being decoded or are ready."""

    tasks: Sequence[Task]
    started: int = 0
    taken: int = 0
    held: int = 0  # bytes of the block being delivered
    ready: dict[int, Block | BaseException] = field(default_factory=dict)


@dataclass(slots=True)
class Claim:
    """A task that a thread decodes; if its read is shared, other threads join it."""

    queue: ShardQueue
    number: int
    estimate: int  # bytes
    shared: SharedRead | None = None
    begun: Work = NO_WORK  # of the thread that began the shared read

    @property
    def task(self) -> Task:
        """The task."""
        return self.queue.tasks[self.number]
