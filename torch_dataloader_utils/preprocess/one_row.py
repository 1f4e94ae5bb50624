"""A fitted `Preprocess` for one row: Python's own floats, ints and dicts, without pyarrow; the same bits as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from datetime import date, datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from torch_dataloader_utils.errors import ColumnNotFoundError, UnsupportedTypeError
from torch_dataloader_utils.preprocess.fitted import FittedOutput, id_of, unknown_value
from torch_dataloader_utils.preprocess.hashed import one_bucket, one_crossed, one_hash
from torch_dataloader_utils.preprocess.transforms import (
    PARTS,
    Bucketize,
    Categorize,
    Cross,
    DateParts,
    Hash,
    Impute,
    Keep,
    NumberTransform,
)
from torch_dataloader_utils.printing import shown

Row: TypeAlias = Mapping[str, Any]
OfRow: TypeAlias = Callable[[Row], Any]


class OneRow:
    """The function of one row that a fitted `Preprocess` is."""

    def __init__(self, outputs: Sequence[FittedOutput]) -> None:
        self._needed = {name for each in outputs if not isinstance(each.last, Keep) for name in each.output.columns}
        self._steps = [step for each in outputs for step in _functions(each)]
        self._kept = {each.output.name: each.output.columns[0] for each in outputs if isinstance(each.last, Keep)}

    def __call__(self, row: Row) -> dict[str, Any]:
        """What becomes of a row.

        Raises:
            ColumnNotFoundError: columns are missing; it names all of them. Kept ones may be.
            UnsupportedTypeError: a value is of another kind than those of the column that was fitted.
        """
        try:
            made = {name: function(row) for name, function in self._steps}
        except KeyError:
            missing = sorted(self._needed - row.keys())
            if not missing:
                raise
        else:
            for name, column in self._kept.items():
                if column not in row:
                    del made[name]
            return made
        raise ColumnNotFoundError(f"no columns {missing}, which this Preprocess was fitted on: there are {list(row)}.")


def _functions(each: FittedOutput) -> list[tuple[str, OfRow]]:
    """The functions of a row that make an output's columns."""
    output, last = each.output, each.last
    if isinstance(last, Keep):
        return [(output.name, _get(output.columns[0]))]
    if isinstance(last, DateParts):
        return _of_date(each, last)
    if isinstance(last, Cross):
        return [(output.name, _of_cross(each, last))]
    column = output.columns[0]
    value = _of_value(each)
    made = [(output.name, _of_list(column, value) if _nested(each) else _of_column(column, value))]
    indicated = next((i for i, link in enumerate(output.chain) if isinstance(link, Impute) and link.indicator), None)
    if indicated is not None:
        before = _numbers(each, indicated) if output.numeric else _present

        def missing(row: Row) -> float:
            found = before(row[column])
            return 1.0 if found is None or found != found else 0.0

        made.append((f"{output.name}_missing", missing))
    return made


def _nested(each: FittedOutput) -> bool:
    return each.kinds[0].nested != ""


def _get(column: str) -> OfRow:
    return lambda row: row.get(column)


def _of_column(column: str, value: Callable[[Any], Any]) -> OfRow:
    return lambda row: value(row[column])


def _of_list(column: str, value: Callable[[Any], Any]) -> OfRow:
    return lambda row: [value(item) for item in row[column]] if row[column] is not None else []


def _of_value(each: FittedOutput) -> Callable[[Any], Any]:
    """The function of one value."""
    last, fitted, chain = each.last, each.fitted, each.output.chain
    if each.output.numeric:
        number = _numbers(each, len(chain) - 1 if last.ends else len(chain))
        if not last.ends:
            return _rounded(number, each.dtype)
        if isinstance(last, Bucketize):
            bucket = last.one(fitted[-1])
            return lambda value: bucket(number(value))
        ids = _ids(each)
        return lambda value: ids(number(value))
    fills = [link.fill_of(learned) for link, learned in zip(chain, fitted, strict=True) if isinstance(link, Impute)]
    check = _checked(each)
    ids = _ids(each) if last.ends else check
    if not fills:
        return ids
    return lambda value: ids(fills[0] if _present(value) is None else value)


def _numbers(each: FittedOutput, last: int) -> Callable[[Any], float]:
    """The function of the first links of a numeric chain."""
    steps: list[Callable[[float], float]] = []
    for link, fitted in zip(each.output.chain[:last], each.fitted, strict=False):
        if isinstance(link, NumberTransform):
            steps.append(link.one(fitted))
        elif isinstance(link, Impute):
            steps.append(_filling(link.number_of(fitted)))
    of, column = _number, each.output.columns[0]
    if not steps:
        return lambda value: of(value, column)
    if len(steps) == 1:
        only = steps[0]
        return lambda value: only(of(value, column))
    if len(steps) == 2:
        first, second = steps
        return lambda value: second(first(of(value, column)))

    def all_of_them(value: Any) -> float:
        x = of(value, column)
        for step in steps:
            x = step(x)
        return x

    return all_of_them


def _filling(fill: float) -> Callable[[float], float]:
    return lambda x: fill if x != x else x


def _rounded(number: Callable[[Any], float], dtype: str) -> Callable[[Any], float]:
    if dtype == "float64":
        return number
    return lambda value: c_float(number(value)).value


def _number(value: Any, column: str) -> float:
    """A number as float64, NaN if it is missing."""
    if type(value) is float or type(value) is int:
        try:
            return value + 0.0
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    value = _present(value)
    if value is None:
        return math.nan
    if isinstance(value, (str, bytes)):
        raise UnsupportedTypeError(f"column {column!r} holds {shown(value)}: this Preprocess was fitted on numbers.")
    return float(value) + 0.0


