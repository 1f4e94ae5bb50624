"""Filters in all their forms: tuples, pyarrow expressions, SQL strings, pyiceberg expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.errors import MissingExtraError, OptionError

try:
    import pyiceberg  # noqa: F401
except ImportError as error:
    raise MissingExtraError("filters as text need pyiceberg: pip install 'torch-dataloader-utils[iceberg]'") from error

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import DateLiteral, Literal, TimeLiteral, TimestampLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit
from pyiceberg.schema import Schema
from pyparsing import ParseException

from torch_dataloader_utils.filters.arrow import as_expression, predicate_groups
from torch_dataloader_utils.filters.file_pruning import inclusive
from torch_dataloader_utils.schemas.columns import column_path, type_at

T = TypeVar("T")

_WORDS: dict[type[Any], str] = {
    EqualTo: "=", NotEqualTo: "!=", LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">=",
    In: "in", NotIn: "not in", IsNull: "is null", NotNull: "is not null",
}  # fmt: skip
_FUNCTIONS: dict[type[Any], Callable[..., pc.Expression]] = {
    IsNaN: pc.is_nan,
    NotNaN: lambda column: ~pc.is_nan(column),
    StartsWith: pc.starts_with,
    NotStartsWith: lambda column, prefix: ~pc.starts_with(column, prefix),
}
_ORDERS = (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
_EPOCH = datetime(1970, 1, 1)
_EXAMPLE = "age > 30 and city in ('Rome', 'Oslo')"


@dataclass(frozen=True)
class TableFilter:
    """A filter of a table's rows.

    Attributes:
        rows: which rows match, exactly.
        files: true, or cannot tell, wherever a row can match: for pruning.
    """

    rows: pc.Expression
    files: BooleanExpression

    def __and__(self, other: TableFilter) -> TableFilter:
        return TableFilter(self.rows & other.rows, And(self.files, other.files))

    def __or__(self, other: TableFilter) -> TableFilter:
        return TableFilter(self.rows | other.rows, Or(self.files, other.files))


def table_filter(filters: Any, arrow: pa.Schema, schema: Schema) -> TableFilter | None:
    """The filter over a table's columns, or None where there is none.

    Strings and pyiceberg expressions follow SQL, as tuples do: a null matches nothing but "is null". A pyarrow
    expression means what pyarrow evaluates.

    Args:
        filters: as `as_expression` takes them, an SQL string or a pyiceberg expression.
        arrow: the columns that can be filtered on.
        schema: the table's, as Iceberg has it.

    Raises:
        ColumnNotFoundError: a column that `arrow` has not.
        OptionError: no filter at all, or a value that cannot be compared with its column.
    """
    if filters is None:
        return None

    def made(rows: pc.Expression) -> TableFilter:
        return TableFilter(rows, inclusive(rows, arrow, schema))

    # Part by part where there are parts: one that cannot be translated leaves the others their pruning.
    if isinstance(filters, (str, BooleanExpression)):
        return _visited(filters, arrow, made)
    if isinstance(filters, (list, tuple)):
        groups = predicate_groups(filters)
        made_groups = ([made(as_expression([leaf], arrow)) for leaf in group] for group in groups)
        return reduce(_either, (reduce(_both, group) for group in made_groups))
    return made(as_expression(filters, arrow))


def rows_expression(filters: str | BooleanExpression, schema: pa.Schema) -> pc.Expression:
    """An SQL string or pyiceberg expression as the Arrow expression that `as_expression` takes, over any columns.

    Raises:
        ColumnNotFoundError: a column that `schema` has not.
        OptionError: text that is no filter, or a value that cannot be compared with its column.
    """
    return _visited(filters, schema, lambda rows: rows)


def _both(left: TableFilter, right: TableFilter) -> TableFilter:
    return left & right


def _either(left: TableFilter, right: TableFilter) -> TableFilter:
    return left | right


# ------------------------------------------------------------------------------------- SQL and pyiceberg's expressions


def _visited(filters: str | BooleanExpression, schema: pa.Schema, made: Callable[[pc.Expression], T]) -> T:
    """The whole made of its leaves; "not" is gone into them, where it leaves nulls out."""
    expression = _parsed(filters) if isinstance(filters, str) else filters
    found: T = visit(_positive(expression, schema), _Visitor(schema, made))
    return found


def _positive(expression: BooleanExpression, schema: pa.Schema, negated: bool = False) -> BooleanExpression:
    """The expression, or with `negated` its contrary, without a "not"."""
    if isinstance(expression, Not):
        return _positive(expression.child, schema, not negated)
    if isinstance(expression, (And, Or)):
        join = And if isinstance(expression, And) != negated else Or
        sides = (_positive(side, schema, negated) for side in (expression.left, expression.right))
        return join(*sides)
    if not negated:
        return expression
    if type(expression) in _ORDERS and pt.is_floating(_type_of(expression, schema)):
        return Or(~expression, IsNaN(expression.term))  # nan is neither less than a number nor at least it
    return ~expression


def _type_of(predicate: UnboundPredicate, schema: pa.Schema) -> pa.DataType:
    return type_at(schema, column_path(schema, predicate.term.name))


def _parsed(text: str) -> BooleanExpression:
    try:
        return parse(text)
    except (ParseException, ValueError) as error:
        raise OptionError(f"filters={text!r}: expected a condition as in SQL, such as {_EXAMPLE!r}: {error}") from error


class _Visitor(BooleanExpressionVisitor[T]):  # type: ignore[misc]
    def __init__(self, schema: pa.Schema, made: Callable[[pc.Expression], T]) -> None:
        self._schema = schema
        self._made = made

    def visit_true(self) -> T:
        return self._made(pc.scalar(True))

    def visit_false(self) -> T:
        return self._made(pc.scalar(False))

    def visit_not(self, child_result: T) -> T:
        raise AssertionError("_positive leaves none")

    def visit_and(self, left_result: T, right_result: T) -> T:
        return left_result & right_result  # type: ignore[operator, no-any-return]

    def visit_or(self, left_result: T, right_result: T) -> T:
        return left_result | right_result  # type: ignore[operator, no-any-return]

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> T:
        return self._made(_leaf(predicate, self._schema))

    def visit_bound_predicate(self, predicate: Any) -> T:
        raise OptionError(f"filters={predicate}: expected an unbound pyiceberg expression.")


def _leaf(predicate: UnboundPredicate, schema: pa.Schema) -> pc.Expression:
    name: str = predicate.term.name
    path = column_path(schema, name)
    kind = type_at(schema, path)
    values = []
    if isinstance(predicate, SetPredicate):
        values = [{_python(literal, kind) for literal in predicate.literals}]
    elif isinstance(predicate, LiteralPredicate):
        values = [_python(predicate.literal, kind)]
    if type(predicate) in _FUNCTIONS:
        return as_expression(_FUNCTIONS[type(predicate)](pc.field(*path), *values), schema)
    return as_expression([(name, _WORDS[type(predicate)], *values)], schema)


def _python(literal: Literal[Any], kind: pa.DataType) -> Any:
    """The value of a literal as Python has it, fit for a column of this type."""
    value = literal.value
    if isinstance(literal, DateLiteral):
        return date(1970, 1, 1) + timedelta(days=value)
    if isinstance(literal, TimeLiteral):
        return (_EPOCH + timedelta(microseconds=value)).time()
    if isinstance(literal, TimestampLiteral):
        moment = _EPOCH + timedelta(microseconds=value)
        return moment.replace(tzinfo=UTC) if pt.is_timestamp(kind) and kind.tz is not None else moment
    return value
