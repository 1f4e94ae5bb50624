"""Tasks of several datasets: each dataset's reader executes its tasks; a window may draw on several readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column, Dense
from torch_dataloader_utils.events import Work, recorder
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, split_of, split_pieces
from torch_dataloader_utils.reading.blocks import Block, BlockReader, PieceReader, Scan, SharedRead, Stage
from torch_dataloader_utils.reading.scan import ScanSpec
from torch_dataloader_utils.reading.windows import Span, places_of
from torch_dataloader_utils.storage import Storage


@dataclass(frozen=True)
class SourceKey:
    """The column that says which dataset a row is of.

    Attributes:
        key: its name.
        names: of the datasets, for output in Arrow; None: their numbers.
    """

    key: str
    names: tuple[str, ...] | None = None

    @property
    def type(self) -> pa.DataType:
        """Its Arrow type."""
        return pa.int64() if self.names is None else pa.string()

    def added(self, block: Block, part: int) -> Block:
        """The rows of a dataset, with the column."""
        if block.columns is not None:
            made = Block.of_columns(block.rows, {**block.columns, self.key: self.column(block.rows, part)})
        else:
            value = pa.scalar(part if self.names is None else self.names[part], self.type)
            made = Block.of_table(block.table.append_column(self.key, pa.repeat(value, block.rows)))
        return replace(made, left_out=block.left_out)

    def column(self, rows: int, part: int) -> Dense:
        """The column of some rows of a dataset."""
        return Dense(np.full(rows, part, np.int64))


@dataclass(frozen=True)
class CombinedScan:
    """The scans of combined datasets, by part.

    Attributes:
        scans: the scans; they have no stage.
        names: of the datasets, for metrics; empty: their numbers.
        source: the column that says which dataset a row is of, if there is one.
        stage: makes other rows of those of all parts; None: these are delivered.
    """

    scans: tuple[Scan, ...]
    names: tuple[str, ...] = ()
    source: SourceKey | None = None
    stage: Stage | None = None

    @property
    def local(self) -> bool:
        """Whether all data is on this machine."""
        return all(scan.local for scan in self.scans)

    @property
    def storages(self) -> tuple[Storage, ...]:
        """Where the files of each part are."""
        return tuple(storage for scan in self.scans for storage in scan.storages)

    @property
    def predicate(self) -> tuple[object, ...]:
        """The filters, by part."""
        return tuple(scan.predicate for scan in self.scans)

    @property
    def mark(self) -> str:
        """Those of the parts, if there are any."""
        marks = [scan.mark for scan in self.scans]
        return ", ".join(marks) if any(marks) else ""

    @property
    def marks_before(self) -> Sequence[str]:
        """Those of all parts."""
        return list(dict.fromkeys(mark for scan in self.scans for mark in scan.marks_before))

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the first part; the others have the same keys."""
        schema = self.scans[0].output_schema
        return schema if self.source is None else schema.append(pa.field(self.source.key, self.source.type))

    @property
    def jagged(self) -> Mapping[str, Sequence[str]]:
        """The same in all parts."""
        return self.scans[0].jagged

    def report(self) -> dict[str, dict[str, Any]]:
        """The content of batches by key: the same in all parts."""
        report = self.scans[0].report()
        if self.stage is not None:
            return self.stage.report(report)
        if self.source is None:
            return report
        column = {"kind": "dense", "dtype": "int64", "shape": "[B]", "arrow": str(self.source.type)}
        return {**report, self.source.key: column}

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for: the same in all parts."""
        return self.scans[0].vocabulary(column)

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of each column of codes, by key: the same in all parts."""
        return self.scans[0].vocabularies()

    def prepare(self) -> None:
        """Make what the readers of each part share."""
        for scan in self.scans:
            scan.prepare()

    def open(self, files: Mapping[FileKey, DataFile]) -> BlockReader:
        """A reader of tasks over these files, by key."""
        reader = CombinedReader(self, [cast(PieceReader, scan.open(files)) for scan in self.scans])
        return reader if self.stage is None else self.stage.reader(reader, files)


