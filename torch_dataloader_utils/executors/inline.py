"""The in-line driver: each block is decoded when it is requested, in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_dataloader_utils.model import Task
from torch_dataloader_utils.reading.blocks import Block, BlockReader, executed


class InlineDriver:
    """Decodes in the calling thread, and nothing ahead."""

    def __init__(self, reader: BlockReader, shards: Sequence[Sequence[Task]]) -> None:
        self._reader = reader
        self._tasks: list[Iterator[Task]] = [iter(tasks) for tasks in shards]

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block; None after the last."""
        task = next(self._tasks[shard], None)
        return None if task is None else executed(self._reader, task)

    def stop(self) -> None:
        """Does nothing, because no thread waits for another."""

    def close(self) -> None:
        """Close the open files."""
        self._reader.close()
