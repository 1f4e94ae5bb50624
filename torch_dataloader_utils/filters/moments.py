"""Dates, times and durations as exact nanoseconds, from Python, NumPy and pandas objects or from text."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

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
