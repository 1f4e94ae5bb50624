"""Blocks (the rows of one task, decoded, filtered, transformed and converted once), and what produces them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Array, Column, Dense, Memory, concat, take_rows
from torch_dataloader_utils.convert.converter import compact
from torch_dataloader_utils.errors import StaleIteratorError
from torch_dataloader_utils.events import NO_WORK, Work, recording
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task
from torch_dataloader_utils.storage import Storage


@dataclass(frozen=True, slots=True)
class Block:
    """Rows ready to be sliced into batches.

    Attributes:
        rows: number of rows.
        columns: output key -> converted column; None where the output is Arrow or Python lists.
        table: the unconverted rows, for those outputs.
        nbytes: measured size of the decoded rows.
        work: the work that reading it took, once known.
        left_out: rows of the task that are left out, because a transform failed for them: int64, ascending, numbered as
            the rows of the task are; None for none. Where a task is read, places count them, so that a row that fails
            only now and then moves no other.
    """

    rows: int
    columns: dict[str, Column] | None
    table: Any
    nbytes: int
    work: Work = NO_WORK
    left_out: Array | None = None

    @property
    def rows_read(self) -> int:
        """The number of rows of the task, with those left out."""
        return self.rows + (0 if self.left_out is None else len(self.left_out))

    @classmethod
    def of_columns(cls, rows: int, columns: dict[str, Column]) -> Block:
        """A block of these columns."""
        return cls(rows, columns, None, sum(column.nbytes for column in columns.values()))

    @classmethod
    def of_table(cls, table: pa.RecordBatch) -> Block:
        """A block of these unconverted rows."""
        return cls(table.num_rows, None, table, table.nbytes)

    @staticmethod
    def joined(blocks: Sequence[Block]) -> Block:
        """The rows of all blocks (at least one, all with the same keys) as one block."""
        if len(blocks) == 1:
            return blocks[0]
        if blocks[0].columns is None:
            return Block.of_table(compact(pa.Table.from_batches([block.table for block in blocks])))
        columns = {key: concat([(block.columns or {})[key] for block in blocks]) for key in blocks[0].columns}
        return Block.of_columns(sum(block.rows for block in blocks), columns)

    @staticmethod
    def joined_reads(blocks: Sequence[Block]) -> Block:
        """The same of blocks that were read for one task."""
        ends = accumulate((block.rows_read for block in blocks), initial=0)
        gaps = [block.left_out + end for block, end in zip(blocks, ends, strict=False) if block.left_out is not None]
        return replace(Block.joined(blocks), left_out=np.concatenate(gaps) if gaps else None)

    def slice(self, first: int, last: int) -> Block:
        """Rows `[first, last)`, as views."""
        if self.columns is None:
            return Block.of_table(self.table.slice(first, last - first))
        return Block.of_columns(last - first, {key: column.slice(first, last) for key, column in self.columns.items()})

    def take(self, places: Array, memory: Memory | None = None) -> Block:
        """The rows with these numbers (integers [m]), in fresh memory; dense columns in `memory` if given."""
        if self.left_out is not None:
            gaps = np.flatnonzero(~self.are_there(places))
            taken = self.without_gaps().take(self.present(places), memory)
            return replace(taken, left_out=gaps if len(gaps) else None)
        if self.columns is None:
            table = pa.Table.from_batches([self.table])
            columns = [take_rows(column, places) for column in table.columns]
            return Block.of_table(compact(pa.Table.from_arrays(columns, schema=table.schema)))
        numbers = places.astype(np.intp, copy=False)  # converted once: numpy takes by these only
        return Block.of_columns(
            len(places),
            {
                key: column.take(numbers, memory) if isinstance(column, Dense) else column.take(numbers)
                for key, column in self.columns.items()
            },
        )

    def are_there(self, places: Array) -> Array:
        """Which rows of the task, by their numbers, are not left out: bool [m]."""
        there = np.ones(self.rows_read, np.bool_)
        if self.left_out is not None:
            there[self.left_out] = False
        return there[places]

    def present(self, places: Array) -> Array:
        """The numbers in the block of those of these rows of the task that are not left out, integers."""
        if self.left_out is None:
            return places
        there = places[self.are_there(places)]
        return there - np.searchsorted(self.left_out, there)

    def before(self, place: int) -> int:
        """The number of rows before this row of the task."""
        return place if self.left_out is None else place - int(np.searchsorted(self.left_out, place))

    def span(self, first: int, rows: int) -> tuple[int, int]:
        """The range of rows (first row, row count) that are there of such a range of the task's."""
        begin = self.before(first)
        return begin, self.before(first + rows) - begin

    def without_gaps(self) -> Block:
        """The same rows, numbered without those left out."""
        return replace(self, left_out=None)

    def marked(self, valid_key: str | None, real: bool, failed: Array | None = None) -> Block:
        """The same rows, marked under `valid_key` as real or as repeats; unmarked if that is None.

        Args:
            valid_key: the key.
            real: whether they are real.
            failed: the numbers of those in whose places are others, because a transform failed for them.
        """
        if valid_key is None:
            return self
        marks = np.full(self.rows, real)
        if failed is not None:
            marks[failed] = False
        if self.columns is None:
            made = Block.of_table(self.table.append_column(valid_key, as_arrow(marks)))
        else:
            made = Block.of_columns(self.rows, {**self.columns, valid_key: Dense(marks)})
        return replace(made, left_out=self.left_out)

    def after(self, work: Work, task: Task) -> Block:
        """The same rows of this task, after more work."""
        return replace(self, work=self.work + work + Work(repeats=self.rows if task.pad else 0))

    def copied(self, rows: int, valid_key: str) -> Block:
        """The first `rows` rows in fresh memory, marked as repeats under `valid_key`."""
        marks = np.zeros(rows, np.bool_)
        if self.columns is None:
            table = self.table.slice(0, rows)
            place = table.schema.get_field_index(valid_key)
            table = pa.RecordBatch.from_arrays(
                [as_arrow(marks) if i == place else column for i, column in enumerate(table.columns)],
                schema=table.schema,
            )
            return Block.of_table(table)
        columns = {key: concat([column.slice(0, rows)]) for key, column in self.columns.items()}
        columns[valid_key] = Dense(marks)
        return Block.of_columns(rows, columns)


