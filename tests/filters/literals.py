"""Columns of every type, literals for them, and what a comparison of the two must come to, in plain Python."""

from __future__ import annotations

import operator
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from hypothesis import strategies as st

KINDS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(),
    pa.decimal128(9, 2), pa.decimal128(38, 2), pa.decimal256(50, 4),
    pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.binary(2), pa.binary(16),
    pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("us"),
    *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC", "Europe/Oslo")),
]  # fmt: skip
UUID_KINDS = [pa.binary(16)]
if hasattr(pa, "uuid"):  # pyarrow 18
    UUID_KINDS.append(pa.uuid())
    KINDS += [pa.uuid(), pa.decimal32(5, 2), pa.decimal64(9, 2)]
COMPARISONS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
NUMBERS = [0, 1, -1, 2, 127, 128, 300, -129, 2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**70]
FRACTIONS = [0.5, 1.1, 1.23, 1.25, -0.1, 2.675, 65519.0, 65520.0, 1e30, 3.4028235e38, 3.5e38, 1e300, -1e300]
DECIMALS = [Decimal(text) for text in ("1.1", "1.10", "1.234", "-0.1", "99.99", "999.995", "1e25", "1e-30", "1e400")]
_SECOND = 10**9
_DAY = 86_400 * _SECOND
_UNITS = {"s": _SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
# Nanoseconds since 1970: on days, seconds and finer.
MOMENTS = [0, _DAY, 19_723 * _DAY, 19_723 * _DAY + 3600 * _SECOND, -_DAY - 500 * 10**6, 19_723 * _DAY + 123_456_789, -1]
CLOCKS = [0, 3600 * _SECOND, 45_296 * _SECOND + 500 * 10**6, 45_296 * _SECOND + 123_456_000, 45_296 * _SECOND + 1]
FAR = datetime(9999, 12, 31)  # no column of nanoseconds holds it
TEXTS = ["", "a", "ab", "abc", "b", "é", "1", "true"]
BYTES = [b"", b"a", b"ab", b"abc", b"b\x00", b"\x00\x00", b"\xff\xff", b"\xff\xff\x00"]
UUIDS = [uuid.UUID(int=number) for number in (0, 1, 2**64, 2**127, 2**128 - 1)]


@dataclass(frozen=True)
class Lit:
    """A literal.

    Attributes:
        given: as a tuple or expression has it.
        value: what it compares as: a number, nanoseconds, bytes, text.
        sql: the literal in SQL text; None if it has none.
    """

    given: Any
    value: Any
    sql: str | None = None


def quoted(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


# ------------------------------------------------------------------------------------------------------------- columns


def column(kind: pa.DataType) -> pa.Array:
    """All values worth having in a column of this type, and a null in between."""
    if pt.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        cells = [int(limits.min), int(limits.max), *(n for n in NUMBERS if limits.min <= n <= limits.max)]
    elif pt.is_floating(kind):
        narrow = kind.to_pandas_dtype()
        with np.errstate(over="ignore"):
            cells = [narrow(x) for x in (*FRACTIONS, 0.0, -0.0, NAN, INF, -INF, float(np.finfo(narrow).max))]
    elif pt.is_decimal(kind):
        ends = [Decimal((sign, (9,) * kind.precision, -kind.scale)) for sign in (0, 1)]
        cells = [*ends, *(Decimal(text) for text in ("0.00", "1.10", "-0.10", "1.23", "2.00"))]
    elif pt.is_boolean(kind):
        cells = [True, False]
    elif pt.is_temporal(kind):
        unit = unit_of(kind)
        some = CLOCKS if pt.is_time(kind) else MOMENTS
        return pa.array([*(n // unit for n in some), None], _stored(kind)).cast(kind)
    elif kind in UUID_KINDS:
        cells = [item.bytes for item in UUIDS]
    elif kind == pa.binary(2):
        cells = [item for item in BYTES if len(item) == 2]
    else:
        cells = list(BYTES if pt.is_binary(kind) else TEXTS)
    return pa.array([*cells[:2], None, *cells[2:]], kind)


def unit_of(kind: pa.DataType) -> int:
    """Nanoseconds of a temporal type's unit."""
    return _DAY if pt.is_date32(kind) else _UNITS[getattr(kind, "unit", "ms")]


def _stored(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def values_of(cells: pa.Array) -> list[Any]:
    """The cells as Python compares them: numbers, nanoseconds, bytes, text; None for null."""
    kind = cells.type
    if pt.is_temporal(kind):
        unit = unit_of(kind)
        return [None if n is None else n * unit for n in cells.cast(_stored(kind)).to_pylist()]
    if pt.is_floating(kind):
        return [None if x is None else float(x) for x in cells.to_pylist()]
    if pt.is_decimal(kind):
        return [None if cell is None else Fraction(cell) for cell in cells.to_pylist()]
    return [cell.bytes if isinstance(cell, uuid.UUID) else cell for cell in cells.to_pylist()]


# ------------------------------------------------------------------------------------------------------------ literals


def literals(kind: pa.DataType) -> st.SearchStrategy[Lit]:
    """Literals that compare with a column of this type."""
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return _numbers(kind).map(lambda found: found if _fits_sql(found) else Lit(found.given, found.value))
    if pt.is_boolean(kind):
        return st.sampled_from([Lit(x, x, str(x).lower()) for x in (True, False)] + [Lit("TRUE", True, "'TRUE'")])
    if pt.is_duration(kind):
        spans = [Lit(timedelta(microseconds=n // 1000), n // 1000 * 1000) for n in (*MOMENTS, 2**60)]
        return st.sampled_from([*spans, *(Lit(np.timedelta64(n, "ns"), n) for n in MOMENTS)])
    if pt.is_time(kind):
        return st.sampled_from([Lit(_clock(n), n // 1000 * 1000) for n in CLOCKS] + _clock_texts(kind))
    if pt.is_temporal(kind):
        return st.sampled_from(_moments(kind))
    if kind == pa.binary(2):
        return st.sampled_from([Lit(item, item) for item in BYTES] + [Lit("ab", b"ab", "'ab'")])
    if kind in UUID_KINDS:
        given = [form for item in UUIDS for form in (Lit(item, item.bytes), Lit(str(item), item.bytes, f"'{item}'"))]
        return st.sampled_from([*given, *(Lit(item.bytes, item.bytes) for item in UUIDS)])
    if pt.is_binary(kind):
        return st.sampled_from([Lit(item, item) for item in BYTES])
    return st.sampled_from([Lit(item, item, quoted(item)) for item in TEXTS])


def _fits_sql(lit: Lit) -> bool:
    return lit.sql is not None and "E" not in lit.sql.upper() and len(lit.sql) < 60


def _numbers(kind: pa.DataType) -> st.SearchStrategy[Lit]:
    whole = st.sampled_from(NUMBERS) | st.integers(-5, 5) | st.integers(-(2**70), 2**70)
    floats = st.sampled_from([*FRACTIONS, NAN, INF, -INF, 0.0, -0.0]) | st.floats()
    exact = st.sampled_from(DECIMALS) | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    return st.one_of(
        whole.map(lambda n: Lit(n, _number(n, kind), str(n))),
        floats.map(lambda x: Lit(x, _number(x, kind))),
        floats.map(lambda x: Lit(np.float64(x), _number(x, kind))),
        exact.map(lambda d: Lit(d, _number(d, kind), f"{d:f}" if "." in f"{d:f}" else f"{d:f}.0")),
        st.integers(-128, 127).map(lambda n: Lit(np.int8(n), _number(n, kind))),
        _texts_of_numbers(kind),
    )


def _texts_of_numbers(kind: pa.DataType) -> st.SearchStrategy[Lit]:
    """Numbers of the type, in quotes."""
    cells = [cell for cell in column(kind).to_pylist() if cell is not None and abs(cell) < INF]
    texts = [f"{cell:f}" if isinstance(cell, Decimal) else str(cell) for cell in cells]
    return st.sampled_from([Lit(text, _number(Decimal(text), kind), quoted(text)) for text in texts])


def _number(given: Any, kind: pa.DataType) -> Any:
    """What a number compares as: rounded to a floating type unless beyond it; floats as written, over decimals."""
    if pt.is_floating(kind):
        try:
            with np.errstate(over="ignore"):
                near = float(kind.to_pandas_dtype()(float(given)))
        except OverflowError:
            return Fraction(given)
        return Fraction(given) if abs(near) == INF and abs(given) != INF else near
    if pt.is_decimal(kind) and given == given and abs(given) != INF:
        return Fraction(repr(given) if isinstance(given, float) else given)
    return given


def _clock(nanoseconds: int) -> time:
    return (datetime(1970, 1, 1) + timedelta(microseconds=nanoseconds // 1000)).time()


def _clock_texts(kind: pa.DataType) -> list[Lit]:
    found = [(n, f"{_clock(n - n % _SECOND)}.{n % _SECOND:09d}") for n in CLOCKS if n % unit_of(kind) == 0]
    return [Lit(text, n, quoted(text)) for n, text in [*found, (3600 * _SECOND, "01:00")]]


def _moments(kind: pa.DataType) -> list[Lit]:
    zone = UTC if pt.is_timestamp(kind) and kind.tz is not None else None
    start = datetime(1970, 1, 1, tzinfo=zone)
    found = [Lit(start + timedelta(microseconds=n // 1000), n // 1000 * 1000) for n in MOMENTS]
    found.append(Lit(FAR.replace(tzinfo=zone), (FAR - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000))
    found += [Lit(date(1970, 1, 1) + timedelta(days=n // _DAY), n) for n in MOMENTS if n % _DAY == 0]
    found += [Lit(np.datetime64(n, "ns"), n) for n in MOMENTS if zone is None]
    return found + [Lit(text, n, quoted(text)) for n in MOMENTS for text in _texts_of_moment(n, kind)]


def _texts_of_moment(nanoseconds: int, kind: pa.DataType) -> list[str]:
    moment = datetime(1970, 1, 1) + timedelta(seconds=nanoseconds // _SECOND)
    if nanoseconds % unit_of(kind):
        return []
    if pt.is_date(kind):
        return [f"{moment:%Y-%m-%d}"] if nanoseconds % _DAY == 0 else []
    fraction = f".{nanoseconds % _SECOND:09d}" if nanoseconds % _SECOND else ""
    if kind.tz is None:
        return [f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}", f"{moment:%Y-%m-%d %H:%M:%S}{fraction}"]
    east = moment + timedelta(hours=5, minutes=30)
    return [f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z", f"{east:%Y-%m-%dT%H:%M:%S}{fraction}+05:30"]


# ------------------------------------------------------------------------------------------------------------- oracle


@dataclass(frozen=True)
class Condition:
    """An operator and the literals behind it: one, or a list after `in` and `not in`."""

    word: str
    literals: tuple[Lit, ...]

    def tuples(self, name: str) -> list[tuple[str, str, Any]]:
        """The condition over this column as tuples."""
        given = [lit.given for lit in self.literals]
        return [(name, self.word, given if self.word.endswith("in") else given[0])]

    def sql(self, name: str) -> str | None:
        """The condition as SQL text; None where it cannot be said."""
        texts = [lit.sql for lit in self.literals]
        known = [text for text in texts if text is not None]
        sorts = {(text[0] == "'", "." in text and text[0] != "'") for text in known}
        if len(known) < len(texts) or len(sorts) != 1:  # pyiceberg's lists are of one sort
            return None
        return f"{name} {self.word} " + (f"({', '.join(known)})" if self.word.endswith("in") else known[0])

    def holds(self, value: Any) -> bool:
        """Whether it holds for a value of the column."""
        if value is None:
            return False
        if not self.word.endswith("in"):
            return bool(COMPARISONS[self.word](value, self.literals[0].value))
        return any(value == lit.value for lit in self.literals) is (self.word == "in")

    def places(self, cells: pa.Array) -> list[int]:
        """The places of the cells for which it holds."""
        return [place for place, value in enumerate(values_of(cells)) if self.holds(value)]


def conditions(kind: pa.DataType) -> st.SearchStrategy[Condition]:
    """Conditions over a column of this type."""
    one = st.builds(Condition, st.sampled_from(list(COMPARISONS)), st.tuples(literals(kind)))
    many = st.lists(literals(kind), min_size=1, max_size=3).map(tuple)
    return one | st.builds(Condition, st.sampled_from(["in", "not in"]), many)
