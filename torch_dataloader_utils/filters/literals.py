"""Where a filter's literal lies among the values of a column's type: at one of them, or between two."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.schemas.merge import is_text

# Dates, times and durations as exact nanoseconds, from Python, NumPy and pandas objects or from text.

SECOND = 10**9
DAY = 86_400 * SECOND
NANOSECONDS = {"D": DAY, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
"""Unit, by its name in NumPy and Arrow -> nanoseconds. NumPy's weeks, months and years are converted to days."""

_MICROSECOND = timedelta(microseconds=1)


def nanoseconds(value: Any, kind: pa.DataType) -> int:
    """Nanoseconds since 1970, since midnight or in total, as columns of the temporal type `kind` count them.

    A date stands for its midnight, in UTC if the column has a time zone.

    Raises:
        TypeError: the value cannot be compared with such a column: it is of another kind, or only one of the two has
            a time zone.
        ValueError: text that does not spell such a value.
    """
    zoned = pt.is_timestamp(kind) and kind.tz is not None
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _of_numpy(value, kind)
    if pt.is_duration(kind) and isinstance(value, timedelta):
        return value // _MICROSECOND * 1000 + getattr(value, "nanoseconds", 0)  # pandas keeps the rest separately
    if pt.is_time(kind) and isinstance(value, time):
        return _of_clock(value)
    if isinstance(value, str) and (pt.is_time(kind) or pt.is_date(kind) or pt.is_timestamp(kind)):
        return _of_text(value, kind)
    if pt.is_time(kind) or pt.is_duration(kind):
        raise TypeError(f"{value!r} is of another sort")
    if isinstance(value, datetime) and (value.tzinfo is not None) is zoned:
        since = value - datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
        return since // _MICROSECOND * 1000 + getattr(value, "nanosecond", 0)
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - date(1970, 1, 1)).days * DAY
    raise TypeError(f"{value!r} is of another sort")


def _of_numpy(value: np.datetime64 | np.timedelta64, kind: pa.DataType) -> int:
    spans = isinstance(value, np.timedelta64)
    if pt.is_duration(kind) is not spans or pt.is_time(kind) or (pt.is_timestamp(kind) and kind.tz is not None):
        raise TypeError(f"{value!r} is of another sort")
    unit, count = np.datetime_data(value.dtype)
    if unit in ("Y", "M") and not spans:
        value, unit, count = value.astype("datetime64[D]"), "D", 1
    if unit == "W":
        unit, count = "D", 7 * count
    return int(value.astype(np.int64)) * count * NANOSECONDS[unit]


def _of_text(text: str, kind: pa.DataType) -> int:
    """Text as Arrow parses it, exactly: as microseconds, which cover all years, else as nanoseconds if it is finer."""
    if pt.is_date(kind):
        return int(pa.scalar(text).cast(pa.date32()).value) * DAY
    if pt.is_time(kind):
        if ":" not in text:
            raise ValueError(f"{text!r} is not a time of day")
        return _of_text(f"1970-01-01T{text}", pa.timestamp("ns"))
    try:
        return int(pa.scalar(text).cast(pa.timestamp("us", kind.tz)).value) * 1000
    except pa.ArrowInvalid:
        return int(pa.scalar(text).cast(pa.timestamp("ns", kind.tz)).value)


def _of_clock(clock: time) -> int:
    if clock.tzinfo is not None:
        raise TypeError(f"{clock!r} has a time zone")
    return ((clock.hour * 60 + clock.minute) * 60 + clock.second) * SECOND + clock.microsecond * 1000


_Exact: TypeAlias = "int | float | Fraction"  # Python compares these exactly with each other

_EXTREME = 400  # a power of ten beyond all types, except decimals with unusual scales


@dataclass(frozen=True, slots=True)
class _Floor:
    """Where a literal lies among the values of a type.

    Attributes:
        value: the greatest value that is not above the literal; None if all values are above it.
        exact: whether the literal equals that value.
    """

    value: pa.Scalar | None
    exact: bool


