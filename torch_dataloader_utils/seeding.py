"""Every random draw of the package, from counter-based keys of our own.

numpy does not promise that its streams stay the same over versions, so neither its generators nor Python's are used:
a draw is SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) of a key and a
counter. There is no state to keep, and golden tests freeze the values.
"""

import hashlib

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def derive_key(*parts: int | str) -> int:
    """A 64-bit key from a purpose and integers, for example `derive_key("order", seed, epoch)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function of an array of counters (shape kept; arithmetic modulo 2**64)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_words(n: int, key: int) -> npt.NDArray[np.uint64]:
    """`n` 64-bit words, shape [n], each a function of `key` and its index alone."""
    counters = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(key & _MASK)
    return _mix(counters)


def permutation(n: int, key: int) -> npt.NDArray[np.int64]:
    """A permutation of `range(n)`, int64, shape [n]: a function of (n, key) alone.

    Sorts 32-bit random words by two stable passes over their 16-bit halves (numpy sorts uint16 by radix), which is
    several times faster than sorting 64-bit words; equal words keep their order.
    """
    words = random_words(n, key)
    low = (words & np.uint64(0xFFFF)).astype(np.uint16)
    high = ((words >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.uint16)
    by_low = np.argsort(low, kind="stable")
    return by_low[np.argsort(high[by_low], kind="stable")].astype(np.int64, copy=False)


def random_below(n: int, key: int) -> int:
    """An integer in `[0, n)` (bias below n / 2**64)."""
    return int(random_words(1, key)[0]) * n >> 64
