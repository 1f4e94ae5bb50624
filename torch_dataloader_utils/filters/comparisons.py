"""A tuple `(column, operator, value)` as a comparison of a column with values of its own type."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.filters.literals import compared, expected
from torch_dataloader_utils.schemas.columns import column_path, type_at
from torch_dataloader_utils.schemas.merge import plain_type

_ORDERS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
OPERATORS = (*_ORDERS, "in", "not in", "is null", "is not null")
"""Those of tuples."""
_CONSTANTS = {"always": True, "never": False}
_FUNCTIONS: dict[str, Callable[..., pc.Expression]] = {
    "is null": lambda column: column.is_null(),
    "is not null": lambda column: column.is_valid(),
    "is nan": pc.is_nan,
    "is not nan": lambda column: ~pc.is_nan(column),
    "starts with": pc.starts_with,
    "not starts with": lambda column, prefix: ~pc.starts_with(column, prefix),
}


@dataclass(frozen=True)
class Comparison:
    """A column compared with values of its type; a null matches nothing but "is null".

    Attributes:
        path: the column, by the names that lead to it.
        kind: its type in the schema.
        word: an operator of tuples, one of `_FUNCTIONS`, "always" or "never".
        values: of the type `_kernel_type(kind)`, or the prefix.
        item: the filter, for errors.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    word: str
    values: tuple[Any, ...]
    item: Any

    @property
    def rows(self) -> pc.Expression:
        """Where it is true."""
        if self.word in _CONSTANTS:
            return pc.scalar(_CONSTANTS[self.word])
        field = pc.field(*self.path)
        if self.word in _FUNCTIONS:
            return _FUNCTIONS[self.word](field, *self.values)
        kind = _kernel_type(self.kind)
        column = field if kind == plain_type(self.kind) else field.cast(kind)
        if self.word in _ORDERS:
            return _ORDERS[self.word](column, *self.values)
        listed = column.isin(pa.array(self.values, kind))
        return field.is_valid() & (listed if self.word == "in" else ~listed)


def comparison(item: Sequence[Any], schema: pa.Schema) -> Comparison:
    """One `(column, operator, value)` over `schema`, as a comparison with values of the column's type.

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
    """The operator and the value of the column's type that mean the same, or an operator that needs none."""
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
    """`in` and `not in` as SQL has them: nulls are in no list, and a list with a null excludes everything."""
    once = isinstance(values, Iterator)  # the values are needed again, such as for the next snapshot of a table
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or once:
        raise OptionError(f"filters: {tuple(item)}: expected a list of values after {word!r}.")
    listed = list(_in_order(values))
    present = [value for value in listed if not _is_missing(value)]
    literals = [scalar for value in present for scalar in _simplified("=", value, kind, item)[1]]
    if word == "not in" and len(present) < len(listed):
        return "never", ()
    if pt.is_floating(_kernel_type(kind)) and any(literal.as_py() == 0 for literal in literals):
        literals += [pa.scalar(zero, _kernel_type(kind)) for zero in (0.0, -0.0)]  # equal, but not to `is_in`
    return word, tuple(literals)


def _in_order(values: Iterable[Any]) -> Iterable[Any]:
    """The values, those of a set sorted: a set's order differs between processes."""
    return sorted(values, key=repr) if isinstance(values, Set) else values


def _is_missing(value: Any) -> bool:
    """Whether a literal is null: None, an Arrow null or "not a time"."""
    if isinstance(value, pa.Scalar):
        return not value.is_valid
    return value is None or (isinstance(value, (datetime, np.datetime64, np.timedelta64)) and value != value)


def _value_type(declared: pa.DataType) -> pa.DataType:
    """The type of a column's values: without a dictionary, of an extension type its storage."""
    kind = plain_type(declared)
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _kernel_type(declared: pa.DataType) -> pa.DataType:
    """A type that holds the same values, in the same order, and that Arrow has kernels for."""
    kind = _value_type(declared)
    if pt.is_float16(kind):
        return pa.float32()
    if pt.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return kind
