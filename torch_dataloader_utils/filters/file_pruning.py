"""From an Arrow filter to the Iceberg expression that prunes files: it is true wherever a row can match the filter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
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
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import (
    BinaryLiteral,
    BooleanLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from torch_dataloader_utils.filters.arrow import filter_columns
from torch_dataloader_utils.filters.substrait import Call, Column, Node, Value, tree_of

# Comparison -> what it is with its sides swapped, its predicate, and the predicate of its negation.
_COMPARISONS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "equal": ("equal", EqualTo, NotEqualTo),
    "not_equal": ("not_equal", NotEqualTo, EqualTo),
    "lt": ("gt", LessThan, GreaterThanOrEqual),
    "lte": ("gte", LessThanOrEqual, GreaterThan),
    "gt": ("lt", GreaterThan, LessThanOrEqual),
    "gte": ("lte", GreaterThanOrEqual, LessThan),
}
# Type -> the kind of value it compares with, and the literal of one. Not uuid: engines disagree about its order.
_LITERALS: dict[type[IcebergType], tuple[str, Callable[..., Literal]]] = {
    BooleanType: ("bool", BooleanLiteral),
    IntegerType: ("int", LongLiteral),
    LongType: ("int", LongLiteral),
    FloatType: ("float", DoubleLiteral),
    DoubleType: ("float", DoubleLiteral),
    DecimalType: ("decimal", DecimalLiteral),
    StringType: ("string", StringLiteral),
    BinaryType: ("binary", BinaryLiteral),
    FixedType: ("binary", FixedLiteral),
    DateType: ("date", DateLiteral),
    TimeType: ("time", TimeLiteral),
    TimestampType: ("timestamp", TimestampLiteral),
    TimestamptzType: ("timestamptz", TimestampLiteral),
}
# pyiceberg looks at bounds only for lists of at most so many values.
_SHORT_LIST = 200


def inclusive(expression: pc.Expression, arrow: pa.Schema, schema: Schema) -> BooleanExpression:
    """The Iceberg expression that is true, or cannot tell, wherever a row can match `expression`.

    Args:
        expression: a filter that fits `arrow`.
        arrow: the columns.
        schema: the same columns as Iceberg has them; other columns of `arrow` prune nothing.
    """
    # Only the columns that it needs: there are types that Substrait has no word for.
    names = filter_columns(expression, arrow)
    known = {item.name: item for item in schema.fields}
    columns = [known.get(name) for name in names]
    tree = tree_of(expression, pa.schema([arrow.field(name) for name in names]))
    return _Translator(columns).where(tree, True)


class _Translator:
    """Writes trees as Iceberg expressions over columns with these fields (None: not of the table)."""

    def __init__(self, columns: Sequence[NestedField | None]) -> None:
        self._columns = columns

    def where(self, node: Node, wanted: bool) -> BooleanExpression:
        """Where `node` can be true, or false if not `wanted`; null is neither.

        "Not" is carried down to the leaves in this way, where what cannot be told stays "perhaps".
        """
        match node:
            case Value("bool", value):
                return AlwaysTrue() if value is wanted else AlwaysFalse()
            case Value("null"):
                return AlwaysFalse()
            case Column():
                return self._compared("equal", node, Value("bool", True), wanted)
            case Call("not", (inner,)):
                return self.where(inner, not wanted)
            case Call("and" | "or" as name, (_, *_) as sides):
                joined = And if (name == "and") is wanted else Or
                return reduce(lambda left, right: joined(left, right), (self.where(side, wanted) for side in sides))
            case Call(name, (Column() as column, Value() as value)) if name in _COMPARISONS:
                return self._compared(name, column, value, wanted)
            case Call(name, (Value() as value, Column() as column)) if name in _COMPARISONS:
                return self._compared(_COMPARISONS[name][0], column, value, wanted)
            case Call("in", (Column() as column, *values)):
                return self._listed(column, values, wanted)
            case Call(name, (Column() as column, *values)):
                return self._asked(name, column, values, wanted)
        return AlwaysTrue()

    def _compared(self, name: str, column: Column, value: Value, wanted: bool) -> BooleanExpression:
        found = self._primitive(column)
        if value.kind == "null":
            return AlwaysFalse()  # null, whatever it is compared with
        literal = None if found is None else _literal(value, found[1])
        if found is None or literal is None:
            return AlwaysTrue()
        reference, kind = found
        _, meant, negated = _COMPARISONS[name]
        compared: BooleanExpression = (meant if wanted else negated)(reference, literal)
        if not wanted and isinstance(kind, (FloatType, DoubleType)):
            return Or(compared, IsNaN(reference))  # nan < 5 is false, and bounds leave nan out
        return compared

    def _listed(self, column: Column, values: Sequence[Node], wanted: bool) -> BooleanExpression:
        """In a list; a null is in it if the list has one, else it is not (and not null)."""
        found = self._primitive(column)
        if found is None:
            return AlwaysTrue()
        reference, kind = found
        nulls = _is_null(reference, column) if not wanted or Value("null", None) in values else AlwaysFalse()
        literals = [
            _literal(value, kind) if isinstance(value, Value) else None
            for value in values
            if value != Value("null", None)
        ]
        known = [literal for literal in literals if literal is not None]
        if len(known) < len(literals):
            return AlwaysTrue()
        return Or(_membership(reference, known) if wanted else NotIn(reference, known), nulls)

    def _asked(self, name: str, column: Column, values: Sequence[Node], wanted: bool) -> BooleanExpression:
        """The functions of one column."""
        found = self._primitive(column)
        if found is None:
            return AlwaysTrue()
        reference, kind = found
        match name, values:
            case (("is_null" | "is_not_null"), []):
                return _is_null(reference, column) if (name == "is_null") is wanted else NotNull(reference)
            case "is_nan", [] if isinstance(kind, (FloatType, DoubleType)):
                return IsNaN(reference) if wanted else NotNaN(reference)
            case "starts_with", [Value("string", prefix)] if isinstance(kind, StringType):
                return StartsWith(reference, prefix) if wanted else NotStartsWith(reference, prefix)
        return AlwaysTrue()

    def _primitive(self, column: Column) -> tuple[str, PrimitiveType] | None:
        """The full name and the type of a column, if it is a single value."""
        place, *inner = column.path
        found = self._columns[place]
        names = []
        while found is not None:
            names.append(found.name)
            kind = found.field_type
            if not inner:
                return (".".join(names), kind) if isinstance(kind, PrimitiveType) else None
            place, *inner = inner
            found = kind.fields[place] if isinstance(kind, StructType) else None
        return None


def _is_null(reference: str, column: Column) -> BooleanExpression:
    """Within structs, counts of nulls may leave out those of the structs."""
    return IsNull(reference) if len(column.path) == 1 else AlwaysTrue()


def _membership(reference: str, literals: Sequence[Literal]) -> BooleanExpression:
    """In a list, and between its ends where pyiceberg would not look."""
    listed: BooleanExpression = In(reference, literals)
    if len(literals) <= _SHORT_LIST or isinstance(literals[0], BooleanLiteral):
        return listed
    least, most = (end(literals, key=lambda literal: literal.value) for end in (min, max))
    return And(listed, GreaterThanOrEqual(reference, least), LessThanOrEqual(reference, most))


def _literal(value: Value, kind: PrimitiveType) -> Literal | None:
    """The value as a literal of a column of this type, or None if it has none that compares as the value does."""
    expected, make = _LITERALS.get(type(kind), ("", None))
    if value.kind == "int" and expected == "float" and abs(value.value) <= 1 << 24:
        value = Value("float", float(value.value))
    if make is None or value.kind != expected:
        return None
    if isinstance(value.value, float) and math.isnan(value.value):
        return None
    if isinstance(kind, FloatType) and abs(value.value) > FloatType.max:
        return None  # pyiceberg takes it that nothing is so large, and infinity is
    if isinstance(kind, DecimalType) and -value.value.as_tuple().exponent != kind.scale:
        return None
    if isinstance(kind, FixedType) and len(value.value) != len(kind):
        return None
    return make(value.value)
