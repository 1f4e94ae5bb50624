"""Every random draw of the package, from our own counter-based keys.

numpy does not guarantee stable streams across versions, so neither its generators nor Python's are used: a draw is
SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) of a key and a counter.
There is no state to keep, and golden tests freeze the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_CHUNK = 1 << 14  # words created at a time: they stay in the processor's cache
_SORTED = 1 << 18  # words sorted at a time, likewise
_DRAWN = 1 << 14  # rows of the largest window whose order is drawn by sorting
_LARGEST = 1 << 30  # rows of the largest window that is divided into buckets
_BUCKET_BITS = (4, 15)  # at least 2**4 buckets; of 2**14 to 2**15 rows each where there are more

Count: TypeAlias = Callable[[npt.NDArray[Any], int], npt.NDArray[np.uint32]]
Select: TypeAlias = Callable[[npt.NDArray[np.uint16], int, int, npt.NDArray[np.uint16]], None]


def derive_key(*parts: int | str) -> int:
    """A 64-bit key from a purpose and integers, for example `derive_key("order", seed, epoch)`."""
    text = "\x1f".join(f"str:{part}" if isinstance(part, str) else f"int:{index(part)}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(z: npt.NDArray[np.uint64], spare: npt.NDArray[np.uint64]) -> None:
    """SplitMix64's output function of an array of counters, in place (arithmetic modulo 2**64).

    Args:
        z: the counters.
        spare: memory of the same shape, overwritten.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(z, np.uint64(shift), out=spare)
        z ^= spare
        z *= np.uint64(factor)


