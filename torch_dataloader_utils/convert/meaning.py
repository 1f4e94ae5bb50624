"""What the numbers of an output stand for: two columns of one dtype may count days and microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as pt

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a number stands for.

    Attributes:
        kind: "numbers", "dates", "times", "durations", "timestamps", "timestamps with a zone" or "scaled decimals".
        unit: of dates and times: "day", "s", "ms", "us" or "ns".
        scale: of scaled decimals: how many digits are after the point.
        digits: of scaled decimals: how many there are at most.
    """

    kind: str
    unit: str = ""
    scale: int = 0
    digits: int = 0

    def __str__(self) -> str:
        """Such as "timestamps in us"."""
        if self.kind == "scaled decimals":
            return f"{self.kind} of scale {self.scale}"
        return f"{self.kind} in {self.unit}" if self.unit else self.kind


NUMBERS = Meaning("numbers")


def meaning_of(type_: pa.DataType, scaled: bool) -> Meaning:
    """What the numbers of a type without encodings stand for.

    Zones are not told apart: with any of them, the numbers count from the same moment.
    """
    if pt.is_decimal(type_) and scaled and type_.scale:
        return Meaning("scaled decimals", scale=type_.scale, digits=type_.precision)
    if pt.is_date(type_):
        return Meaning("dates", "day" if pt.is_date32(type_) else "ms")
    if pt.is_timestamp(type_):
        return Meaning("timestamps" if type_.tz is None else "timestamps with a zone", type_.unit)
    if pt.is_time(type_) or pt.is_duration(type_):
        return Meaning("times" if pt.is_time(type_) else "durations", type_.unit)
    return NUMBERS


def common(meanings: Sequence[Meaning]) -> Meaning | None:
    """What the numbers of all can be made to stand for by multiplying them: the finest unit; None if nothing."""
    first = meanings[0]
    if any(meaning.kind != first.kind for meaning in meanings):
        return None
    scale = max(meaning.scale for meaning in meanings)
    digits = max(meaning.digits + scale - meaning.scale for meaning in meanings)
    units = {meaning.unit for meaning in meanings}
    if len(units) > 1 and not units <= _PER_SECOND.keys():
        return None
    if digits > _INT64_DIGITS:
        return None
    return replace(first, scale=scale, digits=digits, unit=max(units, key=lambda unit: _PER_SECOND.get(unit, 0)))


def agreed(given: Sequence[tuple[Meaning, bool]]) -> Meaning | None:
    """As `common`, also for plain numbers among them, if those that are more are named as plain numbers.

    Args:
        given: what the numbers stand for, and whether `dtypes=` names their column.
    """
    special = [(meaning, named) for meaning, named in given if meaning != NUMBERS]
    if not special or (len(special) < len(given) and not all(named for _, named in special)):
        return None if special else NUMBERS
    return common([meaning for meaning, _ in special])


def unlike(given: Mapping[str, tuple[Meaning, bool]]) -> dict[str, str]:
    """What the numbers of columns that are joined stand for, by column, as text; empty if it is the same for all.

    Args:
        given: what the numbers stand for, and whether `dtypes=` names their column.
    """
    texts = {key: str(NUMBERS if named else meaning) for key, (meaning, named) in given.items()}
    return texts if len(set(texts.values())) > 1 else {}


def factor(wanted: Meaning, given: Meaning) -> int:
    """By what the numbers are to be multiplied to stand for what is wanted, which `common` returned."""
    if wanted.unit == given.unit:
        return int(10 ** (wanted.scale - given.scale))
    return _PER_SECOND[wanted.unit] // _PER_SECOND[given.unit]
