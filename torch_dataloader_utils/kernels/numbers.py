"""Numbers through the steps of a chain, by the compiled library of numbers.c; there is none on all machines.

`preprocess.steps` defines the steps, and computes the same bits by numpy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import loaded
from torch_dataloader_utils.kernels.rows import Bytes, addresses

_FUNCTIONS = {"tdu_numbers": (c_void_p, c_int, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)}
# Both in the order of numbers.c.
_NAMES = ("fill", "part", "onto", "clip", "log1p", "signed_log1p")
_DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_STEPS = {name: place for place, name in enumerate(_NAMES)}
_TYPES = {np.dtype(name): place for place, name in enumerate(_DTYPES)}
_STEP = np.dtype([("kind", np.int64), ("numbers", np.float64, 4)])


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of numbers.c; None if there is none for this source and machine."""
    return loaded(Path(__file__).with_suffix(".c"), _FUNCTIONS, "numpy does its work, and numbers take longer")


def compute(
    steps: Sequence[tuple[str, Sequence[float]]],
    values: npt.NDArray[Any],
    valid: tuple[Bytes, int] | None,
    out: npt.NDArray[Any],
    missing: npt.NDArray[np.uint8] | None = None,
) -> int | None:
    """Write what steps make of numbers.

    Args:
        steps: the name of each, and its numbers, at most 4.
        values: shape [n], of any dtype of numbers, contiguous.
        valid: a bitmap, and which of its bits is that of the first number; 0 is null, which is NaN. None: no nulls.
        out: shape [n], float32 or float64, contiguous.
        missing: shape [n]: a "fill" whose second number is not 0 writes there which numbers were missing.

    Returns:
        How many results are infinite; None, and nothing is written, if there is no library.
    """
    found = library()
    if found is None:
        return None
    if values.dtype not in _TYPES:
        with np.errstate(invalid="ignore"):  # some NaN say so
            values = values.astype(np.float64)
    values = np.require(values, requirements=["C", "A"])  # in IPC files buffers may not be aligned
    bitmap, first = (0, 0) if valid is None else (valid[0].ctypes.data, valid[1])
    column = np.array([values.ctypes.data, _TYPES[values.dtype], bitmap, first], np.uint64)
    program = np.zeros(len(steps), _STEP)
    for place, (name, numbers) in enumerate(steps):
        program[place]["kind"] = _STEPS[name]
        program[place]["numbers"][: len(numbers)] = numbers
    infinite = np.zeros(1, np.uint64)
    to, of, chain, beyond = addresses(out, column, program, infinite)
    absent = None if missing is None else missing.ctypes.data
    found.tdu_numbers(to, out.itemsize == 8, of, len(values), chain, len(steps), absent, beyond)
    return int(infinite[0])