def random_words(n: int, key: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """The `n` 64-bit words from index `first` on, shape [n], each a function of `key` and its index alone."""
    words = np.empty(n, dtype=np.uint64)
    steps = np.arange(1, min(n, _CHUNK) + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    spare = np.empty_like(steps)
    for start in range(0, n, _CHUNK):
        part = words[start : start + _CHUNK]
        np.add(steps[: len(part)], np.uint64((key + (first + start) * _GAMMA) & _MASK), out=part)
        _mix(part, spare[: len(part)])
    return words


def permutation(n: int, key: int) -> npt.NDArray[np.int64]:
    """A permutation of `range(n)`, int64, shape [n] (n < 2**32): a function of (n, key) alone.

    Places sorted by 32-bit random words; equal words keep their order.
    """
    if n > _SORTED:
        return _merged_places(n, key)
    return _sorted_places(random_words(n, key).astype(np.uint32))


def _sorted_places(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The places of few words in ascending order, stable: numpy sorts 16-bit keys by radix, several times faster."""
    order = np.argsort(words.astype(np.uint16), kind="stable")
    high = (words >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")]


def _merged_places(n: int, key: int) -> npt.NDArray[np.int64]:
    """The places of many words in ascending order, stable: first by the highest byte, to sort within the cache."""
    runs = []  # (words, places, bounds of each highest byte) of each part, sorted by the highest byte
    for start in range(0, n, _SORTED):
        part = random_words(min(_SORTED, n - start), key, start).astype(np.uint32)
        order, bounds = _by_bucket((part >> np.uint32(24)).astype(np.uint8), 256)
        runs.append((part[order], (order + start).astype(np.uint32), bounds))
    places = np.empty(n, np.int64)
    end = 0
    for byte in range(256):
        cuts = [(values[b[byte] : b[byte + 1]], order[b[byte] : b[byte + 1]]) for values, order, b in runs]
        values, order = (np.concatenate(arrays) for arrays in zip(*cuts, strict=True))
        begin, end = end, end + len(order)
        places[begin:end] = order[_sorted_places(values)]
    return places


def _by_bucket(buckets: npt.NDArray[Any], number: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The places of few rows by bucket, stable, shape [n]; and where each of so many buckets begins, and the end."""
    bounds = np.cumsum(_count(buckets, number)).tolist()
    return np.argsort(buckets, kind="stable"), [0, *bounds]


def window_key(seed: int, *parts: int | str) -> int:
    """The key of a shuffle window's order: the seed decides its first 16 bits, which choose the base permutations."""
    return derive_key("windows", seed) >> 48 << 48 | derive_key(*parts) >> 16


def window_order(n: int, key: int) -> npt.NDArray[np.uint32]:
    """The order in which a window delivers its `n` rows, uint32, shape [n]: a permutation, uniform over all seeds.

    Small windows sort random words; for large ones see `WindowOrder`.
    """
    if WindowOrder.orders(n):
        return WindowOrder.drawn(n, key).places()
    return permutation(n, key).astype(np.uint32)


def _count(buckets: npt.NDArray[Any], number: int) -> npt.NDArray[np.uint32]:
    """The number of rows of each of so many buckets, uint32, shape [number]."""
    return np.bincount(buckets, minlength=number).astype(np.uint32)


def _select(base: npt.NDArray[np.uint16], factor: int, shift: int, out: npt.NDArray[np.uint16]) -> None:
    """Set `out`, of n numbers, to those below n of (factor * base + shift) modulo the size of `base`."""
    numbers = base * np.uint16(factor) + np.uint16(shift)
    numbers &= np.uint16(len(base) - 1)
    out[:] = numbers if len(out) == len(numbers) else numbers[numbers < np.uint16(len(out))]


@dataclass(frozen=True, slots=True, eq=False)
class WindowOrder:
    """The order of a large window's rows, in two steps that fit the processor's caches.

    Each row goes to a random bucket. The buckets are delivered one after another, each in an order of its own: together
    a uniform permutation (Rao 1961, Sandelius 1962). A bucket of s rows takes its order from a permutation P of
    2**k >= s numbers that is drawn once for each seed: (a * P[i] + r) mod 2**k without the numbers from s on, with an
    odd a and an r from the window's key. For every a and r it is as uniform as P.

    Attributes:
        buckets: the bucket of each row, uint8 or, if there are more than 256, uint16, shape [n].
        ends: the number of rows in each bucket and those before it, uint32, shape [buckets].
        local: for each row in order of delivery, its number among the rows of its bucket, uint16, shape [n].
    """

    buckets: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    ends: npt.NDArray[np.uint32]
    local: npt.NDArray[np.uint16]

    @staticmethod
    def orders(n: int) -> bool:
        """Whether windows of `n` rows have such an order."""
        return _DRAWN < n <= _LARGEST

    @staticmethod
    def drawn(n: int, key: int, count: Count = _count, select: Select = _select) -> WindowOrder:
        """The order that `n` and `key` determine.

        Args:
            n: the number of rows; `orders(n)`.
            key: the window's.
            count: another `_count`, with the same results.
            select: another `_select`, likewise.
        """
        bits = max(_BUCKET_BITS[0], (n - 1).bit_length() - _BUCKET_BITS[1])
        dtype = np.dtype("u1" if bits <= 8 else "<u2")
        words = random_words(-(-n * dtype.itemsize // 8), key)
        buckets = words.astype("<u8", copy=False).view(dtype)[:n]
        buckets &= dtype.type((1 << bits) - 1)
        sizes = count(buckets, 1 << bits)
        local, end = np.empty(n, np.uint16), 0
        maps = random_words(1 << bits, derive_key("window buckets", key))
        for size, word in zip(sizes.tolist(), maps.tolist(), strict=True):
            begin, end = end, end + size
            base = _base(max(0, size - 1).bit_length(), key >> 48)
            select(base, word >> 48 | 1, word & 0xFFFF, local[begin:end])
        return WindowOrder(buckets, np.cumsum(sizes, dtype=np.uint32), local)

    def places(self) -> npt.NDArray[np.uint32]:
        """The row that is delivered first, second, ...: uint32, shape [n]."""
        runs = []  # rows by bucket, and where each bucket begins, of parts that stay in the cache as they are sorted
        for start in range(0, len(self.buckets), _SORTED):
            order, bounds = _by_bucket(self.buckets[start : start + _SORTED], len(self.ends))
            runs.append(((order + start).astype(np.uint32), bounds))
        places, begin = np.empty(len(self.local), np.uint32), 0
        for bucket, end in enumerate(self.ends.tolist()):
            rows = np.concatenate([order[begins[bucket] : begins[bucket + 1]] for order, begins in runs])
            np.take(rows, self.local[begin:end], out=places[begin:end])
            begin = end
        return places


@lru_cache(maxsize=34)
def _base(bits: int, seed: int) -> npt.NDArray[np.uint16]:
    """The permutation of 2**bits numbers from which the buckets of a seed take their orders; bits <= 16."""
    return permutation(1 << bits, derive_key("window base", bits, seed)).astype(np.uint16)


def random_below(n: int, key: int) -> int:
    """An integer in `[0, n)` (bias below n / 2**64)."""
    return int(random_words(1, key)[0]) * n >> 64
