"""Tasks of several datasets: each dataset's reader executes its tasks; a window may draw on several readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, BlockReader, Scan
from torch_dataloader_utils.reading.windows import Span, places_of


@dataclass(frozen=True)
class CombinedScan:
    """The scans of combined datasets, by part."""

    scans: tuple[Scan, ...]

    @property
    def local(self) -> bool:
        """Whether all data is on this machine."""
        return all(scan.local for scan in self.scans)

    @property
    def predicate(self) -> tuple[object, ...]:
        """The filters, by part."""
        return tuple(scan.predicate for scan in self.scans)

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the first part; the others have the same keys."""
        return self.scans[0].output_schema

    def report(self) -> dict[str, dict[str, Any]]:
        """The content of batches by key: the same in all parts."""
        return self.scans[0].report()

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
        parts = _parts(task.pieces)
        if len(parts) > 1:
            return self._mixed(task)
        (part,) = parts
        block = self._readers[part].block(task)
        recorder().count_source(part, block.rows)
        return block

    def _mixed(self, task: Task) -> Block:
        """The rows of a task over windows that draw on several parts."""
        pieces = list(split_pieces(task.pieces))
        block, spans = self.read(pieces, task.pad)
        noted = recorder()
        noted.enter("shuffle")
        places, before = places_of(task.pieces, iter(spans)), 0
        for part in sorted(_parts(pieces)):  # as `read` joins them
            ends = [sum(span) for piece, span in zip(pieces, spans, strict=True) if split_of(piece).file.part == part]
            up_to = int(np.count_nonzero(places < max(ends)))
            noted.count_source(part, up_to - before)
            before = up_to
        return block.take(places)

    def read(self, pieces: Sequence[Piece], pad: bool) -> tuple[Block, list[Span]]:
        """The rows of pieces of splits as one block, part by part, and each piece's range of rows in it."""
        spans: list[Span] = [(0, 0)] * len(pieces)
        blocks: list[Block] = []
        at = 0
        for part in sorted(_parts(pieces)):
            places = [i for i, piece in enumerate(pieces) if split_of(piece).file.part == part]
            block, part_spans = self._readers[part].read([pieces[i] for i in places], pad)
            for i, (first, count) in zip(places, part_spans, strict=True):
                spans[i] = at + first, count
            blocks.append(block)
            at += block.rows
        return Block.joined(blocks), spans

    def share(self, task: Task) -> None:
        """None: a window may hold rows of several parts."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Give the task's rows to `add`, a few columns at a time; None if they belong to several parts."""
        parts = _parts(task.pieces)
        if len(parts) > 1:
            return None
        (part,) = parts
        rows = self._readers[part].read_columns(task, add)
        if rows is not None:
            recorder().count_source(part, rows)
        return rows

    def close(self) -> None:
        """Close the open files."""
        for reader in self._readers:
            reader.close()


def _parts(pieces: Iterable[Piece]) -> set[int]:
    """The parts to which the pieces' rows belong."""
    return {split_of(piece).file.part for piece in split_pieces(pieces)}
