"""Filters as Arrow expressions that fit a schema."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.filters.literals import compared, expected
from torch_dataloader_utils.schemas.columns import column_path, columns_there, type_at
from torch_dataloader_utils.schemas.merge import plain_type

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_OPERATORS = (*_COMPARISONS, "in", "not in", "is null", "is not null")
_EXAMPLE = "a list of tuples such as [('age', '>', 30), ('city', 'in', ['Rome', 'Oslo'])]"


def as_expression(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters` as an expression that fits `schema`, or None where there is no filter.

    A flat list of `(column, operator, value)` means "and"; a list of such lists means "or" of "and"s. Tuples follow
    SQL: a null matches nothing but `is null`. Literals are compared as values of the column's type (`compared` in
    `filters.literals`). A pyarrow expression is taken as it is.

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
    groups = predicate_groups(filters)
    return reduce(operator.or_, (reduce(operator.and_, (_predicate(p, schema) for p in g)) for g in groups))


def _is_predicate(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) in (2, 3) and isinstance(item[0], str)


def predicate_groups(filters: Sequence[Any]) -> list[list[Any]]:
    """The "and" groups of tuples, to be joined by "or", of a flat or nested list.

    Raises:
        OptionError: it is no such list.
    """
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
    field = pc.field(*path)
    if word in ("is null", "is not null"):
        return field.is_null() if word == "is null" else field.is_valid()
    column = _Column(field, type_at(schema, path), given)
    if word in ("in", "not in"):
        return _fitting(_membership(column, word, value), schema, given)
    if word not in _COMPARISONS:
        raise OptionError(f"{given}: expected one of the operators {', '.join(_OPERATORS)}.")
    if _is_missing(value):
        raise OptionError(f"{given}: nothing compares with null; use 'is null' or 'is not null'.")
    return _fitting(column.where(word, value), schema, given)


@dataclass(frozen=True)
class _Column:
    """A column that literals are compared with.

    Attributes:
        field: the column.
        declared: its type.
        given: the filter, for errors.
    """

    field: pc.Expression
    declared: pa.DataType
    given: str

    @cached_property
    def kind(self) -> pa.DataType:
        """The type of its values: without a dictionary, of an extension type its storage."""
        kind = plain_type(self.declared)
        return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind

    @cached_property
    def kernels(self) -> pa.DataType:
        """A type that holds the same values, in the same order, and that Arrow has kernels for."""
        if pt.is_float16(self.kind):
            return pa.float32()
        if pt.is_decimal(self.kind) and self.kind.bit_width < 128:
            return pa.decimal128(self.kind.precision, self.kind.scale)
        return self.kind

    @property
    def operand(self) -> pc.Expression:
        """The column as a value of the type `kernels`."""
        return self.field if self.kernels == plain_type(self.declared) else self.field.cast(self.kernels)

    def compared(self, word: str, value: Any) -> tuple[str, pa.Scalar] | bool:
        """What a comparison with `value` comes to, in the type `kernels`.

        Raises:
            OptionError: `value` cannot be compared with this column.
        """
        try:
            found = compared(word, value, self.kind)
        except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise OptionError(
                f"{self.given}: {value!r} cannot be compared with a column of type {self.declared}: "
                f"expected {expected(self.kind)}."
            ) from error
        if isinstance(found, bool) or found[1].type == self.kernels:
            return found
        return found[0], found[1].cast(self.kernels)

    def where(self, word: str, value: Any) -> pc.Expression:
        """The rows that match; nulls never do."""
        found = self.compared(word, value)
        if isinstance(found, bool):
            return self.field.is_valid() if found else pc.scalar(False)
        return _COMPARISONS[found[0]](self.operand, found[1])


def _membership(column: _Column, word: str, values: Any) -> pc.Expression:
    """`in` and `not in` as SQL has them: nulls are in no list, and a list with a null excludes everything."""
    once = isinstance(values, Iterator)  # the values are needed again, such as for the next snapshot of a table
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or once:
        raise OptionError(f"{column.given}: expected a list of values after {word!r}.")
    items = list(in_order(values))
    comparisons = [column.compared("=", item) for item in items if not _is_missing(item)]
    if word == "not in" and len(comparisons) < len(items):
        return pc.scalar(False)
    literals = [found[1] for found in comparisons if not isinstance(found, bool)]
    if pt.is_floating(column.kernels) and any(literal.as_py() == 0 for literal in literals):
        literals += [pa.scalar(zero, column.kernels) for zero in (0.0, -0.0)]  # equal, but not to `is_in`
    found = column.operand.isin(pa.array(literals, column.kernels))
    return column.field.is_valid() & (found if word == "in" else ~found)


def in_order(values: Iterable[Any]) -> Iterable[Any]:
    """The values, those of a set in an order of their own: a set's is another one in each process."""
    return sorted(values, key=repr) if isinstance(values, Set) else values


def _is_missing(value: Any) -> bool:
    """Whether a literal is null: None, an Arrow null or "not a time"."""
    if isinstance(value, pa.Scalar):
        return not value.is_valid
    return value is None or (isinstance(value, (datetime, np.datetime64, np.timedelta64)) and value != value)


def _fitting(expression: pc.Expression, schema: pa.Schema, given: str) -> pc.Expression:
    """`expression`, once it is known to be a filter over `schema`."""
    try:
        kind = evaluate(_no_rows(schema), expression).type
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
        return _no_rows(schema)


def _no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows, of columns of any type: `schema.empty_table` makes none of extension types in structs."""
    return pa.Table.from_batches([], schema)


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
        evaluate(_no_rows(schema), expression)
    except pa.ArrowInvalid:
        return False
    return True
