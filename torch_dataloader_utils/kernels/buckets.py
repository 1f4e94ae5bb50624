"""The bucket of each number among bounds: by the compiled library of buckets.c, or by numpy, with equal results."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.kernels.library import loaded

_FUNCTIONS = {"tdu_buckets": (c_void_p, c_size_t, c_void_p, c_size_t, c_void_p)}


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of buckets.c; None if there is none for this source and machine."""
    return loaded(Path(__file__).with_suffix(".c"), _FUNCTIONS, "numpy does its work, and buckets take longer")


def bucketed(values: npt.NDArray[np.float64], bounds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """1 + the number of bounds that are not greater than each value; 0 for NaN. Shape [n].

    Args:
        values: shape [n].
        bounds: finite, ascending, shape [k].
    """
    found = library()
    if found is None or not len(bounds):
        places = np.searchsorted(bounds, values, side="right") + 1
        places[np.isnan(values)] = 0
        return places
    values, bounds = np.ascontiguousarray(values, np.float64), np.ascontiguousarray(bounds, np.float64)
    out = np.empty(len(values), np.int64)
    found.tdu_buckets(values.ctypes.data, len(values), bounds.ctypes.data, len(bounds), out.ctypes.data)
    return out