class BlockReader(Protocol):
    """Executes tasks; one per thread or process, because it keeps files open."""

    def block(self, task: Task) -> Block:
        """The task's rows as one block."""

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Give the task's rows to `add`, a few columns at a time; returns how many, or None if only `block` can."""

    def share(self, task: Task) -> SharedRead | None:
        """A read of the task that other readers may join; None if one reader has to read it whole, by `block`."""

    def close(self) -> None:
        """Close the open files."""


class PieceReader(BlockReader, Protocol):
    """Also reads pieces without a task, for readers that are built on it."""

    def read(self, pieces: Sequence[Piece], pad: bool, epoch: int) -> tuple[Block, list[tuple[int, int]]]:
        """The rows of pieces of splits as one block, and each piece's range of rows in it: (first row, row count).

        Args:
            pieces: the pieces.
            pad: whether they are repeats.
            epoch: the epoch.
        """

    def over(self, files: Mapping[FileKey, DataFile]) -> PieceReader:
        """A reader of the same files whose rows are numbered in another way, by key."""


class Stage(Protocol):
    """Makes other rows of those that a reader reads, a task at a time; picklable."""

    keyword: ClassVar[str]  # that asks for it

    def report(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The content of batches by key; `rows` is that of the rows that are read."""

    def reader(self, reader: PieceReader, files: Mapping[FileKey, DataFile]) -> BlockReader:
        """A reader of other rows, by this reader; `files` as for `Scan.open`."""


class SharedRead(Protocol):
    """The read of one task by several readers, each in its thread."""

    @property
    def open(self) -> bool:
        """Whether a reader that joins now finds something to read."""

    def read(self, reader: Any) -> Block | None:
        """Read until nothing is left; the block for the reader that finishes last, None for the others."""

    def abandon(self) -> bool:
        """Leave the rest unread after an error; returns whether it is the first."""


def read_block(reader: BlockReader, task: Task, queue_full: float = 0.0) -> Block:
    """The task's rows as one block, with the time it took to read them and `queue_full`, the seconds waited before."""
    with recording() as noted:
        block = reader.block(task)
        return block.after(noted.work(queue_full), task)


class Scan(Protocol):
    """What all tasks of a dataset share; picklable, because worker processes receive it."""

    @property
    def local(self) -> bool:
        """Whether the data is on this machine."""

    @property
    def storages(self) -> Sequence[Storage]:
        """Where the files of each part are."""

    @property
    def predicate(self) -> Any:
        """The filter; only for comparison between ranks."""

    @property
    def mark(self) -> str:
        """What states and ranks compare of transforms; "" if there is nothing to compare."""

    @property
    def marks_before(self) -> Sequence[str]:
        """What they compared before transforms grew."""

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the rows before they are converted."""

    @property
    def jagged(self) -> Mapping[str, Sequence[str]]:
        """Keys of batches that join columns of lists: target -> the keys of blocks."""

    def report(self) -> dict[str, dict[str, Any]]:
        """The content of batches by key, except the mask of real rows: Arrow type; kind, dtype and shape of tensors."""

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for.

        Raises:
            ColumnNotFoundError: the column has no codes.
        """

    def vocabularies(self) -> dict[str, list[Any]]:
        """The values of each column of codes, in the order of their codes, by key."""

    def prepare(self) -> None:
        """Make now what all readers share, such as the tables of vocabularies: worker processes then get it made."""

    def open(self, files: Mapping[FileKey, DataFile]) -> BlockReader:
        """A reader of tasks over these files, by key; files may be added to the mapping later."""


@contextmanager
def noting(where: str | Callable[[], str], unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Add a note with `where` to errors, except to those of a type that already names the place."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, unless):
            error.add_note(f"while reading {where if isinstance(where, str) else where()}")
        raise


def stopped() -> StaleIteratorError:
    """The error for a thread that is waiting for a block when its pass ends."""
    return StaleIteratorError(
        "this pass ended while this thread waited for a batch: another thread closed it or loaded a state, or it was "
        "begun in the parent of this process. Begin another pass."
    )


class Driver(Protocol):
    """Decodes tasks: in the calling thread, a pool of threads, or worker processes. All deliver the same blocks."""

    def next_block(self, shard: int) -> Block | None:
        """The shard's next block in order, None after the last. A call means that the previous block was delivered.

        Raises:
            BatchTimeoutError: no block arrived within the time limit.
            StaleIteratorError: the driver was stopped.
        """

    def stop(self) -> None:
        """Raise an error in all threads that wait for a block; may be called from any thread."""

    def close(self) -> None:
        """Stop reading and release all resources; idempotent."""
