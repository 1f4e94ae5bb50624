"""The frozen hashes of values that `hashing` defines: by the compiled library, or by numpy, with equal results."""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_int, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils import hashing
from torch_dataloader_utils.hashing import NULL, U64
from torch_dataloader_utils.kernels.library import loaded
from torch_dataloader_utils.kernels.rows import addresses

_RECENT = 8192  # hashes that are left out if they come again

_FUNCTIONS = {
    "tdu_hash_bytes": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_int),
    "tdu_hash_ints": (c_void_p, c_void_p, c_size_t, c_uint64),
    "tdu_lesser_hashes": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_uint64, c_uint64),
}


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """That of hashes.c; None if there is none for this source and machine."""
    if sys.byteorder != "little":  # it reads words of bytes as numbers
        return None
    return loaded(Path(__file__).with_suffix(".c"), _FUNCTIONS, "numpy does its work, and hashing values takes longer")


def value_hashes(data: npt.NDArray[np.uint8], offsets: hashing.Offsets) -> U64:
    """The hash of each value, all bytes of it: shape [values].

    Args:
        data: the bytes of all values, contiguous.
        offsets: where value i begins and value i + 1 begins, int32 or int64 [values + 1], contiguous.
    """
    found = library()
    if found is None:
        return hashing.value_hashes(data, offsets)
    hashes, longer = np.empty(len(offsets) - 1, np.uint64), np.empty(1, np.uint64)
    sizes = len(data), len(hashes), hashing.LONGEST_CHAIN, offsets.itemsize == 8
    found.tdu_hash_bytes(*addresses(hashes, longer, data, offsets), *sizes)
    if longer[0]:
        hashing.hash_long_values(hashes, data, offsets)
    return hashes


def int_hashes(numbers: npt.NDArray[np.int64]) -> U64:
    """The hash of each whole number, shape [n]; `numbers` are contiguous."""
    found = library()
    if found is None:
        return hashing.int_hashes(numbers)
    hashes = np.empty(len(numbers), np.uint64)
    found.tdu_hash_ints(*addresses(hashes, numbers), len(hashes), NULL)
    return hashes


def lesser_int_hashes(numbers: npt.NDArray[np.int64], most: int) -> U64:
    """Those hashes of whole numbers, [n], that are at most `most`, not each as often as its number; contiguous."""
    found = library()
    if found is None:
        hashes = hashing.int_hashes(numbers)
        return hashes[hashes <= np.uint64(most)]
    hashes, kept, recent = np.empty(len(numbers), np.uint64), np.empty(1, np.uint64), np.zeros(_RECENT, np.uint64)
    found.tdu_lesser_hashes(*addresses(hashes, kept, recent), _RECENT, *addresses(numbers), len(numbers), NULL, most)
    return hashes[: int(kept[0])]
