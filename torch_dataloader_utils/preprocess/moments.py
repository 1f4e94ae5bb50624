"""The moments of a column: exact sums, which any files, threads and ranks merge to the same bits."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, fields
from typing import Any

from torch_dataloader_utils.kernels.moments import F64, UNIT, PowerSums, power_sums
from torch_dataloader_utils.storage.locks import ForkLock

_EMPTY = PowerSums()
_NAMES = tuple(field.name for field in fields(PowerSums))


class Moments:
    """What is known of a column's numbers: a function of the multiset of them, never of their order or their blocks.

    Several threads may add to it at once. -0.0 counts as 0.0.

    Args:
        sums: what is known at first.
    """

    def __init__(self, sums: PowerSums = _EMPTY) -> None:
        self._sums = sums  # one value, replaced as a whole: who reads it never sees half of what is added
        self._adding = ForkLock()

    def add(self, values: F64) -> None:
        """Add values.

        Args:
            values: float64, of any shape; others that are cast to it without loss, such as float32, are copied.
        """
        self._add(power_sums(values))

    def add_repeated(self, value: float, times: int) -> None:
        """Add a value as often as it says, which costs no more than once.

        Raises:
            ValueError: `times` is negative.
        """
        if times < 0:
            raise ValueError(f"a value cannot be added {times} times")
        if times:
            self._add(_repeated(float(value), int(times)))

    def merge(self, other: Moments) -> None:
        """Add all that another one knows; it is not changed."""
        self._add(other.sums)

    def _add(self, found: PowerSums) -> None:
        with self._adding:
            self._sums = self._sums.merged(found)

    @property
    def sums(self) -> PowerSums:
        """All that is known, at one moment."""
        return self._sums

    @property
    def count(self) -> int:
        """The number of finite values."""
        return self._sums.count

    @property
    def missing(self) -> int:
        """The number of values that are NaN."""
        return self._sums.missing

    @property
    def infinite(self) -> int:
        """The number of infinite values, of both signs."""
        return self._sums.infinite

    @property
    def least(self) -> float | None:
        """The least finite value; None: there is none."""
        return self._sums.least

    @property
    def greatest(self) -> float | None:
        """The greatest finite value; None: there is none."""
        return self._sums.greatest

    @property
    def total(self) -> int:
        """The exact sum of the finite values, in units of 2**-1074."""
        return self._sums.total

    @property
    def squares(self) -> int:
        """The exact sum of the squares of the finite values, in units of 2**-2148."""
        return self._sums.squares

    @property
    def mean(self) -> float:
        """The exact mean of the finite values, rounded once; 0.0 if there is none."""
        sums = self._sums
        return _rounded(sums.total, sums.count << UNIT) if sums.count else 0.0

    def variance(self, ddof: int = 0) -> float:
        """The exact variance of the finite values, rounded once; infinite beyond the range of float64.

        It is 0.0 for less than two values.

        Args:
            ddof: 0 divides by the number of values, 1 by one less.

        Raises:
            ValueError: `ddof` is another number.
        """
        return _rounded(*self._variance(ddof))

    def std(self, ddof: int = 0) -> float:
        """The square root of `variance`, rounded once more, also where that is beyond the range of float64.

        It is 0.0 only if all values are equal. Arguments and errors are those of `variance`.
        """
        numerator, denominator = self._variance(ddof)
        if not numerator:
            return 0.0
        # Times 4**k, the variance lies in the middle of the range.
        k = (denominator.bit_length() - numerator.bit_length()) // 2
        root = math.sqrt(_rounded(numerator << 2 * max(k, 0), denominator << 2 * max(-k, 0)))
        try:
            return max(math.ldexp(root, -k), math.ulp(0.0))
        except OverflowError:
            return math.inf

    def _variance(self, ddof: int) -> tuple[int, int]:
        """The exact variance, as numerator and denominator."""
        if ddof not in (0, 1):
            raise ValueError(f"ddof is 0 or 1, not {ddof!r}")
        sums = self._sums
        if sums.count < 2:
            return 0, 1
        spread = sums.count * sums.squares - sums.total**2  # Lagrange: the sum of (x - y)**2 over all pairs
        return spread, sums.count * (sums.count - ddof) << 2 * UNIT

    def to_json(self) -> dict[str, Any]:
        """All that is known, as JSON has it; the exact sums are texts: hexadecimal digits, "p", a power of two."""
        sums = self._sums
        return {**asdict(sums), "total": _digits(sums.total), "squares": _digits(sums.squares)}

    @classmethod
    def from_json(cls, saved: Any) -> Moments:
        """What `to_json` has returned, as it was.

        Raises:
            ValueError: it is nothing that `to_json` returns.
        """
        if not isinstance(saved, dict) or set(saved) != set(_NAMES):
            raise ValueError(f"moments are saved as an object of {', '.join(_NAMES)}")
        count, missing, infinite = (_count(name, saved[name]) for name in ("count", "missing", "infinite"))
        least, greatest = (_end(name, saved[name]) for name in ("least", "greatest"))
        total, squares = (_hexadecimal(name, saved[name]) for name in ("total", "squares"))
        sums = PowerSums(count, missing, infinite, least, greatest, total, squares)
        if problem := _contradiction(sums):
            raise ValueError(f"saved moments contradict themselves: {problem}")
        return cls(sums)

    def __eq__(self, other: object) -> bool:
        return self._sums == other.sums if isinstance(other, Moments) else NotImplemented


def _rounded(numerator: int, denominator: int) -> float:
    """A rational number as float64, correctly rounded as Python divides integers; never -0.0."""
    try:
        return numerator / denominator + 0.0
    except OverflowError:
        return math.inf  # only a variance is beyond the range, which is not negative


def _units(value: float) -> int:
    """A finite value, in units of 2**-1074."""
    numerator, denominator = value.as_integer_ratio()
    return numerator * ((1 << UNIT) // denominator)


def _repeated(value: float, times: int) -> PowerSums:
    """What is known of one value that is there so many times."""
    if math.isnan(value):
        return PowerSums(missing=times)
    if math.isinf(value):
        return PowerSums(infinite=times)
    units = _units(value)
    return PowerSums(times, 0, 0, value + 0.0, value + 0.0, times * units, times * units**2)


def _count(name: str, saved: Any) -> int:
    if type(saved) is not int or saved < 0:
        raise ValueError(f"{name!r} of saved moments is a whole number, at least 0, not {saved!r}")
    return saved


def _end(name: str, saved: Any) -> float | None:
    # repr tells -0.0, which is never written.
    if saved is not None and (type(saved) is not float or not math.isfinite(saved) or repr(saved) == "-0.0"):
        raise ValueError(f"{name!r} of saved moments is a finite float or null, not {saved!r}")
    return saved


def _digits(number: int) -> str:
    """A whole number, such as "-1fp1074": most have many zeros at their end."""
    zeros = max((number & -number).bit_length() - 1, 0)
    return f"{number >> zeros:x}p{zeros}"


def _hexadecimal(name: str, saved: Any) -> int:
    found = _DIGITS.fullmatch(saved) if isinstance(saved, str) else None
    number = 0 if found is None else int(found[1], 16) << int(found[2])
    if found is None or _digits(number) != saved:  # such as "01p2", which is another text of the same
        raise ValueError(f"{name!r} of saved moments is a whole number in hexadecimal digits, not {saved!r}")
    return number


_DIGITS = re.compile("(-?[0-9a-f]+)p([0-9]{1,4})", re.ASCII)


def _contradiction(sums: PowerSums) -> str | None:
    """Why no numbers have these sums; None: nothing is known against them."""
    if sums.count == 0:
        return None if sums == PowerSums(0, sums.missing, sums.infinite) else "sums without values"
    if sums.least is None or sums.greatest is None:
        return "values without the least or the greatest of them"
    if sums.least > sums.greatest:
        return f"the least value, {sums.least!r}, is greater than the greatest, {sums.greatest!r}"
    count, low, high = sums.count, _units(sums.least), _units(sums.greatest)
    # All values but two, which are the least and the greatest, lie between these; that holds for a single value, too.
    if not (count - 2) * low <= sums.total - low - high <= (count - 2) * high:
        return "a sum that values between the least and the greatest never have"
    if not sums.total**2 <= count * sums.squares <= (count * max(-low, high)) ** 2:
        return "a sum of squares that values between the least and the greatest never have"
    return None
