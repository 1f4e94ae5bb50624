"""Buckets of hashes and hashes of several columns; and the frozen hash of one Python value, without Arrow."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import UnsupportedTypeError
from torch_dataloader_utils.hashing import (
    GAMMA,
    LONGEST_CHAIN,
    MASK,
    NULL,
    U64,
    crossed,
    digest,
    mixed,
    name_hash,
    whole,
)

__all__ = ["buckets", "colliding", "crossed", "nanoseconds", "one_bucket", "one_crossed", "one_hash"]

Time: TypeAlias = dt.date | dt.time | dt.timedelta | np.datetime64 | np.timedelta64

_CHUNK = 1 << 14  # rows at a time: they stay in the processor's cache
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def buckets(hashes: U64, n: int, seed: int, name: str = "hash") -> npt.NDArray[np.int64]:
    """The bucket of each hash, in `[1, n)`, shape [hashes]: 0 is left for missing values, which are the caller's.

    Args:
        hashes: those of the values.
        n: the number of buckets and 0, from 2 to 2**31.
        seed: another seed, other buckets.
        name: of what they are for: buckets of another name are independent of these.
    """
    key = np.uint64(_key(seed, name))
    found = np.empty(len(hashes), np.uint64)
    for start in range(0, len(hashes), _CHUNK):
        part = mixed(hashes[start : start + _CHUNK] ^ key)
        part >>= np.uint64(32)
        part *= np.uint64(n - 1)
        part >>= np.uint64(32)
        np.add(part, np.uint64(1), out=found[start : start + _CHUNK])
    return found.view(np.int64)


def colliding(values: int, n: int) -> float:
    """The share of so many values that share their bucket, one of `n - 1`, with another value: what is expected."""
    if values < 2 or n == 2:
        return float(values > 1)
    return -math.expm1((values - 1) * math.log1p(-1 / (n - 1)))


def one_bucket(hash: int, n: int, seed: int) -> int:
    """The bucket of one hash, as `buckets` has it."""
    return 1 + ((_mixed(hash ^ _key(seed)) >> 32) * (n - 1) >> 32)


def one_crossed(hashes: Sequence[int]) -> int:
    """The hash of the values of one row in several columns, as `crossed` has it."""
    found = 0
    for each in hashes:
        found = _mixed((found + 1) & MASK) ^ each
    return found


def one_hash(value: object) -> int:
    """The frozen hash of one value: that of an Arrow array of it, `array_hashes(array, floats=True)`.

    Args:
        value: text, bytes, a whole number of 64 bits (also as a float or a bool), a date, a datetime (by its instant; a
            naive one as if in UTC), a time of day or a timedelta. None, NaN, NaT and pandas' NA are null. Scalars of
            numpy and pandas count as Python's.

    Raises:
        UnsupportedTypeError: a value of another type, a float that is not whole, or a number beyond 64 bits.
    """
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if isinstance(value, str):
        return _hash_bytes(value.encode())
    if isinstance(value, bytes):
        return _hash_bytes(value)
    if isinstance(value, float):
        return NULL if math.isnan(value) else _hash_int(whole(value))
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return _hash_int(value)
    if isinstance(value, Time):
        return NULL if value != value else _hash_time(*_seconds(value))  # NaT is not equal to itself
    if value is None or value is getattr(sys.modules.get("pandas"), "NA", None):
        return NULL
    raise UnsupportedTypeError(
        f"{value!r} ({type(value).__name__}) has no hash: expected text, bytes, a whole number of 64 bits, a bool, a "
        "date or a time."
    )


def _seconds(time: Time) -> tuple[int, int]:
    """Whole seconds since 1970, midnight or 0, rounded down, and nanoseconds."""
    if isinstance(time, np.datetime64):
        time = time - np.datetime64(0, "s")
    if isinstance(time, np.timedelta64):
        seconds, rest = divmod(time, np.timedelta64(1, "s"))
        return int(seconds), int(rest // np.timedelta64(1, "ns"))
    since = _since(time)
    finer = getattr(since, "nanoseconds", 0)  # of pandas' times
    return since.days * 86_400 + since.seconds, since.microseconds * 1000 + finer


def nanoseconds(time: Time) -> int:
    """Nanoseconds since 1970, midnight or 0, as `one_hash` has them: equal for equal instants in any zones."""
    seconds, rest = _seconds(time)
    return seconds * 10**9 + rest


def _since(time: dt.date | dt.time | dt.timedelta) -> dt.timedelta:
    if isinstance(time, dt.datetime):
        return time - (_EPOCH if time.utcoffset() is None else _EPOCH_UTC)
    if isinstance(time, dt.date):
        return time - _EPOCH.date()
    if isinstance(time, dt.time):
        return dt.timedelta(0, time.second, time.microsecond, 0, time.minute, time.hour)
    return time


@lru_cache
def _key(seed: int, name: str = "hash") -> int:
    return name_hash(name, seed)


def _mixed(z: int) -> int:
    """`hashing.mixed` of one number."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def _hash_bytes(value: bytes) -> int:
    if len(value) > LONGEST_CHAIN:
        return digest(value)
    found = _mixed(len(value) + GAMMA)
    for at in range(0, len(value), 8):
        found = _mixed(found ^ int.from_bytes(value[at : at + 8], "little"))
    return found


def _hash_int(value: int) -> int:
    return _mixed(value + NULL & MASK)


def _hash_time(seconds: int, nanoseconds: int) -> int:
    return _mixed(_hash_int(seconds) + nanoseconds & MASK)
