"""Executes tasks over scanned files: reads pieces, filters, transforms and converts their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.convert.columns import Column
from torch_dataloader_utils.convert.converter import Converter, compact
from torch_dataloader_utils.convert.utf8 import check_utf8
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError, RowErrors, TooManyErrors
from torch_dataloader_utils.events import FailedRow, recorder
from torch_dataloader_utils.filters.arrow import evaluate
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.model import DataFile, FileKey, Piece, RowDraws, Task, split_pieces
from torch_dataloader_utils.options.sources import SHARES
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.blocks import Block, noting
from torch_dataloader_utils.reading.chosen import COPIES, KEEP, RowCopies, copied, kept, with_shares
from torch_dataloader_utils.reading.decoding import Numbers, addresses, joined, narrow, numbers_in, numbers_of
from torch_dataloader_utils.reading.dictionaries import without_large_dictionaries
from torch_dataloader_utils.reading.draws import copies_of, copy_numbers
from torch_dataloader_utils.reading.failures import (
    ErrorText,
    TransformFailed,
    first_failing,
    is_of_rows,
    with_stand_ins,
)
from torch_dataloader_utils.reading.runs import RunReader, SegmentRun, runs_of
from torch_dataloader_utils.reading.straight import StraightReader
from torch_dataloader_utils.reading.transforms import TransformCall, made_by, transformed
from torch_dataloader_utils.reading.windows import (
    Gather,
    Span,
    WindowRead,
    WindowReader,
    marks_of,
    of_windows,
    places_of,
    shuffled,
    spans_of,
)
from torch_dataloader_utils.schemas.columns import project, select_columns, top_level

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.scan import ScanSpec


_MOST = 0.25  # the share of live rows up to which they may be few
_APART = 64  # rows that are not live for each range of live rows, so that to decode only these takes less time


class RowsOfRun(NamedTuple):
    """Rows of a run.

    Attributes:
        table: the requested columns, of all rows, or of live ones alone.
        keep: which rows of the table are live, Arrow bools; None for all.
        rows: the numbers that the table's rows have in the run; None if it has all.
    """

    table: pa.Table
    keep: pa.Array | None
    rows: Numbers | None = None


def _few(keep: pa.Array) -> Numbers | None:
    """The numbers of the live rows, if these are few, or lie together: columns are then decoded only there."""
    if keep.true_count > _MOST * len(keep):
        return None
    rows = numbers_of(keep)
    ranges = np.count_nonzero(np.diff(rows) != 1)
    return rows if ranges * _APART <= len(keep) - len(rows) else None


class TaskReader:
    """Executes tasks; keeps the last few files open. One per thread or process."""

    def __init__(self, spec: ScanSpec, files: Mapping[FileKey, DataFile]) -> None:
        self._spec, self._files = spec, files
        self._runs = RunReader(spec, files)
        self._parts: dict[tuple[str, ...], Converter] = {}
        # The columns that are decoded first, and those that follow; none, if all are decoded at once.
        decisive = spec.decisive if self._runs.alone else ()
        self._rest = pa.schema([item for item in spec.schema if decisive and item.name not in decisive])
        self._first = pa.schema([item for item in spec.schema if item.name not in self._rest.names])
        self._given = spec.schema if spec.given.equals(spec.schema) else select_columns(spec.schema, spec.given.names)
        self._new_columns = list(made_by(spec.transform))
        self._straight = StraightReader(spec.converter, self._runs, spec.pool)
        self.windows = WindowReader(spec.converter, self._runs, self._part, self._straight)

    def block(self, task: Task) -> Block:
        """The task's rows, converted."""
        if not of_windows(task):
            return self._of_whole_runs(task) or self.read(task.pieces, task.pad, task.epoch)[0]
        shared = self.share(task)
        if shared is None and self._is_part(task):
            return self._part_of_windows(task)
        return (shared.read(self) if shared is not None else None) or shuffled(task, self.read, self._spec.pool.lease)

    def _of_whole_runs(self, task: Task) -> Block | None:
        """The rows of a task of whole runs, of which numbers are decoded to where they are delivered; else None."""
        found, spec = self._stand_alone(task), self._spec
        if found is None or task.rows is None:
            return None
        runs = [found[0][owner] for owner in found[1]]
        if len(set(runs)) < len(runs):
            return None
        straight = self._straight.columns(runs, list(spec.schema), task.rows)
        if not straight:
            return None
        columns: dict[str, Column] = {self._straight.key(name): column for name, column in straight.items()}
        rest = pa.schema([item for item in spec.schema if item.name not in straight])
        where = self._runs.where(runs)
        with noting(where, DataLoaderUtilsError):
            if len(rest):
                table = joined([self._runs.decode(run, rest) for run in runs])
                recorder().enter("convert")
                columns |= self._part(tuple(rest.names)).convert(table, True, where)
            block = Block.of_columns(task.rows, spec.converter.stacked(columns, spec.pool.lease))
        return block.marked(spec.valid_key, not task.pad)

    def _is_part(self, task: Task) -> bool:
        """Whether the task delivers only some rows of its windows, so that only these should be transformed."""
        known = self._spec.made_bytes and task.rows is not None
        return bool(known) and (task.rows or 0) < sum(map(len, split_pieces(task.pieces)))

    def _part_of_windows(self, task: Task) -> Block:
        """The rows of a part of windows, taken before they are transformed."""

        def taken(tables: list[pa.Table]) -> list[pa.Table]:
            places = places_of(task.pieces, iter(spans_of([table.num_rows for table in tables])))
            return [without_large_dictionaries(joined(tables), self._spec.encoded).take(pa.array(places))]

        return self._read(list(split_pieces(task.pieces)), task.pad, task.epoch, taken)[0]

    def share(self, task: Task) -> WindowRead | None:
        """A read of the task that other readers may join; None if one reader has to read it whole, by `block`."""
        # If not every planned row is delivered, a window's rows are unknown although those of its pieces may be known.
        found = self._stand_alone(task) if of_windows(task) and task.rows is not None else None
        if found is None or not len(self._spec.schema) or any(p.rows is None for p in split_pieces(task.pieces)):
            return None
        runs, owners = found
        recorder().enter("shuffle")
        gather = Gather(task.pieces, owners, [self._runs.start(run) for run in runs], self._spec.pool)
        calls = self._runs.window_turns(runs, list(self._spec.schema))
        marks = marks_of(self._spec.valid_key, gather.rows, not task.pad)
        return WindowRead(gather, runs, calls, self._spec.converter, marks)

    def over(self, files: Mapping[FileKey, DataFile]) -> TaskReader:
        """A reader of the same files whose rows are numbered in another way, by key."""
        return TaskReader(self._spec, files)

    def read(self, pieces: Sequence[Piece], pad: bool, epoch: int) -> tuple[Block, list[Span]]:
        """The converted rows of pieces of splits as one block, and each piece's range of rows in it."""
        return self._read(pieces, pad, epoch, list)

    def _read(
        self, pieces: Sequence[Piece], pad: bool, epoch: int, arranged: Callable[[list[pa.Table]], list[pa.Table]]
    ) -> tuple[Block, list[Span]]:
        """The same of the rows of all pieces as they are arranged before they are transformed."""
        runs, owners = runs_of([self._runs.place(piece) for piece in pieces])
        self._runs.announce(runs)
        with noting(self._runs.where(runs), DataLoaderUtilsError):
            tables = self._rows(runs, owners, pieces, epoch)
            given = arranged(tables)
        try:
            return self._made(given, runs, pad)
        except Exception as error:  # noqa: BLE001 - raised again, of the row or piece that it is of
            failed = error
        if isinstance(failed, TransformFailed) and is_of_rows(failed.error):
            rows = self._failing_rows(failed.error, runs, lambda on: arranged(on._rows(runs, owners, pieces, epoch)))
            if rows:
                raise of_rows(failed.error, rows)
        raise self._blamed(failed, tables, [runs[owner] for owner in owners])

    def _blamed(self, error: Exception, tables: Sequence[pa.Table], runs: Sequence[SegmentRun]) -> Exception:
        """The error of the first of these tables that has one by itself, which then names its own file."""
        for table, run in zip(tables, runs, strict=True) if len(tables) > 1 else ():
            try:
                self._made([table], [run], pad=True)
            except Exception as own:  # noqa: BLE001 - raised instead
                return self._noted(own, [run])
        return self._noted(error, runs)

    def _noted(self, error: Exception, runs: Sequence[SegmentRun]) -> Exception:
        """An error of rows of these runs, with a note that says so, unless it does itself."""
        where = self._runs.where(runs)
        if isinstance(error, TransformFailed):
            return transform_error(error.error, where)
        if not isinstance(error, DataLoaderUtilsError):
            error.add_note(f"while reading {where}")
        return error

    def _failing_rows(
        self, error: Exception, runs: Sequence[SegmentRun], read: Callable[[TaskReader], list[pa.Table]]
    ) -> dict[int, str]:
        """The first rows for which the transform raised an error, read again with their places; empty if unknown.

        Args:
            error: of all rows together.
            runs: of the rows.
            read: reads them.

        Returns:
            The number of each in what the transform was given, and where it is, in words.
        """
        spec = self._spec.with_places()
        reader = TaskReader(spec, self._files)
        try:
            table = joined(read(reader))
            call = TransformCall(table, spec)
            if isinstance(error, RowErrors) and call.knows_rows:
                numbers = [number for number in error.errors if number < table.num_rows][:3]
            else:
                found = first_failing(table.num_rows, call)
                numbers = [] if found is None else [found]
            rows = reader._runs.rows_of(table.column(PLACE).take(pa.array(numbers, pa.int64())).to_pylist(), runs)
        except Exception:  # noqa: BLE001 - the error itself matters, not what fails while its row is looked for
            return {}
        finally:
            reader.close()
        return dict(zip(numbers, map(self._runs.in_words, rows), strict=True))

    def read_columns(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Give the task's rows to `add`, a few columns at a time; returns how many rows there are.

        Each column is still in the processor's cache after decoding. Returns None, without reading, if columns depend
        on each other (filter, transform, stack) or if row counts are known only after reading.
        """
        if self._spec.converter.stacks:
            return None
        shared = self.share(task)
        if shared is not None:
            while (items := shared.next_call()) is not None:
                add(self.windows.columns(shared, items))
            rows: int | None = shared.gather.rows
        else:
            rows = self._add_run(task, add)
        if rows is not None:
            add(marks_of(self._spec.valid_key, rows, not task.pad))
        return rows

    def _stand_alone(self, task: Task) -> tuple[list[SegmentRun], list[int]] | None:
        """The runs of the task and the run of each piece of a split, if its columns do not depend on each other."""
        if not self._spec.columns_stand_alone:
            return None
        runs, owners = runs_of([self._runs.place(piece) for piece in split_pieces(task.pieces)])
        return None if any(self._runs.layout(run).counted for run in runs) else (runs, owners)

    def _add_run(self, task: Task, add: Callable[[dict[str, Column]], None]) -> int | None:
        """Give the rows of a task that is one piece of a split to `add`; returns how many, or None as above."""
        piece = task.pieces[0]
        found = None if len(task.pieces) > 1 or of_windows(task) else self._stand_alone(task)
        if found is None or not (piece.rows is None or piece.rows.contiguous):
            return None
        run, noted, count = found[0][0], recorder(), 0
        self._runs.announce([run])
        where = self._runs.where([run])
        with noting(where, DataLoaderUtilsError):
            for items, columns in self._runs.columns(run, list(self._spec.schema)):
                noted.enter("convert")
                table = narrow(pa.Table.from_arrays(columns, schema=pa.schema(items)), piece, self._runs.start(run))
                count = table.num_rows
                add(self._part(tuple(table.column_names)).convert(table, True, where))
                del columns, table
                noted.enter("decode")
        return count

    def _part(self, names: tuple[str, ...]) -> Converter:
        if names not in self._parts:
            self._parts[names] = self._spec.converter.part(names)
        return self._parts[names]

    def live(self, file: FileKey, place: int) -> tuple[int, pa.Table]:
        """The number of live rows in one segment, and those rows as the converter receives them.

        Args:
            file: the file's key.
            place: the segment's index in the file's layout.
        """
        run = SegmentRun(file, place, place + 1)
        with noting(self._runs.where([run]), DataLoaderUtilsError):
            table, keep, _ = self._decoded(run, None, 0)
            rows = table if keep is None else table.filter(keep)
        if self._spec.transform is None:
            return rows.num_rows, rows
        if self._spec.draws is not None:
            rows = self._spec.draws.of_scan(rows, file[0])
        try:
            return rows.num_rows, transformed(rows, self._spec)[0]
        except Exception as error:  # noqa: BLE001 - raised again
            failed = error
        raise self._noted(failed, [run])

    def close(self) -> None:
        """Close the open files."""
        self._runs.close()

    def _rows(
        self, runs: Sequence[SegmentRun], owners: Sequence[int], pieces: Sequence[Piece], epoch: int
    ) -> list[pa.Table]:
        """The rows of each piece that pass the filter; each segment is decoded once."""
        by_run: list[list[int]] = [[] for _ in runs]
        for place, owner in enumerate(owners):
            by_run[owner].append(place)
        tables: dict[int, pa.Table] = {}
        for run, places in zip(runs, by_run, strict=True):
            tables |= zip(places, self._rows_of(run, [pieces[place] for place in places], epoch), strict=True)
        return [tables[place] for place in range(len(pieces))]

    def _rows_of(self, run: SegmentRun, pieces: Sequence[Piece], epoch: int) -> list[pa.Table]:
        """The live rows of each piece; all pieces are in one run."""
        counted, start, spec = self._runs.layout(run).counted, self._runs.start(run), self._spec
        table, keep, rows = self._decoded(run, spec.copies, epoch)
        if counted:  # plan rows are live rows
            table, keep, rows = table if keep is None else table.filter(keep), None, None
        if (of_file := self._runs.draws(run)) is not None:
            return self._drawn(table, run, of_file, pieces, epoch)
        if SHARES in table.column_names:
            table = with_shares(table, np.ones(table.num_rows, np.float32))
        if keep is not None:
            table = table.append_column(KEEP, keep)
        parts = [narrow(table, piece, start, rows) for piece in pieces]
        table, counts = joined(parts), [part.num_rows for part in parts]
        if keep is not None:
            table, counts = kept(table, counts)
        if spec.copies is not None:
            table, counts = copied(table, counts)
        tables = [table] if len(parts) == 1 else [table.slice(*span) for span in spans_of(counts)]
        if (draws := spec.draws) is None:
            return tables
        return [
            draws.of_piece(table, piece, epoch, None if spec.copies is None else copies_of(table))
            for table, piece in zip(tables, pieces, strict=True)
        ]

    def _drawn(
        self, table: pa.Table, run: SegmentRun, draws: RowDraws, pieces: Sequence[Piece], epoch: int
    ) -> list[pa.Table]:
        """The rows of each piece, of a file whose rows are drawn; the table has the live rows of the run."""
        places, start = range(run.first, run.last), self._runs.start(run)
        before = np.cumsum([0, *map(draws.count, places)])
        drawn = np.concatenate([draws.rows(place) + first for place, first in zip(places, before, strict=False)])
        table = table.slice(0, before[-1])  # a limit leaves out the rest
        if SHARES in table.column_names:
            table = with_shares(table, np.concatenate([draws.shares(place) for place in places]))
        of_rows = self._spec.draws
        copies = copy_numbers(drawn) if of_rows is not None else drawn
        tables = []
        for piece in pieces:
            numbers = slice(None) if piece.rows is None else numbers_in(piece.rows, start)
            part = table.take(as_arrow(drawn[numbers]))
            tables.append(part if of_rows is None else of_rows.of_piece(part, piece, epoch, copies[numbers]))
        return tables

    def _decoded(self, run: SegmentRun, copies: RowCopies | None, epoch: int) -> RowsOfRun:
        """The requested columns of the run, and which rows are live.

        What decides that is decoded first. All else is decoded only of the live rows, if these are few.
        """
        table = self._runs.counted(run, self._first, copies, epoch)
        recorder().enter("filter")
        asked = self._asked(table)
        keep = self._keep(table, asked)
        if not len(self._rest):
            return RowsOfRun(asked, keep)
        rows = None if keep is None else _few(keep)
        rest = self._asked(self._runs.decode(run, self._rest, rows))
        recorder().enter("filter")
        first = asked.filter(keep) if rows is not None and asked.num_columns else asked
        columns = dict(zip(first.column_names, first.columns, strict=True))
        columns |= zip(rest.column_names, rest.columns, strict=True)
        whole = pa.Table.from_arrays([columns[name] for name in self._given.names], schema=self._given)
        whole = whole.append_column(COPIES, columns[COPIES]) if COPIES in columns else whole
        return RowsOfRun(whole, keep if rows is None else None, rows)

    def _asked(self, table: pa.Table) -> pa.Table:
        """The requested columns, of those whose top-level columns the table has; and that of counts."""
        spec, read = self._spec, set(table.column_names)
        if spec.given.equals(spec.schema):
            return table
        asked = [name for name in spec.given.names if top_level(spec.schema, name) in read]
        return project(table, [*asked, COPIES] if COPIES in read else asked)

    def _keep(self, table: pa.Table, asked: pa.Table) -> pa.Array | None:
        """Which rows are live, Arrow bools [rows]; None for all.

        Live rows satisfy the filter, belong to the subset, and have no null that drops them.

        Args:
            table: has at least the columns that decide.
            asked: those of them that are requested.
        """
        spec = self._spec
        masks = [spec.converter.null_mask(asked), None if spec.chosen is None else spec.chosen.mask(table)]
        if spec.predicate is not None and not spec.decided:
            masks.append(evaluate(table.select(spec.predicate_columns), spec.predicate))
        keep = reduce(pc.and_, given) if (given := [mask for mask in masks if mask is not None]) else None
        return None if keep is None or (keep.null_count == 0 and pc.all(keep, min_count=0).as_py()) else keep

    def _made(self, tables: list[pa.Table], runs: Sequence[SegmentRun], pad: bool) -> tuple[Block, list[Span]]:
        """The converted output of the transform, and each table's range of rows in it."""
        spec, where = self._spec, self._runs.where(runs)
        counts = [table.num_rows for table in tables]
        if spec.transform is None:
            return self._converted(joined(tables), True, where).marked(spec.valid_key, not pad), spans_of(counts)
        owned = frozenset(address for table in tables for address in addresses(table))
        if spec.transform_rows == "any":
            # It is called per piece, so that each piece's count is known.
            parts = [self._transformed(table, runs, pad)[0] for table in tables]
            counts = [part.num_rows for part in parts]
            owned |= self._new(parts)
            return self._converted(joined(parts), owned, where).marked(spec.valid_key, not pad), spans_of(counts)
        whole, failed = self._transformed(joined(tables), runs, pad)
        if failed is None:  # else rows may stand in for others, in the same memory
            owned |= self._new([whole])
        block = self._converted(whole, owned, where)
        if failed is not None and spec.skipping is not None and not spec.skipping.keeps:
            return replace(block, left_out=failed).marked(spec.valid_key, not pad), spans_of(counts)
        return block.marked(spec.valid_key, not pad, failed), spans_of(counts)

    def _new(self, made: Sequence[pa.Table]) -> frozenset[int]:
        """The addresses of what a transform has made of new memory, as it declares."""
        return frozenset(address for table in made for address in addresses(table.select(self._new_columns)))

    def _transformed(self, table: pa.Table, runs: Sequence[SegmentRun], pad: bool) -> tuple[pa.Table, Numbers | None]:
        """What the transform makes of rows, and the numbers of those for which it failed; None if there are none.

        These are left out, or others are in their places.

        Raises:
            TooManyErrors: there is no row to put there.
        """
        spec = self._spec
        made, errors = transformed(table, spec)
        if not errors:
            return made, None
        failed, skipping = np.array(sorted(errors), np.int64), spec.skipping
        assert skipping is not None
        if not pad:  # else it was told of what is repeated
            self._tell(table, errors, runs)
        if not skipping.keeps:
            return made, failed
        good = np.delete(np.arange(table.num_rows), failed)
        whole = with_stand_ins(made, good, table.num_rows, skipping.fills, partial(self._good_row, runs))
        if whole is None:
            first = next(iter(errors.values()))
            raise TooManyErrors(
                f"{self._runs.where(runs)}: transform failed for all rows, so that none can take the place of others: "
                f"{first.kind}: {first.text}. Repair them, or give Transform(on_error=Fill(...)) a value for each "
                "column."
            )
        return whole, failed

    def _good_row(self, runs: Sequence[SegmentRun]) -> pa.Table | None:
        """A row of these runs for which the transform does not fail; None if there is none.

        Of those of a task that delivers few of them, such as what an earlier phase left, all may fail.
        """
        pieces = [self._runs.whole(run) for run in runs]
        made, _ = transformed(joined(self._rows(runs, range(len(runs)), pieces, 0)), self._spec)
        return made.slice(0, 1) if made.num_rows else None

    def _tell(self, table: pa.Table, errors: Mapping[int, ErrorText], runs: Sequence[SegmentRun]) -> None:
        """Record the rows for which the transform failed."""
        places = table.column(PLACE).take(pa.array(list(errors), pa.int64())).to_pylist()
        for (path, found), error in zip(self._runs.rows_of(places, runs), errors.values(), strict=True):
            recorder().fail(FailedRow(path, found.row, found.segment, error.kind, error.text, self._spec.source))

    def _converted(self, table: pa.Table, owned: bool | frozenset[int], where: str) -> Block:
        """The converted output."""
        spec = self._spec
        recorder().enter("convert")
        if spec.arrow:
            for name, column in zip(table.column_names, table.columns, strict=True):
                check_utf8(name, column, where)
            return Block.of_table(compact(table))
        return Block.of_columns(table.num_rows, spec.converter.convert(table, owned, where))


def of_rows(error: Exception, rows: Mapping[int, str]) -> Exception:
    """The error of a transform, which names the rows that it is of: their numbers in what it was given, and words."""
    return error.named(rows) if isinstance(error, RowErrors) else transform_error(error, next(iter(rows.values())))


def transform_error(error: Exception, where: str) -> Exception:
    """The error of a transform, or one in its place, which says where the rows are."""
    if type(error) is FileReadError:  # of a file within the data
        made = FileReadError(f"{where}: {error}")
        made.__cause__ = error.__cause__
        return made
    error.add_note(f"while transforming {where}")
    return error
