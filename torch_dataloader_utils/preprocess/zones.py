"""Time zones by their rules in `zoneinfo`, for one time and for arrays: they agree, on all systems and in any year.

Arrow has rules of its own: none on Windows (arrow#31472), and after 2037 it knows no daylight saving time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import OptionError

_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_SPAN = 3652 * _DAY  # seconds of which the changes are found at once: some ms
_FIRST, _LAST = -62_135_510_400, 253_402_214_400  # the instants of Python's datetimes, but for a day at either end


@lru_cache
def zone_named(name: str) -> tzinfo:
    """The zone of this name, as Arrow writes it: one of the IANA's, or an offset such as "+02:00".

    Raises:
        OptionError: there is none.
    """
    match = _OFFSET.fullmatch(name)
    if match is not None:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if offset < timedelta(days=1):
            return timezone(offset if match[1] == "+" else -offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise OptionError(
            f"there is no time zone {name!r}: expected one such as 'Europe/Berlin' or '+02:00'. Systems without a "
            "database of zones need `pip install tzdata`."
        ) from error


def offsets(seconds: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    """The seconds by which wall clocks of a zone are ahead of UTC at instants, shape [n], in seconds since 1970."""
    zone = zone_named(name)
    if isinstance(zone, timezone):
        return np.full(len(seconds), _offset(zone, 0), np.int64)
    inside = np.clip(seconds, _FIRST, _LAST)
    spans = inside // _SPAN
    found = np.empty(len(seconds), np.int64)
    for span in np.unique(spans).tolist():
        begins, each = _changes(name, span)
        rows = spans == span
        found[rows] = each[np.searchsorted(begins, inside[rows], side="right") - 1]
    return found


@lru_cache(1024)
def _changes(name: str, span: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The instants of a span at which an offset begins, the first one with it, and these offsets."""
    zone = zone_named(name)
    first, end = max(span * _SPAN, _FIRST), min((span + 1) * _SPAN, _LAST + 1)
    begins, found = [first], [_offset(zone, first)]
    for day in range(first, end, _DAY):
        low, last = day - 1, min(day + _DAY, end) - 1  # the day before ended with the offset that was found last
        while _offset(zone, last) != found[-1]:
            high = last
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == found[-1] else (low, middle)
            begins.append(high)
            found.append(_offset(zone, high))
            low = high
    return np.array(begins, np.int64), np.array(found, np.int64)


def _offset(zone: tzinfo, instant: int) -> int:
    offset = (_EPOCH + timedelta(seconds=instant)).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(seconds=1)
