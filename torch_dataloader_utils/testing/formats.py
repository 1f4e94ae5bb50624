"""Checks that a file format keeps the contract on which planning and reading rely.

Plain functions that raise AssertionError: they need no test framework.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.base import Format, Reader
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.model import FileLayout, Segment
from torch_dataloader_utils.storage import Storage
from torch_dataloader_utils.testing.samples import Write, WrittenFile, sample_tables, written

_ABSENT = "no such column"
_CUT = 20  # bytes that a file is cut by
_THREADS = 4
_SHOWN = 200  # characters of a value in a message


def check_format(
    format: Format,
    write: Write,
    *,
    tables: Sequence[pa.Table] | None = None,
    options: Mapping[str, Any] | None = None,
    suffix: str = "",
    wrong: Sequence[bytes] = (b"no such format at all",),
    cut_shows: bool = True,
) -> None:
    """Assert that a format keeps the whole contract of `Format` and `Reader`.

    Each table is read back as in `check_table`, plus one without rows. Files that are of another format, truncated,
    changed or missing must raise a `FileReadError` that names the file.

    Args:
        format: to check; it need not be registered.
        write: writes a table as a file at a path, preferably in several segments, which are read in all ways.
        tables: to write, the first with some rows; by default `sample_tables()`. Columns must not hold NaN.
        options: the `format_options` to read with.
        suffix: of the files' names.
        wrong: contents that are not a file of the format.
        cut_shows: whether a file without its last 20 bytes can be distinguished from a whole one.

    Raises:
        AssertionError: names the broken part of the contract.
    """
    tables = sample_tables() if tables is None else tables
    for table in tables:
        check_table(format, write, table, options=options, suffix=suffix)
    with written(format, write, tables[0].slice(0, 0), options, suffix) as file:
        _check_empty(file)
    with written(format, write, tables[0], options, suffix) as file:
        _check_faults(file, wrong, cut_shows)


def check_table(
    format: Format,
    write: Write,
    table: pa.Table,
    *,
    options: Mapping[str, Any] | None = None,
    suffix: str = "",
) -> None:
    """Assert that a table with rows, written as a file of the format, is read back in every way that readers use.

    That is: each row once over the segments, one by one, together, in pairs and backwards; columns alone, in any order
    and none; row counts; pruning and columns with nulls; copies of format and layout by pickle and by `pack`; several
    readers at a time.

    Args:
        format: to check; it need not be registered.
        write: writes a table as a file at a path.
        table: to write. Columns must not hold NaN.
        options: the `format_options` to read with.
        suffix: of the file's name.

    Raises:
        AssertionError: names the broken part of the contract.
    """
    with written(format, write, table, options, suffix) as file:
        _check_layout(file)
        _check_schema(file)
        with file.opened() as reader:
            _check_segments(file, reader)
            _check_columns(file, reader)
        _check_statistics(file)
        _check_copies(file)
        _check_lifetimes(file)


def _require(holds: bool, message: str) -> None:
    """`assert`, also under `python -O`."""
    if not holds:
        raise AssertionError(message)


def _require_same(got: Any, expected: Any, what: str) -> None:
    if got != expected:
        shown = [text if len(text := repr(value)) <= _SHOWN else f"{text[:_SHOWN]}..." for value in (got, expected)]
        raise AssertionError(f"{what}: got {shown[0]}, expected {shown[1]}.")


def _column(reader: Reader, numbers: Sequence[int], name: str) -> list[Any]:
    (array,) = reader.read(numbers, [name])
    return list(array.to_pylist())


def _check_layout(file: WrittenFile) -> None:
    layout, schema = file.laid_out
    _require_same(schema.names, file.table.column_names, "the names that layout() returns")
    _require(len(set(file.numbers)) == len(file.numbers), f"layout(): numbers of segments repeat: {file.numbers}.")
    _require(all(s.size_bytes >= 0 for s in layout.segments), "layout(): a segment has a negative size_bytes.")
    rows = [segment.rows for segment in layout.segments]
    _require(None not in rows or set(rows) == {None}, f"layout(): all segments have row counts or none has: {rows}.")
    _require(0 not in rows, "layout(): a segment has no rows; leave it out.")
    if layout.known:
        _require_same(layout.row_count, file.table.num_rows, "the rows of all segments of layout()")
        starts = [sum(row or 0 for row in rows[:i]) for i in range(len(rows))]
        _require_same([s.first_row for s in layout.segments], starts, "first_row of the segments of layout()")


def _check_segments(file: WrittenFile, reader: Reader) -> None:
    """Every row once, whichever way the segments are cut into calls."""
    segments, numbers = file.laid_out[0].segments, file.numbers
    for name in file.table.column_names:
        expected = file.table[name].to_pylist()
        _require_same(_column(reader, numbers, name), expected, f"column {name}, all segments")
        alone = [_column(reader, [number], name) for number in numbers]
        _require_same([row for rows in alone for row in rows], expected, f"column {name}, the segments one by one")
        for segment, rows in zip(segments, alone, strict=True):
            _require_same(len(rows), _known(segment, len(rows)), f"column {name}, rows of segment {segment.number}")
        for first in range(len(numbers) - 1):
            pair = _column(reader, numbers[first : first + 2], name)
            _require_same(pair, alone[first] + alone[first + 1], f"column {name}, segments {numbers[first]} and next")
        backwards = _column(reader, numbers[::-1], name)
        _require_same(backwards, [row for rows in alone[::-1] for row in rows], f"column {name}, segments backwards")
        _require_same(_column(reader, [], name), [], f"column {name}, no segments")


def _known(segment: Segment, rows: int) -> int:
    return rows if segment.rows is None else segment.rows


def _check_columns(file: WrittenFile, reader: Reader) -> None:
    names = file.table.column_names
    together = list(reader.together(names, file.table.num_rows))
    some = len({*together} & {*names}) == len(together)
    _require(some, f"together({names}) returned {together}, expected some of these, each once.")
    orders: list[list[str]] = [names, names[::-1], names[1:], names[:1], together, []]
    for asked in orders:
        arrays = reader.read(file.numbers, asked)
        _require_same(len(arrays), len(asked), f"arrays for the columns {asked}")
        for name, array in zip(asked, arrays, strict=True):
            _require_same(array.type, reader.schema.field(name).type, f"the type of column {name} of {asked}")
            _require_same(array.to_pylist(), file.table[name].to_pylist(), f"column {name} of {asked}")
            array.validate(full=True)
    if not file.format.typed:
        _require_same(reader.schema.types, file.table.schema.types, "the types of a reader of untyped files")
    _check_rows(file, reader)


def _check_rows(file: WrittenFile, reader: Reader) -> None:
    """`read_rows` returns those of the rows that `read` does, of any of the columns."""
    names = file.table.column_names
    read = dict(zip(names, reader.read(file.numbers, names), strict=True))
    for step in (1, 2, max(1, file.table.num_rows - 1)):
        for rows in (np.arange(0, file.table.num_rows, step), np.arange(file.table.num_rows)[-step:]):
            found = reader.read_rows(file.numbers, names, rows)
            _require(set(found) <= set(names), f"read_rows({names}): got the columns {list(found)}.")
            for name, array in found.items():
                what = f"column {name}, rows {rows.tolist()} by read_rows()"
                _require_same(array.type, read[name].type, f"the type of {what}")
                _require_same(array.to_pylist(), read[name].take(as_arrow(rows)).to_pylist(), what)


def _check_schema(file: WrittenFile) -> None:
    """A reader's schema has those of its file's columns that are wanted, and no other column that is wanted."""
    names, rows = file.table.column_names, file.table.num_rows
    for wanted in (file.wanted.append(pa.field(_ABSENT, pa.int32())), pa.schema(list(file.wanted)[:1])):
        with file.opened(wanted=wanted) as reader:
            what = f"with the columns {wanted.names} wanted"
            _require(hasattr(reader, "schema"), "the reader has no schema: set it to the columns of its file.")
            given = reader.schema.names
            _require(set(wanted.names) & set(names) <= set(given), f"reader.schema lacks columns, {what}.")
            _require(not file.format.typed or _ABSENT not in given, f"reader.schema has absent columns, {what}.")
            for name in given:
                expected = file.table[name].to_pylist() if name in names else [None] * rows
                _require_same(_column(reader, file.numbers, name), expected, f"column {name}, {what}")


def _check_statistics(file: WrittenFile) -> None:
    """What a pruner drops holds no row that matches; columns said to hold nulls do."""
    layout, schema = file.laid_out
    nulls = file.format.null_columns(layout)
    for name in file.table.column_names:
        column = file.table[name]
        _require(name not in nulls or column.null_count > 0, f"null_columns(): column {name} holds no null.")
        if pt.is_nested(column.type) or not schema.field(name).type.equals(column.type):
            continue
        values = [value for value in column.unique() if value.is_valid][:3]
        for test in (pc.field(name).is_null(), *(pc.field(name) == value for value in values)):
            kept = file.format.pruner(test, file.wanted)(layout, schema, {})
            with file.opened(kept) as reader:
                (array,) = reader.read([segment.number for segment in kept.segments], [name])
            kept_rows, rows = (pa.table({name: values}).filter(test).num_rows for values in (array, column))
            _require_same(kept_rows, rows, f"rows that match {test} in the segments that pruner() keeps")


def _check_copies(file: WrittenFile) -> None:
    layout, schema = file.laid_out
    try:
        copied: tuple[Format, FileLayout] = pickle.loads(pickle.dumps((file.format, layout)))
    except (pickle.PicklingError, AttributeError, TypeError, ImportError) as error:
        raise AssertionError(f"format and layout cannot be sent to worker processes by pickle: {error}") from error
    unpacked, found = copied[0].unpack(file.format.pack(layout, schema))
    _require_same(copied[1], layout, "the layout after pickle")
    _require_same((unpacked, found), (layout, schema), "layout and schema after pack() and unpack()")
    for copy, how in ((copied[1], "pickle"), (unpacked, "pack() and unpack()")):
        with replace(file, format=copied[0]).opened(copy) as reader:
            for name in file.table.column_names:
                expected = file.table[name].to_pylist()
                _require_same(_column(reader, file.numbers, name), expected, f"column {name} by a copy by {how}")
    try:
        file.format.unpack(b"no such thing")
    except ValueError:
        return
    raise AssertionError("unpack() took bytes that are not of pack(): expected a ValueError.")


def _check_lifetimes(file: WrittenFile) -> None:
    """Arrays outlive their reader, readers work side by side, and a layout may lack segments."""
    name = file.table.column_names[0]
    expected = file.table[name].to_pylist()
    with file.opened() as reader:
        (array,) = reader.read(file.numbers, [name])
    _require_same(array.to_pylist(), expected, f"column {name} after close()")
    with ThreadPoolExecutor(_THREADS) as pool:
        for columns in pool.map(lambda _: file.read_all(), range(_THREADS)):
            _require_same(columns[0], expected, f"column {name}, {_THREADS} readers at a time")
    last = file.laid_out[0].segments[-1:]
    with file.opened() as whole, file.opened(replace(file.laid_out[0], segments=last)) as part:
        numbers = [segment.number for segment in last]
        _require_same(_column(part, numbers, name), _column(whole, numbers, name), "a layout of the last segment alone")


def _check_empty(file: WrittenFile) -> None:
    layout, schema = file.laid_out
    _require_same(layout.segments, (), "segments of a file without rows")
    if file.format.typed:
        _require_same(schema.names, file.table.column_names, "the names in a file without rows")
        with file.opened() as reader:
            arrays = reader.read([], schema.names)
        _require_same([array.type for array in arrays], schema.types, "the types of a file without rows")


def _check_faults(file: WrittenFile, wrong: Sequence[bytes], cut_shows: bool) -> None:
    """Whatever is wrong with a file is an error that names it."""
    content = file.path.read_bytes()
    info, (layout, _) = file.info, file.laid_out

    def open_as_planned() -> None:
        file.format.open(info, layout, Storage(), file.options, file.wanted).close()

    for other in wrong:
        file.path.write_bytes(other)
        _require_error(replace(file).read_all, file.path, f"a file of {other[:20]!r}")
    if cut_shows:
        file.path.write_bytes(content[:-_CUT])
        _require_error(replace(file).read_all, file.path, f"a file without its last {_CUT} bytes")
    file.path.write_bytes(content * 2)
    _require_error(open_as_planned, file.path, "a file that grew since it was planned")
    file.path.unlink()
    _require_error(open_as_planned, file.path, "a file that is gone")


def _require_error(action: Callable[[], object], path: Path, what: str) -> None:
    try:
        action()
    except FileReadError as error:
        _require(path.name in str(error), f"{what}: the error does not name {path.name}: {error}")
    except Exception as error:
        raise AssertionError(f"{what}: expected a FileReadError, got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"{what}: was read without an error.")
