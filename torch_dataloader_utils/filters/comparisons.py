"""Tuples `(column, operator, value)` as comparisons of a column with values of its own type."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.filters.literals import compared, expected
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.columns import column_path, type_at
from torch_dataloader_utils.schemas.merge import plain_type

_ORDERS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
OPERATORS = (*_ORDERS, "in", "not in", "is null", "is not null")
"""The operators that tuples may use."""
_CONSTANTS = {"always": True, "never": False}
_NULL_TESTS: dict[str, Callable[[pc.Expression], pc.Expression]] = {
    "is null": lambda column: column.is_null(),
    "is not null": lambda column: column.is_valid(),
}
_FUNCTIONS: dict[str, Callable[..., pc.Expression]] = {
    "is nan": lambda column: pc.is_nan(column),
    "is not nan": lambda column: ~pc.is_nan(column),
    "starts with": lambda column, prefix: pc.starts_with(column, prefix),
    "not starts with": lambda column, prefix: ~pc.starts_with(column, prefix),
}


@dataclass(frozen=True)
class Comparison:
    """A column compared with values of its type; a null matches nothing but "is null".

    Attributes:
        path: the column's name, after those of the structs that contain it.
        kind: its type in the schema.
        word: one of `OPERATORS`, `_NULL_TESTS` or `_FUNCTIONS`, "always" or "never".
        values: the values, of the type `_kernel_type(kind)`, or the prefix.
        item: the original filter, for errors.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    word: str
    values: tuple[Any, ...]
    item: Any

    @property
    def rows(self) -> pc.Expression:
        """The rows for which the comparison is true."""
        if self.word in _CONSTANTS:
            return pc.scalar(_CONSTANTS[self.word])
        field, kind = pc.field(*self.path), _kernel_type(self.kind)
        if self.word in _NULL_TESTS:
            return _NULL_TESTS[self.word](field)
        if self.word in _FUNCTIONS:
            return _FUNCTIONS[self.word](field if kind == self.kind else field.cast(kind), *self.values)
        column = field if kind == plain_type(self.kind) else field.cast(kind)
        if self.word in _ORDERS:
            return _ORDERS[self.word](column, *self.values)
        listed = column.isin(pa.array(self.values, kind))
        return field.is_valid() & (listed if self.word == "in" else ~listed)


def comparison(item: Sequence[Any], schema: pa.Schema) -> Comparison:
    """A `(column, operator, value)` over `schema` as a comparison with values of the column's type.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: an unknown operator, or a value that cannot be compared with the column.
    """
    name, word, value = (*item, None)[:3]
    path = column_path(schema, name)
    kind = type_at(schema, path)
    values: tuple[Any, ...] = ()
    if word in ("in", "not in"):
        word, values = _membership(word, value, kind, item)
    elif word in _ORDERS:
        if _is_missing(value):
            raise OptionError(f"filters: {tuple(item)}: null cannot be compared; use 'is null' or 'is not null'.")
        word, values = _simplified(word, value, kind, item)
    elif word not in OPERATORS:
        raise OptionError(f"filters: {tuple(item)}: expected one of the operators {', '.join(OPERATORS)}.")
    return Comparison(path, kind, word, values, tuple(item))


def _simplified(word: str, value: Any, declared: pa.DataType, item: Any) -> tuple[str, tuple[pa.Scalar, ...]]:
    """An equivalent operator and value of the column's type, or an operator that needs no value."""
    kind = _value_type(declared)
    try:
        result = compared(word, value, kind)
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise OptionError(
            f"filters: {tuple(item)}: {value!r} cannot be compared with a column of type {declared}: "
            f"expected {expected(kind)}."
        ) from error
    if isinstance(result, bool):
        return "is not null" if result else "never", ()
    word, scalar = result
    kernel = _kernel_type(declared)
    return word, (scalar if scalar.type == kernel else scalar.cast(kernel),)


def _membership(word: str, values: Any, kind: pa.DataType, item: Any) -> tuple[str, tuple[pa.Scalar, ...]]:
    """`in` and `not in` with SQL's semantics: a null is in no list, and `not in` a list with a null matches nothing."""
    once = isinstance(values, Iterator)  # rejected: the values are needed again, such as for a table's next snapshot
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or once:
        raise OptionError(f"filters: {tuple(item)}: expected a list of values after {word!r}.")
    listed = list(_in_order(values))
    present = [value for value in listed if not _is_missing(value)]
    literals = [scalar for value in present for scalar in _simplified("=", value, kind, item)[1]]
    if word == "not in" and len(present) < len(listed):
        return "never", ()
    if pt.is_floating(_kernel_type(kind)) and any(literal.as_py() == 0 for literal in literals):
        literals += [pa.scalar(zero, _kernel_type(kind)) for zero in (0.0, -0.0)]  # equal, but not for `is_in`
    return word, tuple(literals)


def _in_order(values: Iterable[Any]) -> Iterable[Any]:
    """The values, sorted if they are a set: a set's order differs between processes."""
    return sorted(values, key=repr) if isinstance(values, Set) else values


def _is_missing(value: Any) -> bool:
    """Whether a literal is null: None, an Arrow null or NaT."""
    if isinstance(value, pa.Scalar):
        return not value.is_valid
    return value is None or (isinstance(value, (datetime, np.datetime64, np.timedelta64)) and value != value)


def _value_type(declared: pa.DataType) -> pa.DataType:
    """The type of a column's values: a dictionary's value type, an extension type's storage type, bool for bool8."""
    kind = plain_type(declared)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if kind.extension_name == "arrow.bool8" else kind.storage_type
    return kind


def _kernel_type(declared: pa.DataType) -> pa.DataType:
    """A type with the same values in the same order for which Arrow has kernels."""
    kind = _value_type(declared)
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return kind
