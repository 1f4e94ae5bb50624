"""Weights as whole numbers of 24 bits, so that sums, counts and digests are exact."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.rows import I64

U32: TypeAlias = npt.NDArray[np.uint32]
F64: TypeAlias = npt.NDArray[np.float64]

_BITS = 24


@dataclass(frozen=True, eq=False)
class WholeWeights:
    """Weights that are these numbers times `2**-exponent`.

    A power of two, so that `values` are the same numbers again when they are set again, and updates add no error.

    Attributes:
        numbers: of each row, at most 2**24; 0 for a row that is never drawn, shape [rows].
        exponent: the same for all rows.
    """

    numbers: U32
    exponent: int

    @classmethod
    def of(cls, values: F64) -> WholeWeights:
        """These weights, shape [rows], as `checked` returns them, rounded up: positive ones are at least 1.

        Raises:
            OptionError: all are 0.
        """
        most = float(values.max(initial=0.0))
        if not most:
            raise OptionError(f"set_row_weights: all {len(values):,} weights are 0: one at least must be above 0.")
        mantissa, exponent = math.frexp(most)
        shift = _BITS - exponent + (mantissa == 0.5)  # a power of two becomes 2**24, which has its place, too
        numbers = np.ceil(_scaled(values, shift)).astype(np.uint32)
        numbers[(numbers == 0) & (values > 0)] = 1  # those that are too small for a float once they are scaled
        return cls(numbers, shift)

    @property
    def values(self) -> F64:
        """The weights, float64, shape [rows]."""
        return _scaled(self.numbers.astype(np.float64), -self.exponent)

    def updated(self, rows: I64, values: F64) -> WholeWeights:
        """With other weights of these rows, shape [any]; of a row that is given twice, the larger counts.

        Raises:
            OptionError: then all are 0.
        """
        weights = self.values
        weights[rows] = 0.0
        np.maximum.at(weights, rows, values)
        return WholeWeights.of(weights)

    @property
    def digest(self) -> str:
        """16 bytes that tell these numbers from others, in hexadecimal."""
        numbers = np.ascontiguousarray(self.numbers, "<u4")
        return hashlib.blake2b(numbers.data, digest_size=16).hexdigest()


def as_array(values: Any, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """A list, an array or a tensor as an array, of this dtype if one is given."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype)


def checked(values: Any, rows: int | None, of: str) -> F64:
    """Weights as float64, shape [rows].

    Args:
        values: numbers: a list, an array, or a tensor.
        rows: how many there should be; None for any number.
        of: what they are of, in words.

    Raises:
        OptionError: they are no numbers, or are too many or too few, or one is negative, NaN or infinite.
    """
    try:
        weights = as_array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"set_row_weights({shown(values)}): expected numbers, one for each {of}.") from error
    if weights.ndim != 1 or rows not in (None, len(weights)):
        expected = "of shape [rows]" if rows is None else f"of shape [{rows}]"
        raise OptionError(
            f"set_row_weights: got weights of shape {list(weights.shape)}: expected numbers {expected}, one for each "
            f"{of}."
        )
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise OptionError(
            f"set_row_weights: {len(wrong):,} weight(s) are negative, NaN or infinite; the first is number "
            f"{wrong[0]:,}, {float(weights[wrong[0]])!r}: expected finite numbers of at least 0."
        )
    return weights


def _scaled(values: F64, exponent: int) -> F64:
    scaled: F64 = np.ldexp(values, exponent)
    return scaled
