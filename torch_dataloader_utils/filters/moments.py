"""Dates, times and durations as exact nanoseconds, from objects of Python, NumPy and pandas, or from text."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

SECOND = 10**9
DAY = 86_400 * SECOND
NANOSECONDS = {"D": DAY, "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
"""Unit, as NumPy and Arrow call it -> nanoseconds. NumPy's weeks, months and years are whole days."""

_MICROSECOND = timedelta(microseconds=1)
_CLOCK = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?"
_TIME = re.compile(_CLOCK, re.ASCII)
_MOMENT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[T ]{_CLOCK}(?:(Z)|([+-]\d\d)(?::?(\d\d))?)?)?", re.ASCII)


def nanoseconds(value: Any, kind: pa.DataType) -> int:
    """Nanoseconds since 1970, since midnight or in all, as columns of the temporal type `kind` count them.

    A date is its midnight, in UTC where the column has a zone.

    Raises:
        TypeError: a value that does not compare with such a column: of another sort, with a zone or without.
        ValueError: text that is no such value.
    """
    zoned = pt.is_timestamp(kind) and kind.tz is not None
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _of_numpy(value, kind)
    if pt.is_duration(kind) and isinstance(value, timedelta):
        return value // _MICROSECOND * 1000 + getattr(value, "nanoseconds", 0)  # pandas counts the rest apart
    if pt.is_time(kind) and isinstance(value, (str, time)):
        return _of_clock(value) if isinstance(value, time) else _of_time(value)
    if not (pt.is_date(kind) or pt.is_timestamp(kind)):
        raise TypeError(f"{value!r} is of another sort")
    if isinstance(value, str):
        return _of_date(value) if pt.is_date(kind) else _of_moment(value, zoned)
    if isinstance(value, datetime) and (value.tzinfo is not None) is zoned:
        since = value - datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
        return since // _MICROSECOND * 1000 + getattr(value, "nanosecond", 0)
    if isinstance(value, date) and not isinstance(value, datetime):
        return _days(value) * DAY
    raise TypeError(f"{value!r} is of another sort")


def _days(day: date) -> int:
    return day.toordinal() - date(1970, 1, 1).toordinal()


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


def _of_date(text: str) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None or found[2] is not None:
        raise ValueError(f"{text!r} is no date")
    return _days(date.fromisoformat(text)) * DAY


def _of_time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None or found[2] is None:
        raise ValueError(f"{text!r} is no time of day")
    return _of_parts(*found.groups())


def _of_moment(text: str, zoned: bool) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None or bool(found[6] or found[7]) is not zoned:
        raise ValueError(f"{text!r} is no time {'with' if zoned else 'without'} a zone")
    hours, minutes = int(found[7] or 0), int(found[8] or 0)
    if abs(hours) > 23 or minutes > 59:
        raise ValueError(f"{text!r} has no such zone")
    offset = (hours * 60 + (minutes if (found[7] or "+")[0] == "+" else -minutes)) * 60 * SECOND
    return _of_date(found[1]) + _of_parts(*found.group(2, 3, 4, 5)) - offset


def _of_parts(hours: str | None, minutes: str | None, seconds: str | None, fraction: str | None) -> int:
    clock = time(int(hours or 0), int(minutes or 0), int(seconds or 0))
    return _of_clock(clock) + int((fraction or "").ljust(9, "0"))


def _of_clock(clock: time) -> int:
    if clock.tzinfo is not None:
        raise TypeError(f"{clock!r} has a zone")
    return ((clock.hour * 60 + clock.minute) * 60 + clock.second) * SECOND + clock.microsecond * 1000
