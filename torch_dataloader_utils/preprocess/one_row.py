"""A fitted `Preprocess` for one row: Python's own floats, ints and dicts, without pyarrow; the same bits as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from itertools import count
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import ColumnNotFoundError, UnsupportedTypeError
from torch_dataloader_utils.hashing import NULL
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary, id_of, unknown_value
from torch_dataloader_utils.preprocess.hashed import nanoseconds, one_bucket, one_crossed, one_hash
from torch_dataloader_utils.preprocess.one_value import as_datetime, checked, number_of, present
from torch_dataloader_utils.preprocess.own import OwnTransform, of_one
from torch_dataloader_utils.preprocess.target import TargetEncode
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
from torch_dataloader_utils.preprocess.zones import zone_named
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
        if not self._needed <= row.keys():
            missing = sorted(self._needed - row.keys())
            raise ColumnNotFoundError(
                f"no columns {missing}, which this Preprocess was fitted on: there are {list(row)}."
            )
        made = {name: function(row) for name, function in self._steps}
        for name, column in self._kept.items():
            if column not in row:
                del made[name]
        return made


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
    if isinstance(last, TargetEncode):
        means = each.encoding[:, 0].T.tolist()
        made = [(name, _of_target(column, value, own)) for name, own in zip(each.names, means, strict=False)]
    else:
        made = [(output.name, _of_list(each, value) if each.kinds[0].nested else _of_column(column, value))]
    indicated = next((i for i, link in enumerate(output.chain) if isinstance(link, Impute) and link.indicator), None)
    if indicated is not None:
        before = _numbers(each, indicated) if output.numeric else checked(each.types[0], column, ids=False)

        def missing(row: Row) -> float:
            found = before(row[column])
            return 1.0 if found is None or found != found else 0.0

        made.append((f"{output.name}_missing", missing))
    return made


def _of_target(column: str, place_of: Callable[[Any], int], means: Sequence[float]) -> OfRow:
    """The function of a row to what its category becomes."""
    return lambda row: means[place_of(row[column])]


def _get(column: str) -> OfRow:
    return lambda row: row.get(column)


def _of_column(column: str, value: Callable[[Any], Any]) -> OfRow:
    return lambda row: value(row[column])


def _of_list(each: FittedOutput, value: Callable[[Any], Any]) -> OfRow:
    column, type_ = each.output.columns[0], each.types[0]
    size = type_.size

    def values(row: Row) -> list[Any]:
        items = present(row[column])
        if items is None:
            return [value(None)] * (size or 0)
        if isinstance(items, (str, bytes, Mapping)) or not hasattr(items, "__len__") or size not in (None, len(items)):
            raise UnsupportedTypeError(
                f"column {column!r} holds {shown(items)}: this Preprocess was fitted on {type_.text}."
            )
        return [value(item) for item in items]

    return values


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
    ids = _ids(each) if last.ends else checked(each.types[0], each.output.columns[0], ids=False)
    if not fills:
        return ids
    return lambda value: ids(fills[0] if present(value) is None else value)


def _numbers(each: FittedOutput, last: int) -> Callable[[Any], float]:
    """The function of the first links of a numeric chain."""
    steps: list[Callable[[float], float]] = []
    for link, fitted in zip(each.output.chain[:last], each.fitted, strict=False):
        if isinstance(link, NumberTransform):
            steps.append(link.one(fitted))
        elif isinstance(link, Impute):
            steps.append(_filling(link.number_of(fitted)))
    of, column = number_of, each.output.columns[0]
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
        return lambda value: number(value) + 0.0  # see `computed`
    return lambda value: c_float(number(value) + 0.0).value


def _ids(each: FittedOutput) -> Callable[[Any], int]:
    """The function of a value to its id."""
    last = each.last
    check = checked(each.types[0], each.output.columns[0])
    if isinstance(last, OwnTransform):
        return of_one(last, each.fitted[-1].get("own"), "double" if each.output.numeric else each.types[0].values)
    if isinstance(last, Hash):
        n, seed = last.n, last.seed

        def hashed(value: Any) -> int:
            value = check(value)
            return 0 if value is None else one_bucket(one_hash(value), n, seed)

        return hashed
    timed = each.kinds[0].values in ("timestamp", "zoned")
    if isinstance(last, TargetEncode):  # the last two places are those of unseen and of missing values
        find = _looked_up(each.fitted[-1]["vocabulary"], count(), -1, lambda value: -2, timed=timed)
    else:
        assert isinstance(last, Categorize)
        find = _category(last, each.fitted[-1], each.output.name, timed=timed)

    def category(value: Any) -> int:
        return find(check(value))

    return category


def _unknown_hash(value: Any) -> int:
    """The hash of an unknown value; of a number without one, which is not whole or too large, that of null."""
    try:
        return one_hash(value)
    except UnsupportedTypeError:
        return NULL


def _category(last: Categorize, fitted: Mapping[str, Any], name: str, *, timed: bool) -> Callable[[Any], int]:
    """The function of a value to its id, by a vocabulary."""
    vocabulary = fitted["vocabulary"]
    null = fitted.get("null")
    first = 1 + last.unknown_ids
    ids = [first + i + (null is not None and i >= null) for i in range(len(vocabulary))]

    def unknown(value: Any) -> int:
        if last.unknown == "error":
            raise unknown_value(name, value, len(vocabulary))
        return 1 if last.unknown_ids == 1 else one_bucket(_unknown_hash(value), last.unknown_ids + 1, 0)

    return _looked_up(vocabulary, ids, 0 if null is None else first + null, unknown, timed=timed)


def _looked_up(
    vocabulary: Vocabulary, ids: Iterable[int], missing: int, unknown: Callable[[Any], int], *, timed: bool
) -> Callable[[Any], int]:
    """The function of a value to its id, of the ids of a vocabulary's values, of missing and of unknown ones."""
    known: dict[Any, int] = dict(zip(vocabulary.keys, ids, strict=False))
    unsigned = vocabulary.type == "uint64"

    def find(value: Any) -> int:
        if value is None or value != value:
            return missing
        found = known.get(nanoseconds(value) if timed else value)
        # As `IdTable` has it, no float is among numbers that need all 64 bits.
        if found is not None and not (unsigned and type(value) is float and value >= _SIGNED):
            return found
        return unknown(value)

    return find


_SIGNED = 2.0**63


def _of_cross(each: FittedOutput, last: Cross) -> OfRow:
    columns = [(column, checked(type_, column)) for column, type_ in zip(each.output.columns, each.types, strict=True)]
    if isinstance(last.of, Hash):
        n, seed = last.of.n, last.of.seed

        def of_hash(hashed: int) -> int:
            return one_bucket(hashed, n, seed)
    else:
        find = _category(last.of, each.fitted[-1], each.output.name, timed=False)

        def of_hash(hashed: int) -> int:
            return find(hashed - (1 << 64) if hashed >> 63 else hashed)  # as the vocabulary has it, int64

    def crossed(row: Row) -> int:
        values = [check(row[column]) for column, check in columns]
        if all(value is None for value in values):
            return 0
        return of_hash(one_crossed([one_hash(value) for value in values]))

    return crossed


def _of_date(each: FittedOutput, last: DateParts) -> list[tuple[str, OfRow]]:
    column = each.output.columns[0]
    check = checked(each.types[0], column)
    zone = last.zone or each.types[0].zone
    to = None if zone is None else zone_named(zone)

    def time_of(row: Row) -> Any:
        value = as_datetime(check(row[column]))
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
