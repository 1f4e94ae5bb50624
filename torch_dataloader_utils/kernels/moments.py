"""Exact sums of float64 values and of their squares: by the compiled library of moments.c, or by numpy, likewise.

A value is a whole number below 2**53, its significand, times a power of two. Significands of one sign and exponent are
added as integers, which is exact in any order; so are their squares. Few exponents occur in most columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import loaded
from torch_dataloader_utils.kernels.rows import addresses

F64: TypeAlias = npt.NDArray[np.float64]

UNIT = 1074  # every finite float64 is a whole number of 2**-1074

_FRACTION, _EXPONENTS = 52, 2048
_DIGITS = 68  # of 64 bits, of each sum that moments.c returns
_MOST = 1 << 22  # values whose squares, below 2**106, a bin of 128 bits holds
_BLOCK = 1 << 14  # values that numpy takes at a time: they stay in the processor's cache
_THIRD = 18  # bits: squares of significands in parts of 18 bits need 37, so that an int64 holds 2**26 of them


@dataclass(frozen=True, slots=True)
class PowerSums:
    """What is known of some numbers: a function of the multiset of them, and merged in any order.

    Attributes:
        count: the finite ones.
        missing: those that are NaN.
        infinite: those that are infinite, of both signs.
        least: the least finite one, never -0.0; None: there is none.
        greatest: the greatest finite one, likewise.
        total: the exact sum of the finite ones, in units of 2**-1074.
        squares: the exact sum of their squares, in units of 2**-2148.
    """

    count: int = 0
    missing: int = 0
    infinite: int = 0
    least: float | None = None
    greatest: float | None = None
    total: int = 0
    squares: int = 0

    def merged(self, other: PowerSums) -> PowerSums:
        """Those of the numbers of both."""
        return PowerSums(
            self.count + other.count,
            self.missing + other.missing,
            self.infinite + other.infinite,
            min((least for least in (self.least, other.least) if least is not None), default=None),
            max((greatest for greatest in (self.greatest, other.greatest) if greatest is not None), default=None),
            self.total + other.total,
            self.squares + other.squares,
        )


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of moments.c; None if there is none for this source and machine."""
    functions = {
        "tdu_power_sums": (c_void_p, c_void_p, c_void_p, c_size_t),
        "tdu_joined_sums": (c_void_p, c_void_p),
    }
    source = Path(__file__).with_name("moments.c")
    return loaded(source, functions, "numpy does its work, and sums of columns take longer")


def power_sums(values: F64) -> PowerSums:
    """What is known of these values, in one pass over them.

    Args:
        values: float64, of any shape; others that are cast to it without loss, such as float32, are copied.
    """
    flat = np.require(values, np.float64, ["C", "A"]).reshape(-1)
    kernel = library()
    found = PowerSums()
    for first in range(0, len(flat), _MOST):
        part = flat[first : first + _MOST]
        found = found.merged(_by_numpy(part) if kernel is None else _compiled(part, kernel))
    return found


def _compiled(values: F64, kernel: ctypes.CDLL) -> PowerSums:
    """Those of at most 2**22 values, by moments.c."""
    bins = np.zeros((2 * _EXPONENTS, 4), np.uint64)
    facts, sums = np.empty(4, np.uint64), np.empty((3, _DIGITS), np.uint64)
    kernel.tdu_power_sums(*addresses(bins, facts, values), len(values))
    kernel.tdu_joined_sums(*addresses(sums, bins))
    missing, infinite = (int(number) for number in facts[:2])
    count = len(values) - missing - infinite
    least, greatest = (float(end) + 0.0 if count else None for end in facts[2:].view(np.float64))
    above, below, squares = (int.from_bytes(row.astype("<u8", copy=False).tobytes(), "little") for row in sums)
    return PowerSums(count, missing, infinite, least, greatest, above - below, squares)


def _by_numpy(values: F64) -> PowerSums:
    """Those of at most 2**22 values, by numpy."""
    finite = np.isfinite(values)
    missing, infinite = 0, 0
    if not finite.all():
        missing = int(np.count_nonzero(np.isnan(values)))
        infinite = len(values) - missing - int(np.count_nonzero(finite))
        values = values[finite]
    least, greatest = (float(end()) + 0.0 if len(values) else None for end in (values.min, values.max))
    bins = np.zeros((7, 2 * _EXPONENTS), np.int64)
    for first in range(0, len(values), _BLOCK):
        bits = values[first : first + _BLOCK].view(np.int64)
        at = bits >> _FRACTION & 2 * _EXPONENTS - 1
        significands = bits & (1 << _FRACTION) - 1 | np.minimum(at & _EXPONENTS - 1, 1) << _FRACTION
        low = significands & (1 << _THIRD) - 1
        upper = significands >> _THIRD
        middle = upper & (1 << _THIRD) - 1
        high = upper >> _THIRD
        squares = low * low, low * middle, middle * middle + 2 * low * high, middle * high, high * high
        for bin_of, part in zip(bins, (low, upper, *squares), strict=True):
            np.add.at(bin_of, at, part)
    units = (0, _THIRD, 0, _THIRD + 1, 2 * _THIRD, 3 * _THIRD + 1, 4 * _THIRD)
    sums, products = _joined(bins[:2], units[:2], 1), _joined(bins[2:], units[2:], 2)
    return PowerSums(len(values), missing, infinite, least, greatest, sums, products)


def _joined(limbs: npt.NDArray[Any], units: Sequence[int], power: int) -> int:
    """The sum of the powers of values, in units of 2**(-1074 * power).

    Args:
        limbs: integers [limbs, 4096], not negative, by the sign and the exponent that the values begin with.
        units: the power of two that each limb is in units of.
        power: 1 or 2.
    """
    # Exponents that differ by 64 / power are those of the digits of one number of base 2**64.
    step = 64 // power
    digits = limbs.astype("<u8", copy=False).reshape(len(limbs), 2, _EXPONENTS // step, step)
    total = 0
    for limb, sign, first in np.argwhere(digits.any(axis=2)).tolist():
        number = int.from_bytes(digits[limb, sign, :, first].tobytes(), "little")
        if first == 0:  # subnormal values have the exponent 0, and the unit of those with the exponent 1
            number += int(digits[limb, sign, 0, 0]) * (2**power - 1)
        total += (-number if sign and power == 1 else number) << units[limb] + power * first
    return total >> power  # the unit of values with the exponent 1 is 2**-1074