def _present(value: Any) -> Any:
    """The value; None if it is missing, in any of the ways in which libraries say so."""
    if value is None or (isinstance(value, float) and value != value):
        return None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    item = getattr(value, "item", None)  # of numpy
    return value if item is None else _present(item())


_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "bytes": (bytes,),
    "date": (date,),
    "timestamp": (datetime,),
    "zoned": (datetime,),
}


def _checked(each: FittedOutput, place: int = 0) -> Callable[[Any], Any]:
    """What returns a value that is of the kind of the column, or None."""
    kind, column = each.kinds[place].values, each.output.columns[place]
    expected = _TYPES.get(kind)

    def check(value: Any) -> Any:
        value = _present(value)
        if value is None:
            return None
        if not isinstance(value, expected) if expected is not None else isinstance(value, (str, bytes, date)):
            raise UnsupportedTypeError(
                f"column {column!r} holds {shown(value)}: this Preprocess was fitted on {each.kinds[place].text}."
            )
        return value

    return check


def _ids(each: FittedOutput) -> Callable[[Any], int]:
    """The function of a value to its id."""
    last = each.last
    check = _checked(each)
    if isinstance(last, Hash):
        n, seed = last.n, last.seed

        def hashed(value: Any) -> int:
            value = check(value)
            return 0 if value is None else one_bucket(one_hash(value), n, seed)

        return hashed
    assert isinstance(last, Categorize)
    find = _category(last, each.fitted[-1], each.output.name)

    def category(value: Any) -> int:
        return find(check(value))

    return category


def _category(last: Categorize, fitted: Mapping[str, Any], name: str) -> Callable[[Any], int]:
    values = fitted["vocabulary"].values
    null = fitted.get("null")
    first = 1 + last.unknown_ids
    known = {value: first + i + (null is not None and i >= null) for i, value in enumerate(values)}
    known[None] = 0 if null is None else first + null

    def find(value: Any) -> int:
        if value is not None and value != value:
            value = None
        found = known.get(value)
        if found is not None:
            return found
        if last.unknown == "error":
            raise unknown_value(name, value, len(values))
        return 1 if last.unknown_ids == 1 else one_bucket(_unknown_hash(value), last.unknown_ids + 1, 0)

    return find


def _unknown_hash(value: Any) -> int:
    """The hash of an unknown value; of floats that have none, that of null."""
    hashed = not isinstance(value, float) or (value.is_integer() and -(2.0**63) <= value < 2.0**64)
    return one_hash(value if hashed else None)


def _of_cross(each: FittedOutput, last: Cross) -> OfRow:
    checks = [_checked(each, place) for place in range(len(each.output.columns))]
    columns = list(zip(each.output.columns, checks, strict=True))
    if isinstance(last.of, Hash):
        n, seed = last.of.n, last.of.seed

        def of_hash(hashed: int) -> int:
            return one_bucket(hashed, n, seed)
    else:
        find = _category(last.of, each.fitted[-1], each.output.name)

        def of_hash(hashed: int) -> int:
            return find(hashed - (1 << 64) if hashed >> 63 else hashed)  # as the vocabulary has it, int64

    def crossed(row: Row) -> int:
        values = [check(row[column]) for column, check in columns]
        if all(value is None for value in values):
            return 0
        return of_hash(one_crossed([one_hash(value) for value in values]))

    return crossed


def _of_date(each: FittedOutput, last: DateParts) -> list[tuple[str, OfRow]]:
    check, column = _checked(each), each.output.columns[0]
    zone = None if last.zone is None else ZoneInfo(last.zone)
    own = each.types[0].zone
    to = zone or (None if own is None else ZoneInfo(own))

    def time_of(row: Row) -> Any:
        value = check(row[column])
        return value.astimezone(to) if to is not None and value is not None else value

    made: list[tuple[str, OfRow]] = []
    for part in last.parts:
        of_part = _PART_OF[part]
        name = f"{each.output.name}_{part}"
        if not last.cyclic:
            made.append((name, _part_id(time_of, of_part, id_of(part))))
            continue
        least, count = PARTS[part]
        for end, function in (("_sin", math.sin), ("_cos", math.cos)):
            angle = _angle(time_of, of_part, least, 2 * math.pi / count, function)
            made.append((name + end, angle if each.dtype == "float64" else _single(angle)))
    return made


def _part_id(time_of: Callable[[Row], Any], of_part: Callable[[Any], int], add: int) -> OfRow:
    def part(row: Row) -> int:
        time = time_of(row)
        return 0 if time is None else of_part(time) + add

    return part


def _angle(
    time_of: Callable[[Row], Any], of_part: Callable[[Any], int], least: int, unit: float, function: Any
) -> Callable[[Row], float]:
    def angle(row: Row) -> float:
        time = time_of(row)
        return math.nan if time is None else function((float(of_part(time)) - least) * unit)

    return angle


def _single(function: Callable[[Row], float]) -> OfRow:
    return lambda row: c_float(function(row)).value


_PART_OF: Mapping[str, Callable[[Any], int]] = {
    "hour": lambda time: getattr(time, "hour", 0),
    "minute": lambda time: getattr(time, "minute", 0),
    "second": lambda time: getattr(time, "second", 0),
    "weekday": lambda time: time.isoweekday(),
    "month": lambda time: time.month,
    "day": lambda time: time.day,
    "dayofyear": lambda time: time.timetuple().tm_yday,
    "year": lambda time: time.year,
}
