"""Every random draw of the package, from our own counter-based keys.

numpy does not guarantee stable streams across versions, so neither its generators nor Python's are used: a draw is
SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) of a key and a counter.
There is no state to keep, and golden tests freeze the values.
"""

import hashlib
from functools import lru_cache
from operator import index

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_CHUNK = 1 << 14  # words created at a time: they stay in the processor's cache
_SORTED = 1 << 18  # words sorted at a time, likewise
_DRAWN = 1 << 16  # rows of the largest window whose order is drawn anew
_LARGEST = 1 << 23  # rows of the largest window that takes its order from a base, which fills 4 bytes per row


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
        high = (part >> np.uint32(24)).astype(np.uint8)
        order = np.argsort(high, kind="stable")
        bounds = np.searchsorted(high[order], np.arange(257)).tolist()
        runs.append((part[order], (order + start).astype(np.uint32), bounds))
    places = np.empty(n, np.int64)
    end = 0
    for byte in range(256):
        cuts = [(values[b[byte] : b[byte + 1]], order[b[byte] : b[byte + 1]]) for values, order, b in runs]
        values, order = (np.concatenate(arrays) for arrays in zip(*cuts, strict=True))
        begin, end = end, end + len(order)
        places[begin:end] = order[_sorted_places(values)]
    return places


def window_key(seed: int, *parts: int | str) -> int:
    """The key of a shuffle window's order: the seed decides its first 16 bits, which choose the base permutation."""
    return derive_key("windows", seed) >> 48 << 48 | derive_key(*parts) >> 16


def window_order(n: int, key: int) -> npt.NDArray[np.uint32]:
    """The order in which a window delivers its `n` rows, uint32, shape [n]: a permutation, uniform over all seeds.

    Small windows draw one. For large windows, which would spend more time on drawing than on reading, one permutation
    P of 2**k > n numbers is drawn for each seed, and the order is (a * P[i] + r) mod 2**k, without the numbers above n,
    with an odd a and an r from the window's key. For every a and r it is as uniform as P.
    """
    if not _DRAWN < n <= _LARGEST:
        return permutation(n, key).astype(np.uint32)
    bits = (n - 1).bit_length()
    base = _base(bits, key >> 48)
    factor, shift = (np.uint32(int(word) >> 32) for word in random_words(2, key))
    factor |= np.uint32(1)
    order, end = np.empty(n, np.uint32), 0
    spare = np.empty(min(_SORTED, len(base)), np.uint32)
    for start in range(0, len(base), len(spare)):
        np.multiply(base[start : start + len(spare)], factor, out=spare)
        np.add(spare, shift, out=spare)
        np.bitwise_and(spare, np.uint32(len(base) - 1), out=spare)
        kept = spare[spare < n]
        begin, end = end, end + len(kept)
        order[begin:end] = kept
    return order


@lru_cache(maxsize=4)
def _base(bits: int, seed: int) -> npt.NDArray[np.uint32]:
    """The permutation of 2**bits numbers from which the windows of a seed take their orders."""
    return permutation(1 << bits, derive_key("window base", bits, seed)).astype(np.uint32)


def random_below(n: int, key: int) -> int:
    """An integer in `[0, n)` (bias below n / 2**64)."""
    return int(random_words(1, key)[0]) * n >> 64
