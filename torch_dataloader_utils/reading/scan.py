"""From a task to a block: read column by column, conform, narrow, filter, transform, convert once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.convert.columns import Column, Dense
from torch_dataloader_utils.convert.converter import Converter, compact
from torch_dataloader_utils.errors import DataLoaderUtilsError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.filters.arrow import evaluate
from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task, split_pieces
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.reading.buffers import BufferPool
from torch_dataloader_utils.reading.decoding import addresses, decoder_calls, joined, narrow
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun, runs_of
from torch_dataloader_utils.reading.windows import Gather, Span, of_windows, shuffled, spans_of
from torch_dataloader_utils.schemas.columns import project
from torch_dataloader_utils.schemas.merge import kept_schema
from torch_dataloader_utils.storage import Storage

_KEPT_BUFFERS = 256  # of one size, between two uses: no more than were in use at one time


@dataclass(frozen=True)
class ScanSpec:
    """What every task of a dataset has in common; picklable, since worker processes get it.

    Attributes:
        format: of the files: itself, not its name, which worker processes need not know.
        storage: where the files are.
        format_options: of the format.
        schema: resolved types of the top-level columns to read, partition columns among them.
        partition_names: the columns that come from the paths.
        predicate: what rows must satisfy, or None.
        predicate_columns: the columns that it looks at.
        given: the schema that the transform and the converter get (`parent.child` for a field of a struct).
        transform: on a record batch, or None.
        transform_rows: whether it keeps the number of rows ("same") or not ("any").
        output_schema: of the rows that are converted.
        converter: how they are converted.
        valid_key: key of the mask of real rows, or None where no plan repeats rows.
        encoded: columns of `schema` that are read as dictionaries, though the files say plain strings or bytes.
        arrow: whether the output stays Arrow.
        pool: of the memory that rows are shuffled into.
    """

    format: Format
    storage: Storage
    format_options: Mapping[str, Any]
    schema: pa.Schema
    partition_names: frozenset[str]
    predicate: pc.Expression | None
    predicate_columns: tuple[str, ...]
    given: pa.Schema
    transform: Callable[[pa.RecordBatch], pa.RecordBatch] | None
    transform_rows: str
    output_schema: pa.Schema
    converter: Converter
    arrow: bool
    valid_key: str | None = None
    encoded: frozenset[str] = frozenset()
    pool: BufferPool = field(default_factory=lambda: BufferPool(keep=_KEPT_BUFFERS), repr=False, compare=False)

    @property
    def local(self) -> bool:
        """Whether the files are on this machine."""
        return self.storage.local

    @property
    def columns_stand_alone(self) -> bool:
        """Whether a column's values follow from that column of the files alone."""
        shaped = self.predicate is not None or self.transform is not None or bool(self.converter.drop_columns)
        return not (shaped or self.arrow or self.converter.stacks) and bool(self.given.equals(self.schema))

    def vocabulary(self, column: str) -> list[Any]:
        """The values that the codes of a column stand for."""
        return self.converter.vocabulary(column)

    def open(self, files: Mapping[FileKey, DataFile]) -> TaskReader:
        """A reader of tasks over these files, by key."""
        return TaskReader(self, files)


