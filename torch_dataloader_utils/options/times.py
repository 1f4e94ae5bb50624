"""Times of tables: those as of which they are read, and those of their snapshots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown


def milliseconds(as_of: datetime | str | int) -> int:
    """The time in milliseconds since 1970.

    Raises:
        OptionError: it is not a time, or has no time zone.
    """
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return as_of
    try:
        moment = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError as error:
        raise OptionError(
            f"as_of={shown(as_of)}: expected ISO form, such as '2025-01-31T12:00:00Z': {error}"
        ) from error
    if not isinstance(moment, datetime):
        raise OptionError(f"as_of={shown(as_of)}: expected a datetime, its ISO form, or milliseconds since 1970.")
    if moment.tzinfo is None:
        raise OptionError(f"as_of={shown(as_of)}: has no time zone: add one, such as '2025-01-31T12:00:00Z'.")
    # Whole milliseconds: a float of seconds is not exact.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def moment_of(as_of: datetime | str | int) -> datetime:
    """The time, in whole milliseconds.

    Raises:
        OptionError: it is not a time, has no time zone, or no calendar has it.
    """
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds(as_of))
    except OverflowError as error:
        raise OptionError(f"as_of={shown(as_of)}: expected a time between the years 1 and 9999.") from error


def time(name: str, value: Any) -> Any:
    """A time as it was given, checked."""
    moment_of(value)
    return value


def utc(timestamp_ms: int) -> str:
    """The time, given in milliseconds since 1970, in ISO form; as given if no calendar has it."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):  # of damaged metadata
        return f"{timestamp_ms} ms since 1970"
