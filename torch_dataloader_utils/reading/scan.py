"""From a task to a block: read column by column, conform, narrow, filter, transform, convert once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils import arrow_ops
from torch_dataloader_utils.errors import DataLoaderUtilsError, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.formats import format_named
from torch_dataloader_utils.formats.base import Reader
from torch_dataloader_utils.model import DataFile, FileKey, Piece, Task
from torch_dataloader_utils.reading.blocks import Block
from torch_dataloader_utils.reading.columns import Column, Dense
from torch_dataloader_utils.reading.convert import Converter, compact
from torch_dataloader_utils.reading.decoding import addresses, decoder_calls, evaluate, narrow, read_columns
from torch_dataloader_utils.storage import Storage

_OPEN_FILES = 8  # readers kept open per thread


@dataclass(frozen=True)
class ScanSpec:
    """What every task of a dataset has in common; picklable, since worker processes get it.

    Attributes:
        format: name of the file format.
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
    """

    format: str
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
        self._files = files
        self._readers: dict[str, Reader] = {}
        self._parts: dict[tuple[str, ...], Converter] = {}
        self._format = format_named(spec.format)
        self._alone = self._format.columnar and spec.local

    def block(self, task: Task) -> Block:
        """The task's rows, converted."""
        groups = [(*key, list(pieces)) for key, pieces in groupby(task.pieces, key=self._place)]
        where = self._where(groups[0][0], [place for _, first, last, _ in groups for place in range(first, last)])
        with _noting(where):
            tables = [self._rows(*group) for group in groups]
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
            return self._finish(table, where, task.pad)

    def pour(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Hand the task's rows to `add` a few columns at a time: how many rows.

        Each is still in the processor's cache from its decoding.
        None, and nothing was read, where columns depend on each other (filter, transform, stack) or pieces are joined.
        """
        spec, piece = self._spec, task.pieces[0]
        rows = piece.rows
        if not spec.columns_stand_alone or len(task.pieces) > 1 or not (rows is None or rows.contiguous):
            return None
        key, first, last = self._place(piece)
        file = self._files[key]
        if file.layout.counted:
            return None
        start, count = file.layout.plan_starts()[first], 0
        where = self._where(key, range(first, last))
        with _noting(where):
            for items, columns in self._columns(file, first, last):
                table = narrow(pa.Table.from_arrays(columns, schema=pa.schema(items)), piece, start)
                count = table.num_rows
                add(self._part(tuple(table.column_names)).convert(table, True, where))
        if spec.valid_key is not None:
            add({spec.valid_key: Dense(np.full(count, not task.pad))})
        return count

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
        with _noting(self._where(file, [place])):
            table = self._decode(self._files[file], place, place + 1)
            asked, keep = self._asked(table)
            count = table.num_rows if keep is None else pc.sum(keep, min_count=0).as_py()
            rows = asked if keep is None else asked.filter(keep)
            return count, rows if self._spec.transform is None else self._transformed(compact(rows))

    def close(self) -> None:
        """Close the open files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _place(self, piece: Piece) -> tuple[FileKey, int, int]:
        """Where a piece lies: its file and the half-open range of segments there."""
        file = piece.source.file.key
        if piece.rows is None:
            first, last = piece.source.segments or (0, len(self._files[file].layout.segments))
            return file, first, last
        starts = self._files[file].layout.plan_starts()
        first = int(np.searchsorted(starts[:-1], piece.rows.start, side="right")) - 1
        last = int(np.searchsorted(starts[:-1], piece.rows.stop, side="left"))
        return file, first, last

    def _where(self, file: FileKey, places: Sequence[int]) -> str:
        """Where a file is read, for messages: its path and segments."""
        segments = self._files[file].layout.segments
        numbers = dict.fromkeys(segments[place].number for place in places)
        plural = "s" if len(numbers) > 1 else ""
        return f"{self._files[file].info.path}, {self._format.segment_name}{plural} {', '.join(map(str, numbers))}"

    def _rows(self, key: FileKey, first: int, last: int, pieces: Sequence[Piece]) -> pa.Table:
        """The pieces' rows that pass the filter, of segments that are decoded once."""
        file = self._files[key]
        table = self._decode(file, first, last)
        counted = file.layout.counted
        if counted:
            table = self._filter(table)
        start = file.layout.plan_starts()[first]
        parts = [narrow(table, piece, start) for piece in pieces]
        table = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        return table if counted else self._filter(table)

    def _decode(self, file: DataFile, first: int, last: int) -> pa.Table:
        """The segments' rows, each column of the resolved type."""
        found = {
            item.name: column
            for items, columns in self._columns(file, first, last)
            for item, column in zip(items, columns, strict=True)
        }
        schema = self._spec.schema
        return pa.Table.from_arrays([found[name] for name in schema.names], schema=schema)

    def _columns(self, file: DataFile, first: int, last: int) -> Iterator[tuple[list[pa.Field], list[pa.ChunkedArray]]]:
        """The segments' rows, column by column as they are decoded: those of one call of the decoder at a time."""
        spec, reader = self._spec, self._reader(file)
        segments = file.layout.segments[first:last]
        numbers = [segment.number for segment in segments]
        rows = sum(segment.rows or 0 for segment in segments)
        there = frozenset(reader.schema.names) - spec.partition_names
        known = all(segment.rows is not None for segment in segments)
        for items in decoder_calls([item for item in spec.schema if item.name in there], rows, self._alone):
            columns = read_columns(reader, numbers, items, self._alone)
            rows, known = len(columns[0]), True
            yield items, [self._conformed(*pair) for pair in zip(columns, items, strict=True)]
        if not known:  # only reading tells how many rows there are, and none of the columns has been read
            rows = len(reader.read(numbers, reader.schema.names[:1])[0])
        constants = dict(file.partition)
        for item in spec.schema:
            if item.name in spec.partition_names:
                yield [item], [arrow_ops.constant(constants[item.name], rows, item.type)]
            elif item.name not in there:
                yield [item], [arrow_ops.conform(None, rows, item.type)]

    def _conformed(self, column: pa.ChunkedArray, item: pa.Field) -> pa.ChunkedArray:
        """A file's column as the resolved type; encoded here, where the reader could not."""
        if item.name not in self._spec.encoded or column.type.equals(item.type):
            return arrow_ops.conform(column, len(column), item.type)
        return arrow_ops.conform(column, len(column), item.type.value_type).dictionary_encode()

    def _reader(self, file: DataFile) -> Reader:
        path = file.info.path
        reader = self._readers.pop(path, None)
        if reader is None:
            while len(self._readers) >= _OPEN_FILES:
                self._readers.pop(next(iter(self._readers))).close()
            spec = self._spec
            wanted = pa.schema([item for item in spec.schema if item.name not in spec.partition_names])
            reader = self._format.open(file.info, file.layout, spec.storage, spec.format_options, wanted)
        self._readers[path] = reader  # the last used one is last
        return reader

    def _filter(self, table: pa.Table) -> pa.Table:
        """The asked-for columns of the live rows, in order."""
        asked, keep = self._asked(table)
        if keep is None or (keep.null_count == 0 and pc.all(keep, min_count=0).as_py()):
            return asked
        return asked.filter(keep)

    def _asked(self, table: pa.Table) -> tuple[pa.Table, pa.Array | None]:
        """The asked-for columns, and which rows are live: they satisfy the predicate and have no null that is dropped.

        Arrow bools [n], true where a row is live; None where all are.
        """
        spec = self._spec
        asked = table if spec.given.equals(spec.schema) else arrow_ops.project(table, spec.given.names)
        keep = spec.converter.null_mask(asked)
        if spec.predicate is not None:
            passed = evaluate(table.select(spec.predicate_columns), spec.predicate)
            keep = passed if keep is None else pc.and_(passed, keep)
        return asked, keep

    def _finish(self, table: pa.Table, where: str, pad: bool) -> Block:
        """The output of the transform, converted."""
        spec = self._spec
        owned: bool | frozenset[int] = True
        if spec.transform is not None:
            owned = frozenset(addresses(table))
            table = self._transformed(compact(table))
        if spec.arrow:
            batch = compact(table)
            if spec.valid_key is not None:
                batch = batch.append_column(spec.valid_key, pa.array(np.full(batch.num_rows, not pad)))
            return Block.of_table(batch)
        columns = spec.converter.convert(table, owned, where)
        if spec.valid_key is not None:
            columns[spec.valid_key] = Dense(np.full(table.num_rows, not pad))
        return Block.of_columns(table.num_rows, columns)

    def _transformed(self, batch: pa.RecordBatch) -> pa.Table:
        assert self._spec.transform is not None
        result = self._spec.transform(batch)
        check_transformed(batch, result, self._spec.transform_rows)
        if not result.schema.equals(self._spec.output_schema):
            raise SchemaMismatchError(
                f"transform returned the schema\n{result.schema}\nwhere its call on 0 rows (or transform_schema) said\n"
                f"{self._spec.output_schema}\nIts columns and types must not depend on the rows."
            )
        return pa.Table.from_batches([result])


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
