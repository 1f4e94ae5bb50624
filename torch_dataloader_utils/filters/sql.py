"""Filters in all their forms: tuples, pyarrow expressions, SQL strings, pyiceberg expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.printing import shown

try:
    import pyiceberg  # noqa: F401
except ImportError as error:
    raise MissingExtraError("filters as text need pyiceberg: pip install 'torch-dataloader-utils[iceberg]'") from error

from pyiceberg import expressions as ice
from pyiceberg.expressions.literals import DateLiteral, Literal, TimeLiteral, TimestampLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema
from pyparsing import ParseException

from torch_dataloader_utils.filters.arrow import as_expression, joined, matching
from torch_dataloader_utils.filters.bounds import CanHold, file_test
from torch_dataloader_utils.filters.comparisons import OPERATORS, Comparison, comparison
from torch_dataloader_utils.filters.file_pruning import PREDICATES, file_predicate
from torch_dataloader_utils.schemas.columns import column_path, type_at

T = TypeVar("T")

_WORDS: dict[Any, str] = {predicate: word for word, predicate in PREDICATES.items()}
_ORDERS = (ice.LessThan, ice.LessThanOrEqual, ice.GreaterThan, ice.GreaterThanOrEqual)
_EPOCH = datetime(1970, 1, 1)
_EXAMPLE = "age > 30 and city in ('Rome', 'Oslo')"


@dataclass(frozen=True)
class TableFilter:
    """A filter over a table's rows.

    Attributes:
        rows: selects exactly the rows that match.
        files: for pruning: true or undecided wherever a row can match.
        can_hold: reports whether a data file can hold a matching row, if `files` cannot decide it; None if it can.
    """

    rows: pc.Expression
    files: ice.BooleanExpression
    can_hold: CanHold | None = None

    def __and__(self, other: TableFilter) -> TableFilter:
        return TableFilter(self.rows & other.rows, ice.And(self.files, other.files))

    def __or__(self, other: TableFilter) -> TableFilter:
        return TableFilter(self.rows | other.rows, ice.Or(self.files, other.files))


def table_filter(filters: Any, arrow: pa.Schema, schema: Schema) -> TableFilter | None:
    """The filter over a table's columns, or None where there is no filter.

    Strings and pyiceberg expressions follow SQL, as tuples do: a null matches nothing but "is null". A pyarrow
    expression follows pyarrow's semantics; it prunes by column bounds only, because its parts cannot be inspected.

    Args:
        filters: any form that `as_expression` accepts, an SQL string or a pyiceberg expression.
        arrow: the columns that can be filtered on.
        schema: the table's Iceberg schema.

    Raises:
        ColumnNotFoundError: a column that is not in `arrow`.
        OptionError: `filters` is not a filter, or a value cannot be compared with its column.
    """

    def make(leaf: Comparison) -> TableFilter:
        return TableFilter(matching(leaf, arrow), file_predicate(leaf, schema))

    if isinstance(filters, (str, ice.BooleanExpression)):
        return _joined(filters, arrow, make)
    if filters is None or isinstance(filters, pc.Expression):
        rows = as_expression(filters, arrow)
        return None if rows is None else TableFilter(rows, ice.AlwaysTrue(), file_test(rows, arrow, schema))
    return joined(filters, arrow, make)


def rows_expression(filters: str | ice.BooleanExpression, schema: pa.Schema) -> pc.Expression:
    """An SQL string or pyiceberg expression as the Arrow expression that `as_expression` accepts, over any columns.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: the text is not a filter, or a value cannot be compared with its column.
    """
    return _joined(filters, schema, lambda leaf: matching(leaf, schema))


# ------------------------------------------------------------------------------------- SQL and pyiceberg's expressions


def _joined(filters: str | ice.BooleanExpression, schema: pa.Schema, make: Callable[[Comparison], T]) -> T:
    """The results of `make` for each comparison, joined by `&` and `|`."""
    expression = _parsed(filters) if isinstance(filters, str) else filters
    return _made(expression, False, schema, make)


def _parsed(text: str) -> ice.BooleanExpression:
    try:
        return parse(text)
    except ParseException as error:  # its text is the grammar, so it is not shown as the cause either
        rest = text[error.loc :]
        at = f"character {error.loc + 1}, {shown(rest)}" if rest.strip() else "its end"
        quotes = " Strings are in single quotes; double quotes are for columns." if '"' in text else ""
        raise OptionError(
            f"filters={shown(text)}: expected a condition as in SQL, such as {_EXAMPLE!r}: it cannot be read from "
            f"{at}.{quotes}"
        ) from None
    except ValueError as error:
        raise OptionError(
            f"filters={shown(text)}: expected a condition as in SQL, such as {_EXAMPLE!r}: {error}"
        ) from error


def _made(expression: ice.BooleanExpression, negated: bool, schema: pa.Schema, make: Callable[[Comparison], T]) -> T:
    """The result of `make` for the expression; "not" is pushed down to the comparisons, where it excludes nulls."""
    match expression:
        case ice.Not():
            return _made(expression.child, not negated, schema, make)
        case ice.And() | ice.Or():
            join = operator.and_ if isinstance(expression, ice.And) != negated else operator.or_
            sides = (_made(side, negated, schema, make) for side in (expression.left, expression.right))
            return join(*sides)  # type: ignore[no-any-return]
        case ice.AlwaysTrue() | ice.AlwaysFalse():
            word = "always" if isinstance(expression, ice.AlwaysTrue) != negated else "never"
            return make(Comparison((), pa.null(), word, (), expression))
        case ice.UnboundPredicate() if negated and type(expression) in _ORDERS and _is_floating(expression, schema):
            # NaN is neither less than a number nor greater than or equal to it.
            return _made(ice.Or(~expression, ice.IsNaN(expression.term)), False, schema, make)
        case ice.UnboundPredicate():
            return make(_comparison(~expression if negated else expression, schema))
    raise OptionError(f"filters={expression}: expected an unbound pyiceberg expression.")


def _is_floating(predicate: ice.UnboundPredicate, schema: pa.Schema) -> bool:
    return bool(pt.is_floating(type_at(schema, column_path(schema, predicate.term.name))))


def _comparison(predicate: ice.UnboundPredicate, schema: pa.Schema) -> Comparison:
    name, word = predicate.term.name, _WORDS[type(predicate)]
    path = column_path(schema, name)
    kind = type_at(schema, path)
    values: list[Any] = []
    if isinstance(predicate, ice.SetPredicate):
        values = [{_python(literal, kind) for literal in predicate.literals}]
    elif isinstance(predicate, ice.LiteralPredicate):
        values = [_python(predicate.literal, kind)]
    if word in OPERATORS:
        return comparison((name, word, *values), schema)
    return Comparison(path, kind, word, tuple(values), predicate)


def _python(literal: Literal[Any], kind: pa.DataType) -> Any:
    """The value of a literal as a Python object, suited to a column of this type."""
    value = literal.value
    if isinstance(literal, DateLiteral):
        return date(1970, 1, 1) + timedelta(days=value)
    if isinstance(literal, TimeLiteral):
        return (_EPOCH + timedelta(microseconds=value)).time()
    if isinstance(literal, TimestampLiteral):
        moment = _EPOCH + timedelta(microseconds=value)
        return moment.replace(tzinfo=UTC) if pt.is_timestamp(kind) and kind.tz is not None else moment
    return value
