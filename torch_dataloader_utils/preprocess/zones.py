"""The wall clock of zones, by `zoneinfo`: Arrow knows no daylight saving after 2037, and no zones on Windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.late_imports import as_arrow, pc

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
_MANY = 100  # years
_FIRST, _LAST = 2, 9998  # years, in which no zone's wall clock leaves those of Python


def wall_clock(times: pa.Array, zone: str) -> pa.Array:
    """Instants as the wall clock of a zone shows them.

    Args:
        times: timestamps of any zone; or without one, which are taken as in UTC.
        zone: its name.

    Returns:
        Timestamps of the same unit, without a zone.
    """
    unit = times.type.unit
    instants = np.asarray(pc.fill_null(times.cast(pa.int64()), 0)).astype(np.int64, copy=False)
    offsets = _offsets(zone, np.floor_divide(instants, _PER_SECOND[unit]))
    walls = as_arrow(instants + offsets * _PER_SECOND[unit]).view(pa.timestamp(unit))
    return pc.if_else(times.is_valid(), walls, pa.scalar(None, walls.type)) if times.null_count else walls


def _offsets(zone: str, seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What the wall clock is ahead of UTC, in seconds, at seconds since 1970."""
    if not len(seconds):
        return seconds
    first, last = (np.array([seconds.min(), seconds.max()]).view("M8[s]").astype("M8[Y]").astype(np.int64) + 1970).clip(
        _FIRST, _LAST
    )
    years = np.arange(first, last + 1)
    if len(years) > _MANY:  # one of them may be the year 9999
        all_years = seconds.view("M8[s]").astype("M8[Y]").astype(np.int64) + 1970
        years = np.unique(all_years.clip(_FIRST, _LAST))
    changes = [change for year in years.tolist() for change in _of_year(zone, year)]
    starts, offsets = np.array(changes, np.int64).reshape(-1, 2).T
    found: npt.NDArray[Any] = offsets[np.maximum(np.searchsorted(starts, seconds, side="right") - 1, 0)]
    return found


@lru_cache(maxsize=4096)
def _of_year(zone: str, year: int) -> list[tuple[int, int]]:
    """When the offset changes in a year, in seconds since 1970, and to what; first its beginning."""
    rules = ZoneInfo(zone)
    first, end = (int((datetime(each, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) for each in (year, year + 1))

    def offset(second: int) -> int:
        shift = (_EPOCH + timedelta(seconds=second)).astimezone(rules).utcoffset()
        assert shift is not None
        return round(shift.total_seconds())

    changes = [(first, offset(first))]
    for day in range(first, end, _DAY):
        low, high = day, day + _DAY
        while offset(high) != changes[-1][1]:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == changes[-1][1] else (low, middle)
            changes.append((high, offset(high)))
            low, high = high, day + _DAY
    return changes
