"""Filters as Arrow expressions that fit a schema."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.arrow_ops.columns import column_path, columns_there, type_at
from torch_dataloader_utils.arrow_ops.schemas import plain_type
from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError

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
    kind = type_at(schema, path)
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
    literals = [_literal(value, kind, given) for value in in_order(values) if value is not None]
    same = [literal.as_py() for literal in literals if literal.type == kind]
    found = field.isin(pa.array(same, kind))
    found = reduce(operator.or_, (field == literal for literal in literals if literal.type != kind), found)
    found = field.is_valid() & found
    if word == "in":
        return found
    return pc.scalar(False) if len(literals) < len(list(values)) else field.is_valid() & ~found


def in_order(values: Iterable[Any]) -> Iterable[Any]:
    """The values, those of a set in an order of their own: a set's is another one in each process."""
    return sorted(values, key=repr) if isinstance(values, Set) else values


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
        kind = evaluate(schema.empty_table(), expression).type
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise OptionError(f"{given} cannot be compared with the columns it names: {error}") from error
    except pa.ArrowInvalid as error:  # what binding raises for a field that is not there
        said = str(error).partition(" in ")[0]  # behind it stands the whole schema
        raise ColumnNotFoundError(f"{given}: {said}. {columns_there(schema, '')}") from error
    if not pt.is_boolean(kind):
        raise OptionError(f"{given} is of type {kind}: expected what is true or false for each row.")
    try:
        evaluate(_row_of_nulls(schema), expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # what is not found without a row
        raise OptionError(f"{given} cannot be compared with the columns it names: {error}") from error
    return expression


def evaluate(table: pa.Table, expression: pc.Expression) -> pa.Array:
    """The expression's value for each row, in order, on this thread; other columns may be of any type."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    return project.to_table(use_threads=False)["value"].combine_chunks()


def _row_of_nulls(schema: pa.Schema) -> pa.Table:
    """A row of nulls; no row where there is a type that pyarrow makes no nulls of."""
    try:
        return pa.table([pa.nulls(1, item.type) for item in schema], names=schema.names)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return schema.empty_table()


def filter_columns(expression: pc.Expression, schema: pa.Schema) -> tuple[str, ...]:
    """The top-level columns that `expression` needs, in the order of `schema`.

    There is no interface that tells: columns are needed if the filter cannot be evaluated without them.
    """

    def needed(first: int, last: int) -> list[str]:
        """Those of the columns `[first, last)`: halves that it can do without are not looked into."""
        kept = [item for place, item in enumerate(schema) if not first <= place < last]
        if _works(expression, pa.schema(kept)):
            return []
        if last - first == 1:
            return [schema.names[first]]
        middle = (first + last) // 2
        return needed(first, middle) + needed(middle, last)

    return tuple(needed(0, len(schema))) if len(schema) else ()


def _works(expression: pc.Expression, schema: pa.Schema) -> bool:
    try:
        evaluate(schema.empty_table(), expression)
    except pa.ArrowInvalid:
        return False
    return True
