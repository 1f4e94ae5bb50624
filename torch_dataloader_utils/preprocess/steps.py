"""The steps of numeric chains, by numpy: each overwrites numbers, float64 [n], with what it makes of them.

Each operation is rounded by itself, as it is in numbers.c and for one number, so that all have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.preprocess.log1p import log1p

F64: TypeAlias = npt.NDArray[np.float64]


class NumberStep(NamedTuple):
    """What is done to numbers: the name of a function of this file, and its arguments."""

    name: str
    numbers: tuple[float, ...] = ()

    @property
    def indicates(self) -> bool:
        """Whether others want to know which numbers were missing before it."""
        return self.name == "fill" and self.numbers[1] != 0.0

    def apply(self, x: F64) -> None:
        """Overwrite numbers, shape [n], with what they become."""
        _FUNCTIONS[self.name](x, *self.numbers)


def _fill(x: F64, value: float, indicates: float) -> None:
    """The value in place of missing ones; see `NumberStep.indicates`."""
    x[np.isnan(x)] = value


def _part(x: F64, least: float, width: float, unit: float) -> None:
    """(x * unit - least) / width."""
    if unit != 1.0:
        np.multiply(x, unit, out=x)
    np.subtract(x, least, out=x)
    np.divide(x, width, out=x)


def _onto(x: F64, spread: float, low: float, high: float, from_high: float) -> None:
    """X * spread + low; of parts from `from_high` on, counted back from `high`."""
    upper = x >= from_high if from_high < math.inf else None
    of_upper = None if upper is None else high - spread * (1.0 - x[upper])
    np.multiply(x, spread, out=x)
    np.add(x, low, out=x)
    if upper is not None:
        x[upper] = of_upper


def _clip(x: F64, low: float, high: float) -> None:
    """min(max(x, low), high)."""
    np.maximum(x, low, out=x)
    np.minimum(x, high, out=x)
    np.add(x, 0.0, out=x)  # which of 0.0 and -0.0 is the greater depends on the machine


def _log1p(x: F64) -> None:
    """log(1 + x)."""
    x[:] = log1p(x)


def _signed_log1p(x: F64) -> None:
    """sign(x) log(1 + abs(x))."""
    negative = x < 0
    np.abs(x, out=x)
    x[:] = log1p(x)
    np.negative(x, out=x, where=negative)


_FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "fill": _fill,
    "part": _part,
    "onto": _onto,
    "clip": _clip,
    "log1p": _log1p,
    "signed_log1p": _signed_log1p,
}
