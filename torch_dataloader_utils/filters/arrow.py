"""Filters as Arrow expressions that fit a schema."""

from __future__ import annotations

import hashlib
import operator
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.filters.comparisons import Comparison, comparison
from torch_dataloader_utils.late_imports import acero, pc
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.schemas.columns import available_columns
from torch_dataloader_utils.schemas.depth import has_values

T = TypeVar("T")

_NAN = re.compile(r"\bnan\b")
# Calls that do not depend on a zero's sign; comparisons are written as operators.
_FUNCTION = re.compile(r"\b(?!(?:invert|is_null|is_valid|is_nan)\()\w+\(")
_ELISION = "..."  # pyarrow writes it for values of long lists, and for the end of long values in lists
_TYPED = (
    ". An expression is used as it is: compare with a typed pyarrow.scalar, or give a tuple (column, operator, value), "
    "whose value is cast to the column's type."
)
_EXAMPLE = "a list of tuples such as [('age', '>', 30), ('city', 'in', ['Rome', 'Oslo'])]"


def as_expression(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters` as an expression that fits `schema`, or None where there is no filter.

    A flat list of `(column, operator, value)` means "and"; a list of such lists means "or" of "and"s. Tuples follow
    SQL: a null matches nothing but `is null`. Literals are compared as values of the column's type (`compared` in
    `filters.literals`). A pyarrow expression is used unchanged.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: `filters` is not a filter, or a value cannot be compared with its column.
    """
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        return _fitting(filters, schema, filters)
    return joined(filters, schema, lambda leaf: matching(leaf, schema))


def joined(filters: Any, schema: pa.Schema, make: Callable[[Comparison], T]) -> T:
    """The results of `make` for each tuple of a flat or nested list, joined by `&` and `|`.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: `filters` is not such a list, or a value cannot be compared with its column.
    """
    if not isinstance(filters, (list, tuple)):
        raise OptionError(
            f"filters={shown(filters)}: expected {_EXAMPLE}, or a pyarrow expression. "
            "Strings and pyiceberg expressions need the iceberg extra."
        )
    alternatives = [
        reduce(operator.and_, (make(comparison(item, schema)) for item in group)) for group in groups_of(filters)
    ]
    return reduce(operator.or_, alternatives)


def groups_of(filters: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """The lists of tuples: the tuples of a list are joined by "and", the lists by "or"."""
    groups = [filters] if all(_is_predicate(item) for item in filters) else filters
    for group in groups:
        if not isinstance(group, (list, tuple)) or not group or not all(_is_predicate(item) for item in group):
            raise OptionError(
                f"filters={shown(filters)}: expected {_EXAMPLE}, or a list of such lists, which are combined with OR."
            )
    return groups


def _is_predicate(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) in (2, 3) and isinstance(item[0], str)


def matching(leaf: Comparison, schema: pa.Schema) -> pc.Expression:
    """The rows for which a comparison is true.

    Raises:
        OptionError: Arrow cannot compare the column with these values.
    """
    return _fitting(leaf.rows, schema, leaf.item)


def _fitting(expression: pc.Expression, schema: pa.Schema, item: Any) -> pc.Expression:
    """`expression`, after checking that it is a filter over `schema`."""
    try:
        kind = evaluate(_no_rows(schema), expression).type
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        hint = _TYPED if isinstance(item, pc.Expression) else ""
        raise OptionError(
            f"filters: {_named(item)} cannot be compared with the columns it names: {error}{hint}"
        ) from error
    except pa.ArrowInvalid as error:  # binding raises this for an unknown field
        message = str(error).partition(" in ")[0]  # the rest is the whole schema
        raise ColumnNotFoundError(f"filters: {_named(item)}: {message}. {available_columns(schema, '')}") from error
    if not pt.is_boolean(kind):
        raise OptionError(
            f"filters: {_named(item)} is of type {kind}: expected a condition that is true or false for each row."
        )
    try:
        evaluate(_row_of_nulls(schema), expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # some errors need a row
        raise OptionError(f"filters: {_named(item)} cannot be compared with the columns it names: {error}") from error
    return expression


def evaluate(table: pa.Table, expression: pc.Expression) -> pa.Array:
    """The expression's value for each row, in order, on this thread; other columns may be of any type."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    return project.to_table(use_threads=False)["value"].combine_chunks()


def _row_of_nulls(schema: pa.Schema) -> pa.Table:
    """A table with one row of nulls, or with no row if pyarrow cannot create nulls of a type."""
    if not all(has_values(item.type) for item in schema):
        return _no_rows(schema)
    try:
        return pa.table([pa.nulls(1, item.type) for item in schema], names=schema.names)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _no_rows(schema)


def _no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows, for columns of any type: `schema.empty_table` fails for extension types in structs."""
    return pa.Table.from_batches([], schema)


def may_name_nan(expression: pc.Expression) -> bool:
    """Whether `expression` may contain a NaN literal (a column of that name, or text, counts as one).

    Arrow assumes that bounds decide comparisons with NaN, so it finds no row for `~(x < nan)`, which every row matches.
    """
    return _NAN.search(text_of(expression) or "nan") is not None


def may_see_signs(expression: pc.Expression) -> bool:
    """Whether `expression` may be true for only one of 0.0 and -0.0, as with a function or `isin`."""
    return _FUNCTION.search(text_of(expression) or "is_in(") is not None


def _named(item: Any) -> str:
    return text_of(item) or "the expression"


def text_of(expression: Any) -> str:
    """The expression as pyarrow writes it; "" where pyarrow shortens a value in the middle of a character, and fails.

    Lists of values are shortened; all else is complete.
    """
    try:
        return str(expression)
    except UnicodeDecodeError:
        return ""


def identity_of(filters: Any) -> str:
    """A text that is another one for another filter: with digests of the filters if pyarrow shortens their text.

    Args:
        filters: an expression, None, or a tuple of these, one for each dataset.
    """
    text = text_of(filters)
    if text and _ELISION not in text:
        return text
    return " ".join([text, *(hashlib.sha256(pickle.dumps(each, protocol=4)).hexdigest() for each in _each(filters))])


def _each(filters: Any) -> Iterator[Any]:
    """The expressions in nested tuples."""
    if not isinstance(filters, tuple):
        yield filters
        return
    for part in filters:
        yield from _each(part)


def filter_columns(expression: pc.Expression, schema: pa.Schema) -> tuple[str, ...]:
    """The top-level columns that `expression` needs, in the order of `schema`.

    pyarrow has no interface for this, so a column counts as needed if the filter cannot be evaluated without it.
    """

    def needed(first: int, last: int) -> list[str]:
        """The needed columns among `[first, last)`; skips halves without which the filter still works."""
        kept = [item for number, item in enumerate(schema) if not first <= number < last]
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
