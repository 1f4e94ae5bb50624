"""Frozen 64-bit hashes of names, of rows by their place, and of the bytes of values; and choices of rows by them.

Golden tests freeze them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import UnsupportedTypeError

U64: TypeAlias = npt.NDArray[np.uint64]
Offsets: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
_CHUNK = 1 << 14  # rows hashed at a time: they stay in the processor's cache
LONGEST_CHAIN = 256  # bytes; above, one call of blake2b is faster than steps of a word


_STEP_BACK = pow(GAMMA, -1, MASK + 1)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # of SplitMix64's output: shift, factor
_STEPS_BACK = [(shift, pow(factor, -1, MASK + 1)) for shift, factor in reversed(_STEPS)]


def mixed(z: U64) -> U64:
    """SplitMix64's output function, a bijection of 64 bits, of each number; overwrites them."""
    spare = np.empty_like(z)
    for shift, factor in _STEPS:
        np.right_shift(z, np.uint64(shift), out=spare)
        z ^= spare
        z *= np.uint64(factor)
    return z


def digest(data: bytes | memoryview) -> int:
    """The first 64 bits of BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def name_hash(*parts: str | int) -> int:
    """A 64-bit hash of a name, such as a path, or of several parts."""
    text = "\x1f".join(map(str, parts))
    return digest(text.encode("utf-8", "surrogateescape"))


def number_hash(key: int, number: int) -> int:
    """The hash of one number under a key: that of `number_hashes` at this number."""
    return int(next(number_hashes(key, number, 1))[0])


def number_hashes(key: int, first: int, count: int) -> Iterator[U64]:
    """The hashes of the numbers `[first, first + count)` under a key, some thousands at a time."""
    steps = np.arange(1, min(count, _CHUNK) + 1, dtype=np.uint64) * np.uint64(GAMMA)
    for start in range(0, count, _CHUNK):
        part = steps[: count - start]
        yield mixed(part + np.uint64((key + (first + start) * GAMMA) & MASK))


def hashes_of_numbers(key: int, numbers: npt.NDArray[np.int64]) -> U64:
    """The hash of each number under a key, as `number_hashes` has it, shape [n]."""
    counters = numbers.astype(np.uint64)
    counters += np.uint64(1)
    counters *= np.uint64(GAMMA)
    counters += np.uint64(key)
    return mixed(counters)


def hashed_number(key: int, value: int) -> int:
    """The number below 2**64 that has this hash under a key."""
    for shift, inverse in _STEPS_BACK:
        value = value * inverse & MASK
        value ^= value >> shift ^ value >> 2 * shift
    return ((value - key) * _STEP_BACK - 1) & MASK


NULL = name_hash("null")  # the hash of a missing value, and what makes that of 0 another than 0


def int_hashes(numbers: npt.NDArray[np.int64]) -> U64:
    """The hash of each whole number, shape [n]."""
    return mixed(numbers.view(np.uint64) + np.uint64(NULL))


def whole(value: float) -> int:
    """The whole number that a float equals, as which it is hashed.

    Raises:
        UnsupportedTypeError: there is none from -2**63 to below 2**64.
    """
    if value.is_integer() and -(2**63) <= value < 2**64:
        return int(value)
    raise UnsupportedTypeError(
        f"{value!r} has no hash: floats are hashed as the whole numbers that they equal, such as 5.0 as 5, from -2**63 "
        "to below 2**64."
    )


def crossed(hashes: Sequence[U64]) -> U64:
    """The hash of each row's values in one or more columns, in order, by those of the values: each of shape [rows]."""
    rows = np.zeros(len(hashes[0]), np.uint64)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        for column in hashes:
            part += np.uint64(1)
            mixed(part)
            part ^= column[start : start + _CHUNK]
    return rows


def value_hashes(data: npt.NDArray[np.uint8], offsets: Offsets) -> U64:
    """The hash of each value, all bytes of it: shape [values].

    Args:
        data: the bytes of all values.
        offsets: where value i begins and value i + 1 begins, shape [values + 1].
    """
    parts = [
        _value_hashes(data[offsets[at] : offsets[min(at + _CHUNK, len(offsets) - 1)]], offsets[at : at + _CHUNK + 1])
        for at in range(0, len(offsets) - 1, _CHUNK)
    ]
    hashes: U64 = np.concatenate([np.zeros(0, np.uint64), *parts])
    hash_long_values(hashes, data, offsets)
    return hashes


def _value_hashes(data: npt.NDArray[np.uint8], absolute: Offsets) -> U64:
    """The hash of each value that is not too long; `data` begins with the first."""
    offsets = absolute - absolute[0]
    begins, sizes = offsets[:-1], np.diff(offsets)
    hashes = mixed(sizes.astype(np.uint64) + np.uint64(GAMMA))
    # A word may begin at any byte, and the last one of a value may end after the data.
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words: U64 = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))
    rows, at = np.flatnonzero((sizes > 0) & (sizes <= LONGEST_CHAIN)), 0
    while len(rows):
        left = np.minimum(sizes[rows] - at, 8).astype(np.uint64)
        kept = np.uint64(MASK) >> ((np.uint64(8) - left) * np.uint64(8))
        hashes[rows] = mixed(hashes[rows] ^ (words[begins[rows] + at] & kept))
        at += 8
        rows = rows[sizes[rows] > at]
    return hashes


def hash_long_values(hashes: U64, data: npt.NDArray[np.uint8], offsets: Offsets) -> None:
    """Set the hashes of values of more than `LONGEST_CHAIN` bytes; arguments as above."""
    held = data.data
    for row in np.flatnonzero(np.diff(offsets) > LONGEST_CHAIN).tolist():
        hashes[row] = digest(held[offsets[row] : offsets[row + 1]])


@dataclass(frozen=True, slots=True)
class Interval:
    """The hashes that lie in `[low, high)` once they are mixed with a salt; `low < high`."""

    salt: int
    low: int
    high: int

    def holds(self, hashes: U64) -> npt.NDArray[np.bool_]:
        """Whether each hash lies in the interval."""
        # Numbers below `low` become the largest ones; `high` may be 2**64.
        return (mixed(hashes ^ np.uint64(self.salt)) - np.uint64(self.low)) <= np.uint64(self.high - self.low - 1)


@dataclass(frozen=True)
class Choice:
    """The intervals in which the hash of a chosen row, segment or file lies."""

    intervals: tuple[Interval, ...]

    def holds(self, hashes: U64) -> npt.NDArray[np.bool_]:
        """Which of these hashes are chosen, shape [hashes]."""
        chosen = np.ones(len(hashes), np.bool_)
        for interval in self.intervals:
            chosen &= interval.holds(hashes)
        return chosen

    def holds_one(self, value: int) -> bool:
        """Whether this hash is chosen."""
        return bool(self.holds(np.array([value], np.uint64))[0])

    def rows(self, key: int, first: int, count: int) -> Iterator[npt.NDArray[np.bool_]]:
        """Which of the rows `[first, first + count)` are chosen, some thousands at a time; `key` is that of a file."""
        return (self.holds(hashes) for hashes in number_hashes(key, first, count))
