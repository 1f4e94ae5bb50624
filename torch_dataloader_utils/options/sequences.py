"""`sequences=`: windows over time, each the last rows of a key up to its anchor row."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from math import isfinite
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, Value, a, maybe, names, option, path, setting, whole, word

_MOST_ROWS = 2**24  # of a window
EDGE = "edge"

# Nanoseconds of the units of a gap.
_UNITS = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), 10**3),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 10**6),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 10**9),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 10**9),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600 * 10**9),
    **dict.fromkeys(("d", "day", "days"), 86_400 * 10**9),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * 10**9),
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµμ]+)\s*", re.IGNORECASE)


def nanoseconds(duration: str) -> Fraction | None:
    """A duration such as "1h" or "90 min" in nanoseconds; None if it is none."""
    found = _DURATION.fullmatch(duration)
    # "M" is a month to pandas and a minute to none.
    unit = None if found is None or found[2] == "M" else _UNITS.get(found[2].lower())
    return None if found is None or unit is None else Fraction(found[1]) * unit


def _columns(name: str, value: Any) -> list[str]:
    return names(name, [value] if isinstance(value, str) else value)


def _static(name: str, value: Any) -> list[str]:
    given = [value] if isinstance(value, str) else list(value)
    return names(name, given) if given else []


def _pad(name: str, value: Any) -> Any:
    """A number, "edge", or a dict of column -> number; whether they fit their columns is known later."""
    numbers = list(value.values()) if isinstance(value, Mapping) else [value]
    words = list(value) if isinstance(value, Mapping) else []
    fits = all(isinstance(number, (int, float)) for number in numbers) and all(isinstance(key, str) for key in words)
    if (not fits and value != EDGE) or isinstance(value, bool):
        raise OptionError(f'{name}={shown(value)}: expected a number, "edge", or a dict of column -> number.')
    return value


def _gap(name: str, value: Any) -> Any:
    """A step in the unit of the column, or a duration."""
    if isinstance(value, timedelta):
        value = f"{(value.days * 86_400 + value.seconds) * 10**6 + value.microseconds}us"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    ok = nanoseconds(value) is not None if isinstance(value, str) else is_number and isfinite(value) and value >= 0
    if not ok:
        raise OptionError(
            f"{name}={shown(value)}: expected a number of at least 0 in the unit of the column of order, or a duration "
            'such as "1h", "15min" or "500ms".'
        )
    return value


class Windows(Value):
    """Windows of rows that follow one another in time, one for each anchor: the last row of its past.

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    length: int = setting(
        check=whole(1, _MOST_ROWS), doc="the number of past rows, including the anchor (L)", kw_only=False
    )
    order: str = setting(check=word, doc="the column of numbers or times that orders the rows of a key")
    by: str | Sequence[str] | None = setting(
        default=None, check=maybe(_columns), doc="the columns that identify a sequence; None: all rows are one"
    )
    horizon: int = setting(default=0, check=whole(0, _MOST_ROWS), doc="the number of rows after the anchor (H)")
    stride: int = setting(default=1, check=whole(1), doc="the number of rows from one anchor to the next")
    pad: float | str | Mapping[str, float] | None = setting(
        default=None,
        check=maybe(_pad),
        doc='what fills windows that reach beyond their run: a number, one by column, others 0, or "edge" (the nearest '
        "row); None: there are only whole windows",
    )
    min_length: int = setting(default=1, check=whole(1), doc="with pad, the minimum number of past rows")
    min_horizon: int = setting(default=0, check=whole(0), doc="with pad, the minimum number of future rows")
    gap: float | str | None = setting(
        default=None,
        check=maybe(_gap),
        doc='the largest step of `order` within a window, in its unit or as "1h"; None: any step',
    )
    last: int | None = setting(default=None, check=maybe(whole(1)), doc="only this many last windows of each run")
    static: Sequence[str] = setting(
        default=(),
        check=_static,
        doc="columns delivered once per window, with the value at its anchor; always those of `by`",
    )
    future: Sequence[str] | None = setting(
        default=None, check=maybe(_columns), doc="the columns whose rows after the anchor are delivered; None: all"
    )
    sort: str | os.PathLike[str] | None = setting(
        default=None, check=maybe(path), doc="a local folder for a sorted copy, if the data are not in this order"
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        for name, most in (("min_length", "length"), ("min_horizon", "horizon")):
            if getattr(self, name) > getattr(self, most):
                raise OptionError(
                    f"Windows: {name}={getattr(self, name)} with {most}={getattr(self, most)}: expected at most {most}."
                )
            if self.pad is None and name in self.given():
                raise OptionError(f"Windows: {name}={getattr(self, name)} without pad: windows are whole: add pad=0.")
        if self.horizon == 0 and self.future is not None:
            raise OptionError(
                f"Windows: future={list(self.future)} without a horizon: no rows after the anchor are read."
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that say which rows are one sequence."""
        return tuple(self.by or ())

    @property
    def least(self) -> tuple[int, int]:
        """The rows of its run that a window needs: up to its anchor, and after it."""
        return (self.length, self.horizon) if self.pad is None else (self.min_length, self.min_horizon)


WindowsLike: TypeAlias = Windows | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SequenceOptions(Checked):
    """Windows over time."""

    sequences: Windows | None = option(
        None,
        maybe(a(Windows)),
        given="WindowsLike | None",
        doc="windows over time of the rows of each key, by Windows(length, order=...): [B, length] tensors",
    )

    @property
    def text(self) -> str:
        """Which windows there are, as a text that distinguishes it; "" if there are none."""
        if self.sequences is None:
            return ""
        shape = {name: value for name, value in self.sequences.given().items() if name != "sort"}
        return ", ".join(f"{name}={shape[name]!r}" for name in sorted(shape))
