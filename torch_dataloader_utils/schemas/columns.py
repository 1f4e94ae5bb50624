"""Columns of a table: cast to the resolved type, looked up by path, selected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import ColumnNotFoundError, Remedy, SchemaMismatchError, UnsupportedTypeError, use
from torch_dataloader_utils.late_imports import pc


def conform(column: pa.ChunkedArray | None, rows: int, kind: pa.DataType, where: str = "a column") -> pa.ChunkedArray:
    """A file's column as the resolved type; `rows` nulls if the file has no such column.

    Args:
        column: the column as read; None if the file lacks it.
        rows: number of rows.
        kind: the resolved type.
        where: the file and the column, for errors.

    Raises:
        SchemaMismatchError: a value does not fit the type: `schema=` declares a narrower one, or it is a whole number
            that a float64 would round, in a column that holds floats in other files.
    """
    if column is None:
        return pa.chunked_array([pa.nulls(rows, kind)])
    if column.type.equals(kind):
        return column
    try:
        return (pc.run_end_decode(column) if pt.is_run_end_encoded(column.type) else column).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatchError(
            f"{where}: a value of type {column.type} does not fit {kind}, the column's type (schema= says it, or all "
            f"files together): {error}. Give schema= with a type that holds the values of all files, or read the files "
            "of each type apart."
        ) from error


def constant(value: Any, rows: int, kind: pa.DataType) -> pa.ChunkedArray:
    """A column that repeats `value` (None for null) in `rows` rows, in fresh memory."""
    return pa.chunked_array([pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)])


def column_path(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """The path to a column: `("a.b",)` for a top-level column of that name, else `("a", "b")` into a struct.

    Raises:
        ColumnNotFoundError: there is no such column; suggests the nearest name and lists all.
    """
    path = find_path(schema, name)
    if path is None:
        raise ColumnNotFoundError(f"no column {name!r}: {available_columns(schema, name)}")
    return path


def find_path(schema: pa.Schema, name: str) -> tuple[str, ...] | None:
    """As `column_path`, but None if there is no such column."""
    # `schema.names` would list all names for each one that is looked up.
    return (name,) if len(schema.get_all_field_indices(name)) == 1 else _path_in(schema, name)


def _path_in(fields: Iterable[pa.Field], name: str) -> tuple[str, ...] | None:
    """The path below `fields` that `name` spells, or None; the first in the order of the fields."""
    for field in fields:
        if field.name == name:
            return (name,)
        if pt.is_struct(field.type) and name.startswith(f"{field.name}."):
            rest = _path_in(list(field.type), name[len(field.name) + 1 :])
            if rest is not None:
                return (field.name, *rest)
    return None


def named_columns(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """The names of the columns, with each pattern (`*`, `?`, `[seq]`) replaced by the columns that it matches.

    The order is that of the patterns, then of the schema; each column appears once. A struct that matches is selected
    whole; otherwise its fields are matched as `parent.child`. If a column has the pattern as its name, it is selected.

    Raises:
        ColumnNotFoundError: a pattern matches no column; suggests the nearest name and lists all.
    """
    chosen: dict[str, None] = {}
    for column in columns:
        if not set(column) & set("*?[") or find_path(schema, column) is not None:
            chosen[column] = None
        elif any(_matches(schema, column)):
            chosen |= dict.fromkeys(_matches(schema, column, frozenset({*chosen, *_structs_of(chosen)})))
        else:
            raise ColumnNotFoundError(f"no column matches {column!r}: {available_columns(schema, column)}")
    return list(chosen)


def _structs_of(names: Iterable[str]) -> Iterator[str]:
    """The structs that contain the fields of these names, each followed by a dot."""
    return (name[: at + 1] for name in names for at, sign in enumerate(name) if sign == ".")


def _matches(
    fields: Iterable[pa.Field], pattern: str, chosen: frozenset[str] = frozenset(), above: str = ""
) -> Iterator[str]:
    """The columns below `fields` that match and are not yet chosen; of partly chosen structs, the remaining fields."""
    for field in fields:
        name = f"{above}{field.name}"
        if name in chosen:
            continue
        matches = fnmatchcase(name, pattern)
        if matches and f"{name}." not in chosen:
            yield name
        elif pt.is_struct(field.type):
            yield from _matches(list(field.type), "*" if matches else pattern, chosen, f"{name}.")


def available_columns(schema: pa.Schema, name: str) -> str:
    """The columns that an error lists, the nearest name first."""
    names = [*schema.names, *(path for field in schema for path in _dotted(field) if path != field.name)]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return f"{hint}The columns are {', '.join(names[:40])}{more}."


def _dotted(field: pa.Field) -> list[str]:
    below = list(field.type) if pt.is_struct(field.type) else []
    return [field.name, *(f"{field.name}.{path}" for child in below for path in _dotted(child))]


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The selected columns, with the requested names and order; nested ones as `parent.child`, structs whole.

    Raises:
        ColumnNotFoundError: there is no such column; suggests the nearest name and lists all.
    """
    if columns is None:
        return schema
    return pa.schema([pa.field(name, type_at(schema, column_path(schema, name))) for name in columns])


def type_at(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    """The type of the column at `path`."""
    kind = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind


def top_level(schema: pa.Schema, name: str) -> str:
    """The top-level column that contains the selected column `name`."""
    return column_path(schema, name)[0]


def project(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The selected columns of `table`, named as in `select_columns`; the fields of a null struct are null."""
    arrays = [column_at(table, column_path(table.schema, name)) for name in columns]
    return pa.table(arrays, schema=select_columns(table.schema, columns))


def column_at(table: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """The column at `path`; the fields of a null struct are null."""
    return pc.struct_field(table[path[0]], list(path[1:])) if len(path) > 1 else table[path[0]]


def python_values(
    column: pa.Array | pa.ChunkedArray, name: str = "", remedies: Sequence[Remedy] = (use(output_format="arrow"),)
) -> list[Any]:
    """The rows of a column as Python objects, None for nulls.

    Args:
        column: the column.
        name: for errors; "" if it is not known.
        remedies: what mends the error.

    Raises:
        UnsupportedTypeError: Python has no such value: a date or time outside the years 1 to 9999, or an unknown zone.
    """
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raise
    except (OverflowError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise UnsupportedTypeError(
            f"{f'column {name!r}' if name else 'a column'} of type {column.type} has a value that Python has not: "
            f"{error}. Convert it to numbers or text in an Arrow transform.",
            remedies=remedies,
        ) from error
    return values


def python_rows(batch: pa.RecordBatch | pa.Table) -> dict[str, list[Any]]:
    """The columns as lists of Python objects, by name; raises as `python_values`."""
    return {name: python_values(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
