"""Every random draw of the package, from our own counter-based keys.

numpy does not guarantee stable streams across versions, so neither its generators nor Python's are used: a draw is
SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014) of a key and a counter.
There is no state to keep, and golden tests freeze the values.
"""

import hashlib
from operator import index

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_CHUNK = 1 << 14  # words created at a time: they stay in the processor's cache


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


def random_words(n: int, key: int, out: npt.NDArray[np.uint64] | None = None) -> npt.NDArray[np.uint64]:
    """`n` 64-bit words, shape [n], each a function of `key` and its index alone; in `out` if given."""
    words = np.empty(n, dtype=np.uint64) if out is None else out
    steps = np.arange(1, min(n, _CHUNK) + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    spare = np.empty_like(steps)
    for start in range(0, n, _CHUNK):
        part = words[start : start + _CHUNK]
        np.add(steps[: len(part)], np.uint64((key + start * _GAMMA) & _MASK), out=part)
        _mix(part, spare[: len(part)])
    return words


def permutation(n: int, key: int, out: npt.NDArray[np.uint64] | None = None) -> npt.NDArray[np.int64]:
    """A permutation of `range(n)`, int64, shape [n] (n < 2**32): a function of (n, key) alone; in `out` if given.

    Places sorted by 32-bit random words; equal words keep their order. Words and places are sorted together as 64-bit
    numbers, which numpy does with vector instructions: several times faster than sorting places by words.
    """
    pairs = random_words(n, key, out)
    pairs <<= np.uint64(32)
    for start in range(0, n, _CHUNK):
        part = pairs[start : start + _CHUNK]
        part |= np.arange(start, start + len(part), dtype=np.uint64)
    pairs.sort()
    pairs &= np.uint64(0xFFFFFFFF)
    return pairs.view(np.int64)


def random_below(n: int, key: int) -> int:
    """An integer in `[0, n)` (bias below n / 2**64)."""
    return int(random_words(1, key)[0]) * n >> 64
