"""Tasks of several datasets: each is executed by the reader of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.model import DataFile, FileKey, Task
from torch_dataloader_utils.reading.blocks import Block, BlockReader, Scan
from torch_dataloader_utils.reading.columns import Column


@dataclass(frozen=True)
class CombinedScan:
    """The scans of the datasets of a combination, by part."""

    scans: tuple[Scan, ...]

    @property
    def local(self) -> bool:
        """Whether all that is read is on this machine."""
        return all(scan.local for scan in self.scans)

    @property
    def predicate(self) -> tuple[object, ...]:
        """What rows must satisfy, by part."""
        return tuple(scan.predicate for scan in self.scans)

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the first part; the others have the same keys."""
        return self.scans[0].output_schema

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for: the same in all parts."""
        return self.scans[0].vocabulary(column)

    def open(self, files: Mapping[FileKey, DataFile]) -> CombinedReader:
        """A reader of tasks over these files, by key."""
        return CombinedReader([scan.open(files) for scan in self.scans])


class CombinedReader:
    """Executes tasks; one per thread or process."""

    def __init__(self, readers: list[BlockReader]) -> None:
        self._readers = readers

    def block(self, task: Task) -> Block:
        """The task's rows as one block."""
        return self._readers[task.pieces[0].source.file.part].block(task)

    def pour(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Hand the task's rows to `add` a few columns at a time."""
        return self._readers[task.pieces[0].source.file.part].pour(task, add)

    def close(self) -> None:
        """Close the files that are open."""
        for reader in self._readers:
            reader.close()
