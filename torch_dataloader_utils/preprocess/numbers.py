"""The numbers of a column as float64, and through the steps of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.convert.buffers import unpack
from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.kernels.numbers import compute
from torch_dataloader_utils.late_imports import as_arrow, pc
from torch_dataloader_utils.preprocess.steps import F64, NumberStep

_CHUNK = 8192  # numbers that numpy takes at a time: they stay in the processor's cache
# The quotient of an integer and a power of ten that are both exact as float64 is rounded once.
_EXACT_INTEGER = 2**53
_EXACT_POWER = 22
_WIDEST = 38  # digits of 128 bits


@dataclass(frozen=True, slots=True)
class NumberView:
    """Numbers of any type, which are read as float64.

    Attributes:
        values: shape [n], of any dtype.
        bitmap: a bit for each, 0 for null; None if none is null.
        first_bit: that of the first number.
    """

    values: npt.NDArray[Any]
    bitmap: pa.Buffer | None = None
    first_bit: int = 0

    @classmethod
    def of(cls, values: npt.NDArray[Any], array: pa.Array) -> NumberView:
        """These numbers, where the array is not null."""
        return cls(values, array.buffers()[0] if array.null_count else None, array.offset)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def valid(self) -> tuple[npt.NDArray[np.uint8], int] | None:
        """The bitmap and the first bit, if there are nulls."""
        return None if self.bitmap is None else (np.frombuffer(self.bitmap, np.uint8), self.first_bit)

    def into(self, out: F64, first: int) -> None:
        """Write the numbers from `first` on, as many as `out` has, with NaN for null and 0.0 for -0.0."""
        out[:] = self.values[first : first + len(out)]
        if self.bitmap is not None:
            out[~unpack(self.bitmap, self.first_bit + first, len(out))] = np.nan
        out += 0.0

    def all(self) -> F64:
        """All of them, in memory of their own."""
        out = np.empty(len(self))
        self.through((), out)
        return out

    def through(
        self, steps: Sequence[NumberStep], out: npt.NDArray[Any], missing: npt.NDArray[np.uint8] | None = None
    ) -> int:
        """Write what the steps of a chain make of the numbers.

        Args:
            steps: one after another.
            out: shape [n], float32 or float64.
            missing: shape [n]; where an `Impute` with an indicator found a number missing, 1 is written there, else 0.

        Returns:
            How many results are infinite.
        """
        infinite = compute(steps, self.values, self.valid, out, missing)
        return self._by_numpy(steps, out, missing) if infinite is None else infinite

    def _by_numpy(
        self, steps: Sequence[NumberStep], out: npt.NDArray[Any], missing: npt.NDArray[np.uint8] | None
    ) -> int:
        scratch, infinite = np.empty(min(_CHUNK, len(self))), 0
        with np.errstate(all="ignore"):
            for first in range(0, len(self), _CHUNK):
                x, made = scratch[: len(self) - first], out[first : first + _CHUNK]
                self.into(x, first)
                for step in steps:
                    if missing is not None and step.indicates:
                        missing[first : first + len(x)] = np.isnan(x)
                    step.apply(x)
                x += 0.0  # what bounds make of -0.0 depends on the processor
                made[:] = x
                infinite += int(np.count_nonzero(np.isinf(made)))
        return infinite

    def overflow(self, steps: Sequence[NumberStep], out: npt.NDArray[Any]) -> bool:
        """Whether the steps made a number infinite that was not, as one beyond the range of a dtype becomes.

        Args:
            steps: as of `through`.
            out: what that wrote.
        """
        x = self.all()[np.isinf(out)]
        infinite = np.isinf(x)
        with np.errstate(all="ignore"):
            for step in steps:
                if step.name == "log1p":
                    infinite |= x == -1  # log(0) is infinite in any dtype
                step.apply(x)
        return not infinite.all()


def numbers_of(array: pa.Array) -> NumberView:
    """The numbers of an array; decimals are rounded once.

    Raises:
        UnsupportedTypeError: it holds none.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type_ = array.type
    if pt.is_dictionary(type_):
        array = array.dictionary_decode()
        type_ = array.type
    if pt.is_null(type_):
        return NumberView(np.full(len(array), np.nan))
    if pt.is_boolean(type_):
        return NumberView.of(np.asarray(pc.fill_null(array, False)).view(np.uint8), array)
    if pt.is_decimal(type_):
        return NumberView.of(_of_decimals(array), array)
    if not (pt.is_integer(type_) or pt.is_floating(type_)):
        raise UnsupportedTypeError(f"values of type {type_} are not numbers.")
    width = type_.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return NumberView.of(np.zeros(len(array), type_.to_pandas_dtype()), array)
    held = np.frombuffer(data, type_.to_pandas_dtype(), len(array), array.offset * width)
    return NumberView.of(held, array)


def _of_decimals(array: pa.Array) -> F64:
    """The nearest float64 of each decimal; Arrow's own cast may be one off."""
    type_ = array.type
    if not len(array):
        return np.empty(0)
    if type_.precision > _WIDEST or not 0 <= type_.scale <= _EXACT_POWER:
        return _one_by_one(array)
    wide = array.cast(pa.decimal128(type_.precision, type_.scale))
    words = np.frombuffer(wide.buffers()[1], np.int64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    low = words[:, 0]
    made = low / np.float64(10**type_.scale)
    exact = (words[:, 1] == low >> 63) & (low >= -_EXACT_INTEGER) & (low <= _EXACT_INTEGER)
    if not exact.all():
        others = np.flatnonzero(~exact)
        made[others] = _one_by_one(array.take(as_arrow(others)))
    return made


def _one_by_one(decimals: pa.Array) -> F64:
    return np.array([0.0 if value is None else float(value) for value in decimals.to_pylist()], np.float64)