class CombinedReader:
    """Executes tasks; one per thread or process."""

    def __init__(self, spec: CombinedScan, readers: Sequence[PieceReader]) -> None:
        self._spec = spec
        self.readers = readers

    def block(self, task: Task) -> Block:
        """The task's rows as one block."""
        parts = _parts(task.pieces)
        if len(parts) > 1:
            return self._mixed(task)
        (part,) = parts
        return self.of_part(self.readers[part].block(task), part)

    def of_part(self, block: Block, part: int) -> Block:
        """A block that a part's reader read, counted, and with the column that says so."""
        added = block if self._spec.source is None else self._spec.source.added(block, part)
        return replace(added, work=block.work + Work(sources=((self._name(part), block.rows),)))

    def _name(self, part: int) -> str | int:
        return self._spec.names[part] if self._spec.names else part

    def _count(self, part: int, rows: int) -> None:
        recorder().count_source(self._name(part), rows)

    def _mixed(self, task: Task) -> Block:
        """The rows of a task over windows that draw on several parts."""
        pieces = list(split_pieces(task.pieces))
        block, spans = self.read(pieces, task.pad, task.epoch)
        noted = recorder()
        noted.enter("shuffle")
        places, before = places_of(task.pieces, iter(spans)), 0
        for part in sorted(_parts(pieces)):  # as `read` joins them
            ends = [sum(span) for piece, span in zip(pieces, spans, strict=True) if split_of(piece).file.part == part]
            up_to = int(np.count_nonzero(places < max(ends)))
            self._count(part, up_to - before)
            before = up_to
        return block.take(places)

    def over(self, files: Mapping[FileKey, DataFile]) -> CombinedReader:
        """A reader of the same files whose rows are numbered in another way, by key."""
        return CombinedReader(self._spec, [reader.over(files) for reader in self.readers])

    def read(self, pieces: Sequence[Piece], pad: bool, epoch: int) -> tuple[Block, list[Span]]:
        """The rows of pieces of splits as one block, part by part, and each piece's range of rows in it."""
        spans: list[Span] = [(0, 0)] * len(pieces)
        blocks: list[Block] = []
        at = 0
        for part in sorted(_parts(pieces)):
            places = [i for i, piece in enumerate(pieces) if split_of(piece).file.part == part]
            block, part_spans = self.readers[part].read([pieces[i] for i in places], pad, epoch)
            for i, (first, count) in zip(places, part_spans, strict=True):
                spans[i] = at + first, count
            blocks.append(block)
            at += block.rows_read
        return Block.joined_reads(blocks), spans

    def share(self, task: Task) -> _PartRead | None:
        """A read of the task that other readers may join; None for a window with rows of several parts."""
        parts = _parts(task.pieces)
        if len(parts) > 1:
            return None
        (part,) = parts
        shared = self.readers[part].share(task)
        return None if shared is None else _PartRead(shared, part)

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Give the task's rows to `add`, a few columns at a time; None if they belong to several parts."""
        parts = _parts(task.pieces)
        if len(parts) > 1:
            return None
        (part,) = parts
        rows = self.readers[part].read_columns(task, add)
        if rows is not None:
            self._count(part, rows)
            if self._spec.source is not None:
                add({self._spec.source.key: self._spec.source.column(rows, part)})
        return rows

    def close(self) -> None:
        """Close the open files."""
        for reader in self.readers:
            reader.close()


@dataclass(frozen=True)
class _PartRead:
    """The read of a task by the readers of one part."""

    shared: SharedRead
    part: int

    @property
    def open(self) -> bool:
        """Whether a reader that joins now finds something to read."""
        return self.shared.open

    def read(self, reader: CombinedReader) -> Block | None:
        """Read until nothing is left; the block for the reader that finishes last, None for the others."""
        block = self.shared.read(reader.readers[self.part])
        return None if block is None else reader.of_part(block, self.part)

    def abandon(self) -> bool:
        """Leave the rest unread after an error; returns whether it is the first."""
        return self.shared.abandon()


def _parts(pieces: Iterable[Piece]) -> set[int]:
    """The parts to which the pieces' rows belong."""
    return {split_of(piece).file.part for piece in split_pieces(pieces)}


def scans_of(scan: Scan) -> Sequence[Scan]:
    """The scan of each dataset: those of a combination, or the only one."""
    return scan.scans if isinstance(scan, CombinedScan) else (scan,)


def most_failed(scan: Scan) -> dict[str | int | None, float]:
    """For each dataset that goes on if its transform fails for rows, how many these may be: a share, or a number.

    By its name or number; for a single dataset, by None.
    """
    rules = ((each, each.skipping) for each in scans_of(scan) if isinstance(each, ScanSpec))
    return {each.source: rule.most for each, rule in rules if rule is not None}


def datasets_of_units(scan: Scan, *, mixed: bool) -> tuple[str | int, ...]:
    """The names of the datasets, or their numbers, if each sequence or batch is of one of them; else nothing.

    Args:
        scan: of a loader.
        mixed: whether rows of several datasets are mixed, and not their splits.
    """
    if not (isinstance(scan, CombinedScan) and mixed):
        return ()
    return scan.names or tuple(range(len(scan.scans)))