class TaskReader:
    """Executes tasks; keeps the last few files open. One per thread or process."""

    def __init__(self, spec: ScanSpec, files: Mapping[FileKey, DataFile]) -> None:
        self._spec = spec
        self._runs = RunReader(spec, files)
        self._parts: dict[tuple[str, ...], Converter] = {}

    def block(self, task: Task) -> Block:
        """The task's rows, converted."""
        if not of_windows(task):
            return self.read(task.pieces, task.pad)[0]
        columns: dict[str, Column] = {}
        rows = self.read_columns(task, columns.update)
        return shuffled(task, self.read) if rows is None else Block.of_columns(rows, columns)

    def read(self, pieces: Sequence[Piece], pad: bool) -> tuple[Block, list[Span]]:
        """The rows of pieces of splits, converted, and where those of each piece lie."""
        runs, owners = runs_of([self._runs.place(piece) for piece in pieces])
        where = self._runs.where(runs)
        with _noting(where):
            return self._finish(self._rows(runs, owners, pieces), where, pad)

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Hand the task's rows to `add` a few columns at a time: how many rows.

        Each is still in the processor's cache from its decoding.
        None, and nothing was read, where columns depend on each other (filter, transform, stack), or counts on reading.
        """
        if not self._spec.columns_stand_alone:
            return None
        pieces = list(split_pieces(task.pieces))
        runs, owners = runs_of([self._runs.place(piece) for piece in pieces])
        if any(self._runs.layout(run).counted for run in runs):
            return None
        if of_windows(task):
            known = all(piece.rows is not None for piece in pieces)
            rows = self._pour_windows(task, runs, owners, add) if known else None
        else:
            alone = len(pieces) == 1 and (pieces[0].rows is None or pieces[0].rows.contiguous)
            rows = self._pour_run(runs[0], pieces[0], add) if alone else None
        if rows is not None and self._spec.valid_key is not None:
            add({self._spec.valid_key: Dense(np.full(rows, not task.pad))})
        return rows

    def _pour_run(self, run: SegmentRun, piece: Piece, add: Callable[[dict[str, Column]], None]) -> int:
        """Hand on the rows of a piece that lies in one run."""
        start, count, where = self._runs.start(run), 0, self._runs.where([run])
        with _noting(where):
            for items, columns in self._runs.columns(run, list(self._spec.schema)):
                table = narrow(pa.Table.from_arrays(columns, schema=pa.schema(items)), piece, start)
                count = table.num_rows
                add(self._part(tuple(table.column_names)).convert(table, True, where))
                del columns, table
        return count

    def _pour_windows(
        self, task: Task, runs: Sequence[SegmentRun], owners: Sequence[int], add: Callable[[dict[str, Column]], None]
    ) -> int:
        """Hand on the rows of windows: each column is decoded for all runs, then gathered."""
        gather = Gather(task.pieces, owners, [self._runs.start(run) for run in runs], self._spec.pool)
        rows = sum(segment.rows or 0 for run in runs for segment in self._runs.segments(run))
        told = [self._runs.where([run]) for run in runs]
        for items in decoder_calls(list(self._spec.schema), rows, self._runs.alone):
            found = [self._converted(run, items, where) for run, where in zip(runs, told, strict=True)]
            add({key: gather.column([columns[key] for columns in found]) for key in found[0]})
        return gather.rows

    def _converted(self, run: SegmentRun, items: Sequence[pa.Field], where: str) -> dict[str, Column]:
        """All rows of a run, of some columns that stand alone."""
        with _noting(where):
            schema = pa.schema(items)
            return self._part(tuple(schema.names)).convert(self._runs.decode(run, schema), True, where)

    def _part(self, names: tuple[str, ...]) -> Converter:
        if names not in self._parts:
            self._parts[names] = self._spec.converter.part(names)
        return self._parts[names]

    def live(self, file: FileKey, place: int) -> tuple[int, pa.Table]:
        """How many rows of one segment are live, and those rows as the converter gets them.

        Args:
            file: the file's key.
            place: of the segment in the file's layout.
        """
        run = SegmentRun(file, place, place + 1)
        with _noting(self._runs.where([run])):
            table = self._runs.decode(run, self._spec.schema)
            asked, keep = self._asked(table)
            count = table.num_rows if keep is None else pc.sum(keep, min_count=0).as_py()
            rows = asked if keep is None else asked.filter(keep)
            return count, rows if self._spec.transform is None else self._transformed(compact(rows))

    def close(self) -> None:
        """Close the open files."""
        self._runs.close()

    def _rows(self, runs: Sequence[SegmentRun], owners: Sequence[int], pieces: Sequence[Piece]) -> list[pa.Table]:
        """The rows of each piece that pass the filter, of segments that are decoded once."""
        by_run: list[list[int]] = [[] for _ in runs]
        for place, owner in enumerate(owners):
            by_run[owner].append(place)
        found: dict[int, pa.Table] = {}
        for run, own in zip(runs, by_run, strict=True):
            tables = self._rows_of(run, [pieces[place] for place in own])
            found |= dict(zip(own, tables, strict=True))
        return [found[place] for place in range(len(pieces))]

    def _rows_of(self, run: SegmentRun, pieces: Sequence[Piece]) -> list[pa.Table]:
        """The rows of each piece that pass the filter; all lie in one run."""
        table = self._runs.decode(run, self._spec.schema)
        counted = self._runs.layout(run).counted
        if counted:
            table, _ = self._filter(table, [table.num_rows])
        start = self._runs.start(run)
        parts = [narrow(table, piece, start) for piece in pieces]
        if counted:
            return parts
        table, counts = self._filter(joined(parts), [part.num_rows for part in parts])
        return [table] if len(parts) == 1 else [table.slice(*span) for span in spans_of(counts)]

    def _filter(self, table: pa.Table, counts: Sequence[int]) -> tuple[pa.Table, list[int]]:
        """The asked-for columns of the live rows, in order.

        And how many of each of `counts` consecutive rows are live.
        """
        asked, keep = self._asked(table)
        if keep is None or (keep.null_count == 0 and pc.all(keep, min_count=0).as_py()):
            return asked, list(counts)
        live = [pc.sum(keep.slice(*span), min_count=0).as_py() for span in spans_of(counts)]
        return asked.filter(keep), live

    def _asked(self, table: pa.Table) -> tuple[pa.Table, pa.Array | None]:
        """The asked-for columns, and which rows are live: they satisfy the predicate and have no null that is dropped.

        Arrow bools [n], true where a row is live; None where all are.
        """
        spec = self._spec
        asked = table if spec.given.equals(spec.schema) else project(table, spec.given.names)
        keep = spec.converter.null_mask(asked)
        if spec.predicate is not None:
            passed = evaluate(table.select(spec.predicate_columns), spec.predicate)
            keep = passed if keep is None else pc.and_(passed, keep)
        return asked, keep

    def _finish(self, tables: list[pa.Table], where: str, pad: bool) -> tuple[Block, list[Span]]:
        """The output of the transform, converted; and where the rows of each table lie in it."""
        spec = self._spec
        owned: bool | frozenset[int] = True
        counts = [table.num_rows for table in tables]
        if spec.transform is not None:
            # Where it changes the number of rows, that of each piece is asked for.
            tables = [joined(tables)] if spec.transform_rows == "same" else tables
            owned = frozenset(address for table in tables for address in addresses(table))
            tables = [self._transformed(compact(table)) for table in tables]
            counts = counts if spec.transform_rows == "same" else [table.num_rows for table in tables]
        table, spans = joined(tables), spans_of(counts)
        if spec.arrow:
            batch = compact(table)
            if spec.valid_key is not None:
                batch = batch.append_column(spec.valid_key, pa.array(np.full(batch.num_rows, not pad)))
            return Block.of_table(batch), spans
        columns = spec.converter.convert(table, owned, where)
        if spec.valid_key is not None:
            columns[spec.valid_key] = Dense(np.full(table.num_rows, not pad))
        return Block.of_columns(table.num_rows, columns), spans

    def _transformed(self, batch: pa.RecordBatch) -> pa.Table:
        assert self._spec.transform is not None
        result = self._spec.transform(batch)
        check_transformed(batch, result, self._spec.transform_rows)
        if not _same_schema(result.schema, self._spec.output_schema):
            raise SchemaMismatchError(
                f"transform returned the schema\n{result.schema}\nwhere its call on 0 rows (or transform_schema) said\n"
                f"{self._spec.output_schema}\nIts columns and types must not depend on the rows."
            )
        return pa.Table.from_batches([result])


def _same_schema(found: pa.Schema, expected: pa.Schema) -> bool:
    """Whether they are the same; a worker process has a copy of the expected one."""
    return bool(found.equals(expected) or kept_schema(found).equals(kept_schema(expected)))


def check_transformed(given: pa.RecordBatch, result: object, rows: str) -> None:
    """Check what a transform returned.

    Raises:
        UnsupportedTypeError: it is not a record batch.
        SchemaMismatchError: it has another number of rows, and `rows` is "same".
    """
    if not isinstance(result, pa.RecordBatch):
        raise UnsupportedTypeError(f"transform returned {type(result).__name__}: expected a pyarrow.RecordBatch.")
    if rows == "same" and result.num_rows != given.num_rows:
        raise SchemaMismatchError(
            f"transform returned {result.num_rows} rows for {given.num_rows}: pass transform_rows='any' if it may "
            "change their number (row counts are then unknown before reading), or use filters= to leave rows out."
        )


def read_encoded(spec: ScanSpec, most: int | None) -> ScanSpec:
    """The scan that reads columns of codes as dictionaries, where that is faster and nobody else sees them.

    Args:
        spec: the scan.
        most: for vocabularies of up to so many values; None for all.
    """
    if spec.transform is not None or spec.arrow:
        return spec
    sizes = {leaf.key: len(leaf.vocabulary or ()) for leaf in spec.converter.codes.values()}
    types = {
        item.name: pa.dictionary(pa.int32(), item.type)
        for item in spec.schema
        # A field of a struct has another name, and a filter would have to be told of the type.
        if item.name in sizes
        and (most is None or sizes[item.name] <= most)
        and item.type in (pa.string(), pa.binary())
        and item.name not in spec.predicate_columns
        and item.name not in spec.partition_names
    }

    def typed(schema: pa.Schema) -> pa.Schema:
        return pa.schema([item.with_type(types.get(item.name, item.type)) for item in schema])

    return replace(
        spec,
        schema=typed(spec.schema),
        given=typed(spec.given),
        converter=spec.converter.encoded(types),
        encoded=frozenset(types),
    )


@contextmanager
def _noting(where: str) -> Iterator[None]:
    """Say where on errors that do not say it themselves."""
    try:
        yield
    except DataLoaderUtilsError:
        raise
    except Exception as error:
        error.add_note(f"while reading {where}")
        raise
