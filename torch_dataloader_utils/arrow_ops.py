"""Schemas and columns: one type per column over all files, projection, and filters as Arrow expressions."""

from __future__ import annotations

import difflib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, SchemaMismatchError

# ---------------------------------------------------------------------------------------------------------- schemas


def resolve_schema(files: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """The columns of all files, in the order of first appearance, each with a type that holds every file's values.

    Ints widen to ints and floats to floats; an int widens to a float only where every value of it is exact there;
    temporal units become finer; dictionaries become plain where files differ, and views always; a null column takes
    the other's type; structs gain fields. A column that a file lacks is null there. All columns are nullable.

    Raises:
        SchemaMismatchError: naming file, column and both types.
    """
    types: dict[str, tuple[pa.DataType, str]] = {}
    seen: set[pa.Schema] = set()
    for path, schema in files:
        schema = schema.remove_metadata()
        if schema in seen:
            continue
        seen.add(schema)
        _reject_twins(path, schema)
        for field in schema:
            kind = without_views(field.type)
            known, origin = types.get(field.name, (kind, path))
            merged = merge_types(known, kind)
            if merged is None:
                raise SchemaMismatchError(
                    f"{path}: column {field.name!r} is {field.type}, but {known} in {origin}, and no type holds both "
                    "exactly. Give schema= with the type to use, or read these files apart."
                )
            types[field.name] = (merged, origin)
    return pa.schema([pa.field(name, kind) for name, (kind, _) in types.items()])


def check_schema(declared: pa.Schema, files: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """`declared` without metadata, once every file's columns are known to be castable to it.

    Columns that it leaves out are not read. A value that does not fit is an error when it is met.

    Raises:
        OptionError: it is no schema.
        SchemaMismatchError: a file's column cannot be cast: names file, column and both types.
    """
    if not isinstance(declared, pa.Schema):
        raise OptionError(f"schema={declared!r}: expected a pyarrow.Schema.")
    _reject_twins("schema=", declared)
    seen: set[pa.Schema] = set()
    for path, schema in files:
        if schema in seen:
            continue
        seen.add(schema)
        _reject_twins(path, schema)
        for field in declared:
            place = schema.get_field_index(field.name)
            if place >= 0 and not _castable(schema.field(place).type, field.type):
                raise SchemaMismatchError(
                    f"{path}: column {field.name!r} is {schema.field(place).type}, which cannot be cast to "
                    f"{field.type} as schema= asks."
                )
    return pa.schema([pa.field(field.name, without_views(field.type)) for field in declared])


def _reject_twins(path: str, schema: pa.Schema) -> None:
    name, times = next(iter(Counter(schema.names).most_common(1)), ("", 0))
    if times > 1:
        raise SchemaMismatchError(f"{path}: more than one column is called {name!r}: names must be unique.")


def _castable(old: pa.DataType, new: pa.DataType) -> bool:
    try:
        pa.nulls(1, old).cast(new)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def merge_types(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of `a` and of `b` exactly, or None where there is none."""
    if a.equals(b) or pt.is_null(b):
        return a
    if pt.is_null(a):
        return b
    a, b = plain_type(a), plain_type(b)
    try:
        fields = [pa.schema([pa.field("", a)]), pa.schema([pa.field("", b)])]
        merged = pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    # pyarrow also merges what loses values, such as int64 with double or uint64 with int64.
    return merged if holds(merged, a) and holds(merged, b) and _castable(a, merged) and _castable(b, merged) else None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without a dictionary."""
    return plain_type(kind.value_type) if pt.is_dictionary(kind) else kind


def without_views(kind: pa.DataType) -> pa.DataType:
    """The type with large strings and binaries for views, which Arrow can neither filter, take nor compare."""
    if pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary_view(kind):
        return pa.large_binary()
    if pt.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(without_views(kind.key_type), without_views(kind.item_type), keys_sorted=kind.keys_sorted)
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(without_views(kind.value_type)))
    return kind


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_floating,
    pt.is_date,
    pt.is_time,
    pt.is_duration,
    pt.is_decimal,
    lambda kind: bool(pt.is_string(kind) or pt.is_large_string(kind)),
    lambda kind: bool(pt.is_binary(kind) or pt.is_large_binary(kind)),
)
_FLOAT_DIGITS = {16: 11, 32: 24, 64: 53}


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether `wide`, a type that pyarrow would merge `narrow` into, has every value of `narrow` exactly."""
    if wide.equals(narrow) or pt.is_null(narrow):
        return True
    if pt.is_integer(narrow):
        digits = narrow.bit_width - pt.is_signed_integer(narrow)
        if pt.is_floating(wide):
            return bool(digits <= _FLOAT_DIGITS[wide.bit_width])
        signs = pt.is_signed_integer(wide) or pt.is_unsigned_integer(narrow)
        return bool(pt.is_integer(wide) and signs and digits <= wide.bit_width - pt.is_signed_integer(wide))
    if pt.is_timestamp(narrow) and pt.is_timestamp(wide):
        return bool(wide.tz == narrow.tz)
    if pt.is_nested(narrow) and pt.is_nested(wide):
        return _nested_holds(wide, narrow)
    return any(family(wide) and family(narrow) for family in _FAMILIES)


def _nested_holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    if pt.is_struct(narrow) and pt.is_struct(wide):
        names = {field.name for field in wide}
        return all(field.name in names and holds(wide.field(field.name).type, field.type) for field in narrow)
    if pt.is_map(narrow) or pt.is_map(wide):
        both = pt.is_map(narrow) and pt.is_map(wide)
        return both and holds(wide.key_type, narrow.key_type) and holds(wide.item_type, narrow.item_type)
    if pt.is_fixed_size_list(narrow):
        return False  # of another size, or a list: rows would lose their shape
    if hasattr(narrow, "value_type") and hasattr(wide, "value_type"):
        return holds(wide.value_type, narrow.value_type)
    return False


def conform(column: pa.ChunkedArray | None, rows: int, kind: pa.DataType) -> pa.ChunkedArray:
    """A file's column as the resolved type; nulls of it where the file has no such column (`rows` of them).

    Raises:
        SchemaMismatchError: a value does not fit the type (possible only where `schema=` declares a narrower one).
    """
    if column is None:
        return pa.chunked_array([pa.nulls(rows, kind)])
    if column.type.equals(kind):
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatchError(f"a value of type {column.type} does not fit {kind}: {error}") from error


def constant(value: Any, rows: int, kind: pa.DataType) -> pa.ChunkedArray:
    """`rows` times the same value (None for null), in memory of their own."""
    return pa.chunked_array([pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)])


# ------------------------------------------------------------------------------------------------------- projection


def column_path(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """The path to a column: `("a.b",)` for a top-level column of that name, else `("a", "b")` into a struct.

    Raises:
        ColumnNotFoundError: with the nearest name and a list of all.
    """
    if schema.names.count(name) == 1:
        return (name,)
    path = _path_in(schema, name)
    if path is None:
        raise ColumnNotFoundError(f"no column {name!r}: {_columns_there(schema, name)}")
    return path


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


def _columns_there(schema: pa.Schema, name: str) -> str:
    names = [*schema.names, *(path for field in schema for path in _dotted(field) if path != field.name)]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return f"{hint}There are {', '.join(names[:40])}{more}."


def _dotted(field: pa.Field) -> list[str]:
    below = list(field.type) if pt.is_struct(field.type) else []
    return [field.name, *(f"{field.name}.{path}" for child in below for path in _dotted(child))]


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The selected columns, named as asked and in that order; nested ones as `parent.child`, structs whole.

    Raises:
        ColumnNotFoundError: with the nearest name and a list of all.
    """
    if columns is None:
        return schema
    return pa.schema([pa.field(name, _type_at(schema, column_path(schema, name))) for name in columns])


def _type_at(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    kind = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind


def top_level(schema: pa.Schema, name: str) -> str:
    """The top-level column that the selected column `name` lies in."""
    return column_path(schema, name)[0]


def project(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The selected columns of `table`, as `select_columns` names them; a null struct makes nulls of its fields."""
    paths = [column_path(table.schema, name) for name in columns]
    arrays = [pc.struct_field(table[path[0]], list(path[1:])) if len(path) > 1 else table[path[0]] for path in paths]
    return pa.table(arrays, schema=select_columns(table.schema, columns))


# ---------------------------------------------------------------------------------------------------------- filters

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPERATORS = (*_COMPARISONS, "in", "not in", "is null", "is not null")
_EXAMPLE = "a list of tuples such as [('age', '>', 30), ('city', 'in', ['Rome', 'Oslo'])]"


def as_expression(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters` as an expression that fits `schema`, or None where there is no filter.

    A flat list of `(column, operator, value)` means "and"; a list of such lists means "or" of "and"s. Tuples follow
    SQL: a null matches nothing but `is null`. ISO strings compare with dates, times and timestamps. A pyarrow
    expression is taken as it is.

    Raises:
        ColumnNotFoundError: a column that `schema` has not.
        OptionError: no filter at all, or a value that cannot be compared with its column.
    """
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        return _fitting(filters, schema, f"filters={filters}")
    if not isinstance(filters, (list, tuple)):
        raise OptionError(
            f"filters={filters!r}: expected {_EXAMPLE}, or a pyarrow expression. "
            "Strings and pyiceberg expressions need the iceberg extra."
        )
    groups = _groups(filters)
    return reduce(operator.or_, (reduce(operator.and_, (_predicate(p, schema) for p in g)) for g in groups))


def _is_predicate(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) in (2, 3) and isinstance(item[0], str)


def _groups(filters: Sequence[Any]) -> list[list[Any]]:
    """The "and" groups, to be joined by "or", of a flat or nested list."""
    groups = [filters] if all(_is_predicate(item) for item in filters) else list(filters)
    for group in groups:
        if not isinstance(group, (list, tuple)) or not group or not all(_is_predicate(item) for item in group):
            raise OptionError(
                f"filters={filters!r}: expected {_EXAMPLE}, or a list of such lists to be joined by 'or'."
            )
    return [list(group) for group in groups]


def _predicate(item: Sequence[Any], schema: pa.Schema) -> pc.Expression:
    """The expression of one (column, operator, value)."""
    name, word, value = (*item, None)[:3]
    given = f"filters: {tuple(item)!r}"
    path = column_path(schema, name)
    kind = _type_at(schema, path)
    field = pc.field(*path)
    if word in ("is null", "is not null"):
        return field.is_null() if word == "is null" else field.is_valid()
    if word in ("in", "not in"):
        return _fitting(_membership(field, plain_type(kind), word, value, given), schema, given)
    if word not in _COMPARISONS:
        raise OptionError(f"{given}: expected one of the operators {', '.join(_OPERATORS)}.")
    if value is None:
        raise OptionError(f"{given}: nothing compares with null; use 'is null' or 'is not null'.")
    return _fitting(_COMPARISONS[word](field, _literal(value, plain_type(kind), given)), schema, given)


def _membership(field: pc.Expression, kind: pa.DataType, word: str, values: Any, given: str) -> pc.Expression:
    """`in` and `not in` as SQL has them: nulls are in no list, and a list with a null excludes everything."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise OptionError(f"{given}: expected a list of values after {word!r}.")
    literals = [_literal(value, kind, given) for value in values if value is not None]
    same = [literal.as_py() for literal in literals if literal.type == kind]
    found = field.isin(pa.array(same, kind))
    found = reduce(operator.or_, (field == literal for literal in literals if literal.type != kind), found)
    found = field.is_valid() & found
    if word == "in":
        return found
    return pc.scalar(False) if len(literals) < len(list(values)) else field.is_valid() & ~found


def _literal(value: Any, kind: pa.DataType, given: str) -> pa.Scalar:
    """`value` as a scalar of the column's type where it is the same value there, else as a scalar of its own type."""
    if isinstance(value, (np.number, np.bool_)):
        value = value.item()
    try:
        if isinstance(value, str) and pt.is_temporal(kind):
            return pa.scalar(value).cast(kind)
        exact = _exact_scalar(value, kind)
        return pa.scalar(value) if exact is None else exact
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise OptionError(f"{given}: {value!r} cannot be compared with a column of type {kind}: {error}") from error


def _exact_scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """`value` as a scalar of this type, or None if it would change: `pa.scalar(2.5, pa.int64())` is 2."""
    try:
        typed = pa.scalar(value, kind)
        same = not isinstance(value, (int, float, Decimal, date)) or typed.as_py() == value
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return typed if same else None


def _fitting(expression: pc.Expression, schema: pa.Schema, given: str) -> pc.Expression:
    """`expression`, once it is known to be a filter over `schema`."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError(f"{given} cannot be compared with the columns it names: {error}") from error
    except pa.ArrowInvalid as error:  # what binding raises for a field that is not there
        raise ColumnNotFoundError(f"{given}: {error}. {_columns_there(schema, '')}") from error
    return expression


def filter_columns(expression: pc.Expression, schema: pa.Schema) -> tuple[str, ...]:
    """The top-level columns that `expression` needs, in the order of `schema`.

    There is no interface that tells: a column is needed if the filter fails on a table without it.
    """
    return tuple(name for i, name in enumerate(schema.names) if not _works(expression, schema.remove(i)))


def _works(expression: pc.Expression, schema: pa.Schema) -> bool:
    try:
        schema.empty_table().filter(expression)
    except pa.ArrowInvalid:
        return False
    return True