def compared(word: str, value: Any, kind: pa.DataType) -> tuple[str, pa.Scalar] | bool:
    """`column word value` as a comparison with a value of type `kind` that selects the same rows.

    Returns an operator and a value, or a constant if the result is the same for all values: True selects all rows but
    nulls, False selects none. Comparisons are exact: `x < 2.5` over integers is `x <= 2`, `x < 300` over int8 is
    `x <= 127`. For floating types, numbers are first rounded to the nearest value, as if stored in the column. For
    decimals, a float stands for its shortest decimal form. NaN equals nothing. Text must spell a value of the type.

    Args:
        word: one of =, ==, !=, <, <=, >, >=.
        value: not null.
        kind: neither a dictionary nor an extension type.

    Raises:
        ArithmeticError, TypeError, ValueError, pa.ArrowException: the value does not suit the type; `expected`
            describes those that do.
    """
    floor = _floor(value, kind)
    if floor is None:
        return word == "!="
    if floor.exact:
        return word, floor.value
    if word in ("=", "==", "!="):
        return word == "!="
    above = word in (">", ">=")
    return above if floor.value is None else (">" if above else "<=", floor.value)


def expected(kind: pa.DataType) -> str:
    """The literals expected for columns of this type, for an error."""
    for test, text in _EXPECTED:
        if test(kind):
            return text(kind) if callable(text) else text
    return "no literal: such columns have only 'is null' and 'is not null'"


def _floor(value: Any, kind: pa.DataType) -> _Floor | None:
    """Where a literal lies; None if it has no place: NaN, or any literal if the type is null."""
    if pt.is_null(kind):
        return None
    if isinstance(value, pa.Scalar):
        if value.type == kind and not pt.is_floating(kind):
            return _Floor(value, True)
        value = value.as_py()
    floor = _by_family(value, kind)
    if isinstance(value, str) and (floor is None or not floor.exact):
        raise ValueError(f"{value!r} is not a value of type {kind}")
    return floor


def _by_family(value: Any, kind: pa.DataType) -> _Floor | None:
    if pt.is_floating(kind):
        return _among_floats(_number(value), kind)
    if pt.is_integer(kind) or pt.is_decimal(kind):
        return _on_grid(_number(value, shortest=pt.is_decimal(kind)), _grid(kind))
    if pt.is_date(kind) or pt.is_time(kind) or pt.is_timestamp(kind) or pt.is_duration(kind):
        return _on_grid(nanoseconds(value, kind), _grid(kind))
    if pt.is_fixed_size_binary(kind):
        return _among_bytes(_bytes(value, kind), kind)
    return _Floor(pa.scalar(_same(value, kind), kind), True)


# ------------------------------------------------------------------------------------------------------------ numbers


