"""A block: the rows of one task, decoded, filtered, transformed and converted once; and who hands blocks on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils.model import Task
    from torch_dataloader_utils.reading.columns import Column


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ready to be sliced into batches.

    Attributes:
        rows: how many.
        columns: output key -> converted column; None where the output is Arrow or Python lists.
        table: the unconverted rows, for those outputs.
        nbytes: decoded bytes, measured.
        pad: whether the rows are repeats.
    """

    rows: int
    columns: dict[str, Column] | None
    table: pa.RecordBatch | None
    nbytes: int
    pad: bool = False


class BlockReader(Protocol):
    """What executes a task; one per thread or process, since it keeps files open."""

    def block(self, task: Task) -> Block:
        """The task's rows as one block."""

    def close(self) -> None:
        """Close the files that are open."""


class Driver(Protocol):
    """Who decodes: the caller's thread, a pool of threads, or worker processes. All hand on the same blocks."""

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block in order, None after the last; asking means that the one before is delivered.

        Raises:
            BatchTimeoutError: no block came within the time limit.
        """

    def close(self) -> None:
        """Stop reading and free what is held; idempotent."""
