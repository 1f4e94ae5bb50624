"""Iceberg predicates that prune files for a comparison: true wherever a row can match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyiceberg import expressions as ice
from pyiceberg import types
from pyiceberg.schema import Schema

from torch_dataloader_utils.filters.comparisons import Comparison

PREDICATES: dict[str, Callable[..., ice.BooleanExpression]] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "in": ice.In,
    "not in": ice.NotIn,
    "is null": ice.IsNull,
    "is not null": ice.NotNull,
    "is nan": ice.IsNaN,
    "is not nan": ice.NotNaN,
    "starts with": ice.StartsWith,
    "not starts with": ice.NotStartsWith,
}
"""Operator of a `Comparison` -> pyiceberg's predicate."""

_FLOATS = (types.FloatType, types.DoubleType)
_TIMES = (types.DateType, types.TimeType, types.TimestampType, types.TimestamptzType)
COMPARABLE = (
    *(types.BooleanType, types.IntegerType, types.LongType, *_FLOATS, types.DecimalType),
    *(types.StringType, types.BinaryType, types.FixedType, *_TIMES),
)
"""Types whose bounds mean the same in all engines: uuid is not one of them."""

# pyiceberg checks bounds only for lists of up to this many values.
_SHORT_LIST = 200


def file_predicate(leaf: Comparison, schema: Schema) -> ice.BooleanExpression:
    """An Iceberg expression that is true or undecided wherever a row can match `leaf`.

    Args:
        leaf: a comparison of a column of `schema`; other columns, such as metadata columns, prune nothing.
        schema: the table's schema.
    """
    if leaf.word in ("always", "never"):
        return ice.AlwaysTrue() if leaf.word == "always" else ice.AlwaysFalse()
    name, kind, values = ".".join(leaf.path), _primitive_type(schema, leaf.path), list(map(_plain, leaf.values))
    if kind is None or not _is_decided_by_bounds(leaf, kind, values):
        return ice.AlwaysTrue()
    if leaf.word == "in":
        return _membership(name, values)
    if leaf.word == "not in":
        return ice.And(ice.NotNull(name), ice.NotIn(name, values))
    return PREDICATES["=" if leaf.word == "==" else leaf.word](name, *values)


def _primitive_type(schema: Schema, path: Sequence[str]) -> types.PrimitiveType | None:
    """The type of the column at `path`; None if it is not in the table or is nested."""
    fields = schema.fields
    kind: types.IcebergType | None = None
    for name in path:
        kind = next((field.field_type for field in fields if field.name == name), None)
        fields = kind.fields if isinstance(kind, types.StructType) else ()
    return kind if isinstance(kind, types.PrimitiveType) else None


def _plain(value: Any) -> Any:
    """The value as pyiceberg expects it in a literal: times as numbers, everything else as a Python object."""
    if isinstance(value, pa.Scalar):
        return value.value if pt.is_temporal(value.type) else value.as_py()
    return value


def _is_decided_by_bounds(leaf: Comparison, kind: types.PrimitiveType, values: Sequence[Any]) -> bool:
    """Whether pyiceberg compares this column as the filter does."""
    if leaf.word == "is null":
        return len(leaf.path) == 1  # within structs, null counts may omit nulls of the structs
    if leaf.word in ("is nan", "is not nan"):
        return isinstance(kind, _FLOATS)
    if leaf.word in ("starts with", "not starts with"):
        return isinstance(kind, types.StringType)
    if isinstance(kind, types.FloatType) and any(abs(value) > types.FloatType.max for value in values):
        return False  # pyiceberg assumes that no value is this large, but infinity is
    return not values or isinstance(kind, COMPARABLE)


def _membership(name: str, values: Sequence[Any]) -> ice.BooleanExpression:
    """`in` a list; also between the list's ends if it is too long for pyiceberg to check bounds."""
    listed: ice.BooleanExpression = ice.In(name, values)
    if len(values) <= _SHORT_LIST or isinstance(values[0], bool):
        return listed
    return ice.And(listed, ice.GreaterThanOrEqual(name, min(values)), ice.LessThanOrEqual(name, max(values)))