def _number(value: Any, shortest: bool = False) -> _Exact:
    """The exact value of a number, or of the shortest decimal form of a float."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("a truth value is not a number")
    if isinstance(value, str):
        value = _decimal(value)
    elif shortest and isinstance(value, (float, np.floating)):
        value = Decimal(str(value))
    elif isinstance(value, np.number):
        value = value.item()
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Decimal):
        return _fraction(value)
    return Fraction(value)


def _decimal(text: str) -> Decimal:
    number = Decimal(text)  # also accepts underscores, spaces, digits beyond ASCII, and "nan"
    if not number.is_finite() or not text.isascii() or any(mark in text for mark in " _\t\n\r\v\f"):
        raise ValueError(f"{text!r} is not a number")
    return number


def _fraction(value: Decimal) -> _Exact:
    """The value; a stand-in if it is finite, but too large or too small to compute with."""
    if value.is_nan():
        return math.nan
    if value.is_infinite():
        return math.copysign(math.inf, value)
    if not value:
        return Fraction(0)
    if abs(value.adjusted()) > _EXTREME:
        value = Decimal((int(value < 0), (1,), int(math.copysign(_EXTREME, value.adjusted()))))
    return Fraction(value)


def _among_floats(value: _Exact, kind: pa.DataType) -> _Floor | None:
    """The nearest value; a number beyond the finite values lies between the last of them and infinity."""
    narrow = kind.to_pandas_dtype()
    try:
        with np.errstate(over="ignore"):
            near = narrow(float(value))
    except OverflowError:
        near = narrow(math.inf if value > 0 else -math.inf)
    if np.isnan(near):
        return None
    if np.isinf(near) and abs(value) != math.inf:
        return _Floor(pa.scalar(np.finfo(narrow).max if value > 0 else near, kind), False)
    return _Floor(pa.scalar(near, kind), True)


# ------------------------------------------------------------------------------------------- values at even distances


@dataclass(frozen=True, slots=True)
class _Grid:
    """The values `step * n` for n from `least` to `most`; `scalar(n)` is the value for n."""

    step: int | Fraction
    least: int
    most: int
    scalar: Callable[[int], pa.Scalar]


@lru_cache(maxsize=128)
def _grid(kind: pa.DataType) -> _Grid:
    """The values of an integer, decimal or temporal type (steps in nanoseconds)."""
    if pt.is_decimal(kind):
        most = 10**kind.precision - 1
        return _Grid(Fraction(10) ** -kind.scale, -most, most, lambda n: pa.scalar(_scaled(n, kind.scale), kind))
    if pt.is_unsigned_integer(kind):
        return _Grid(1, 0, 2**kind.bit_width - 1, lambda n: pa.scalar(n, kind))
    unit = "D" if pt.is_date32(kind) else "ms" if pt.is_date64(kind) else getattr(kind, "unit", "ns")
    half = 1 << (kind.bit_width - 1)
    return _Grid(NANOSECONDS[unit], -half, half - 1, lambda n: pa.scalar(n, kind))


def _scaled(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _on_grid(value: _Exact, grid: _Grid) -> _Floor | None:
    if value != value:
        return None
    if value < grid.least * grid.step:
        return _Floor(None, False)
    if value > grid.most * grid.step:
        return _Floor(grid.scalar(grid.most), False)
    steps, rest = divmod(Fraction(value) if isinstance(value, float) else value, grid.step)
    return _Floor(grid.scalar(int(steps)), not rest)


# -------------------------------------------------------------------------------------------------- bytes, text, truth


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def _bytes(value: Any, kind: pa.DataType) -> bytes:
    if isinstance(value, str) and kind == pa.binary(16) and len(value) > kind.byte_width:
        value = uuid.UUID(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{value!r} is not bytes")


def _among_bytes(value: bytes, kind: pa.DataType) -> _Floor:
    """Where bytes lie among those of one length: longer ones just after their own prefix, shorter ones just before."""
    width = kind.byte_width
    if len(value) >= width:
        return _Floor(pa.scalar(value[:width], kind), len(value) == width)
    after = int.from_bytes(value.ljust(width, b"\0"), "big")
    return _Floor(pa.scalar((after - 1).to_bytes(width, "big"), kind) if after else None, False)


def _same(value: Any, kind: pa.DataType) -> Any:
    """The literal itself, for types without an order and for those whose values include every suitable literal."""
    if _is_binary(kind):
        return _bytes(value, kind)
    if pt.is_boolean(kind):
        if isinstance(value, str):
            return ("false", "true").index(value.lower()) == 1
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
    elif is_text(kind) and isinstance(value, (str, bytes)):
        return value
    raise TypeError(f"{value!r} is of another kind")


# (test for types, what an error says was expected)
_EXPECTED: tuple[tuple[Callable[[pa.DataType], bool], str | Callable[[pa.DataType], str]], ...] = (
    (pt.is_integer, lambda kind: f"a number; in quotes, an integer that fits {kind}"),
    (pt.is_floating, lambda kind: f"a number; in quotes, one that fits {kind}"),
    (pt.is_decimal, lambda kind: f"a number; in quotes, one that fits {kind} without rounding"),
    (pt.is_boolean, "True or False"),
    (pt.is_date, "a date, or text such as '2024-01-31'"),
    (pt.is_time, "a time, or text such as '13:45:00' that is not finer than the column"),
    (
        lambda kind: pt.is_timestamp(kind) and kind.tz is not None,
        "a datetime with a timezone, or text such as '2024-01-31T13:45:00+00:00' that fits the column without rounding",
    ),
    (
        pt.is_timestamp,
        "a datetime without a timezone, or text such as '2024-01-31T13:45:00' that fits the column without rounding",
    ),
    (pt.is_duration, "a timedelta"),
    (lambda kind: kind == pa.binary(16), "16 bytes, or a UUID (as text, too)"),
    (pt.is_fixed_size_binary, lambda kind: f"bytes, or text of {kind.byte_width} bytes"),
    (_is_binary, "bytes or text"),
    (is_text, "text"),
)
