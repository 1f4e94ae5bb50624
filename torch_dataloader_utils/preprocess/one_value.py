"""One value of a row, as Python, numpy, pandas and torch have it: missing, a number, or of the kind that was fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.preprocess.kinds import ColumnType
from torch_dataloader_utils.printing import shown

_PLAIN = (str, bytes, int, date, time)


def present(value: Any) -> Any:
    """The value, scalars of numpy and torch as Python's; None if it is missing, in any of the ways to say so."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas need not be imported
        return None
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value
    if isinstance(value, Decimal):
        return None if value.is_nan() else value
    if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    scalar = hasattr(value, "item") and not getattr(value, "ndim", 0)
    return present(value.item()) if scalar else value


def number_of(value: Any, column: str) -> float:
    """A number as float64, NaN if it is missing.

    Raises:
        UnsupportedTypeError: it is none.
    """
    if type(value) is float or type(value) is int:
        try:
            return value + 0.0
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    value = present(value)
    if value is None:
        return math.nan
    if isinstance(value, (bool, Decimal)):
        return float(value) + 0.0
    if isinstance(value, (int, float)):
        return number_of(float(value) if isinstance(value, float) else int(value), column)
    raise UnsupportedTypeError(f"column {column!r} holds {shown(value)}: this Preprocess was fitted on numbers.")


def checked(type_: ColumnType, column: str, *, ids: bool = True) -> Callable[[Any], Any]:
    """What returns a value that is of the kind of a column, or None if it is missing, and raises for others.

    Args:
        type_: of the column.
        column: its name.
        ids: whether ids are made of the values, so that decimals must be whole.
    """
    of_kind = _OF_KIND.get(type_.kind.values, lambda value: value)
    if not ids and type_.kind.values == "number":
        of_kind = _any_number

    def check(value: Any) -> Any:
        value = present(value)
        if value is None:
            return None
        found = of_kind(value)
        if found is None:
            raise UnsupportedTypeError(
                f"column {column!r} holds {shown(value)}: this Preprocess was fitted on {type_.kind.values} "
                f"({type_.text})."
            )
        return found

    return check


def as_datetime(value: Any) -> Any:
    """A time of numpy as Python's, to the microsecond; others as they are."""
    return value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else value


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):  # decimals are categories where their type has no fraction
        return int(value) if value.is_finite() and int(value.as_tuple().exponent) >= 0 else None
    return value if isinstance(value, (int, float)) else None


def _any_number(value: Any) -> Any:
    return value if isinstance(value, (int, float, Decimal)) else None


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return None
    return value if value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value) else None


def _date(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        value = value.item() if np.datetime_data(value)[0] == "D" else None
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _timestamp(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return value if np.datetime_data(value)[0] in ("s", "ms", "us", "ns") else None
    return value if isinstance(value, datetime) and value.utcoffset() is None else None


_OF_KIND: Mapping[str, Callable[[Any], Any]] = {
    "number": _number,
    "text": _text,
    "bytes": lambda value: value if isinstance(value, bytes) else None,
    "date": _date,
    "time": lambda value: value if isinstance(value, time) else None,
    "timestamp": _timestamp,
    "zoned": lambda value: value if isinstance(value, datetime) and value.utcoffset() is not None else None,
}
