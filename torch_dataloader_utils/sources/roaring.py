"""Decodes 64-bit roaring bitmaps in portable form, within bounds that are known before anything is expanded.

A few bytes may stand for 2**32 rows, so the number of rows is checked first. CRoaring, which pyroaring wraps, checks
neither that nor its containers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

_NO_RUNS, _WITH_RUNS = 12346, 12347  # cookies
_LEAST_WITH_OFFSETS = 4  # containers
_ARRAY_MOST = 4096  # values of a container that is an array


def rows_in(data: bytes, most: int) -> Rows:
    """The numbers in a bitmap: int64, ascending.

    Args:
        data: the bitmap.
        most: how many numbers it may have.

    Raises:
        ValueError: it is damaged, has more numbers, or one of 2**63 or more.
    """
    parts: list[Rows] = []
    try:
        for part in _parts(_Bytes(data), most):
            if len(part) and parts and part[0] <= parts[-1][-1]:
                raise ValueError("its row numbers do not ascend: the bytes are damaged.")
            if len(part):
                parts.append(part)
    except IndexError as error:
        raise ValueError("it ends too early: the bytes are damaged.") from error
    return np.concatenate([np.zeros(0, np.int64), *parts])


class _Bytes:
    """Takes numbers from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int, kind: str) -> npt.NDArray[np.int64]:
        """So many numbers of this type."""
        return np.frombuffer(self._next(count * np.dtype(kind).itemsize), kind).astype(np.int64)

    def bits(self, count: int) -> npt.NDArray[np.uint8]:
        """So many bits, each as 0 or 1."""
        return np.unpackbits(np.frombuffer(self._next(-(-count // 8)), np.uint8), bitorder="little")[:count]

    def _next(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise IndexError(self._at)
        return self._data[begin : self._at]


def _parts(source: _Bytes, most: int) -> Iterator[Rows]:
    left = most
    maps, high = source.take(2, "<u4")
    if high:
        raise IndexError(high)
    for _ in range(maps):
        upper = int(source.take(1, "<u4")[0])
        if upper >= 1 << 31:
            raise ValueError("it has a row number of 2**63 or more, which no file has: it was written wrongly.")
        cookie = int(source.take(1, "<u4")[0])
        if cookie & 0xFFFF == _WITH_RUNS:
            count = (cookie >> 16) + 1
            runs = source.bits(count).astype(bool)
        elif cookie == _NO_RUNS:
            count = int(source.take(1, "<u4")[0])
            runs = np.zeros(min(count, 1 << 16), bool)
        else:
            raise ValueError(f"it has a part of an unknown kind, {cookie}: the bytes are damaged.")
        heads = source.take(2 * count, "<u2").reshape(-1, 2)
        sizes = heads[:, 1] + 1
        left -= int(sizes.sum())
        if left < 0:
            raise ValueError(f"it deletes {most - left} rows or more, but there are only {most}: one is wrong.")
        if cookie == _NO_RUNS or count >= _LEAST_WITH_OFFSETS:
            source.take(count, "<u4")
        for (key, _), size, run in zip(heads.tolist(), sizes.tolist(), runs.tolist(), strict=True):
            yield _container(source, size, run) + ((upper << 32) + (key << 16))


def _container(source: _Bytes, size: int, run: bool) -> Rows:
    """The lower 16 bits of the numbers in a container of `size` numbers."""
    if run:
        pairs = source.take(2 * int(source.take(1, "<u2")[0]), "<u2").reshape(-1, 2)
        lengths = pairs[:, 1] + 1
        if int(lengths.sum()) != size:
            raise ValueError("a part has another number of rows than it says: the bytes are damaged.")
        begins = np.repeat(pairs[:, 0] - (np.cumsum(lengths) - lengths), lengths)
        values = begins + np.arange(size)
    elif size <= _ARRAY_MOST:
        values = source.take(size, "<u2")
    else:
        values = np.flatnonzero(source.bits(1 << 16))
    if len(values) != size or (size > 1 and not (np.diff(values) > 0).all()) or values[-1] >= 1 << 16:
        raise ValueError("a part has another number of rows than it says, or not in order: the bytes are damaged.")
    return values.astype(np.int64)
