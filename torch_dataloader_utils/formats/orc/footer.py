"""The parts of an ORC footer that pyarrow does not expose: row counts of stripes, and timestamps beyond Arrow's range.

pyarrow provides the footer decompressed, as a Protocol Buffers message. The few fields needed here are parsed by hand.
Field numbers are from https://orc.apache.org/specification/ORCv1/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

# Timestamps are in nanoseconds in Arrow arrays read from ORC, and in milliseconds in ORC's statistics.
_MOST_MILLISECONDS = (2**63 - 1) // 10**6

_DECIMAL, _MOST_DIGITS = 14, 38  # the code of the type, and its maximum precision

Value: TypeAlias = "int | bytes"


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """The parts of the footer that planning and reading need.

    Attributes:
        stripes: (offset of its first byte, stored bytes, rows) for each stripe.
        overflowing: top-level columns with timestamps that do not fit into 64 bits of nanoseconds.
        encrypted: whether columns are encrypted.
    """

    stripes: tuple[tuple[int, int, int], ...]
    overflowing: frozenset[str]
    encrypted: bool


def read_footer(tail: bytes) -> OrcFooter:
    """The footer in pyarrow's serialised file tail.

    Raises:
        ValueError: the bytes are not a valid message.
    """
    footer = parts_of(b"".join(parts_of(tail, 2)[2]), 3, 4, 7, 10)
    _check_decimals(footer[4])
    stripes = tuple(_stripe(data) for data in footer[3])
    return OrcFooter(stripes, _overflowing(footer[4], footer[7]), bool(footer[10]))


def _check_decimals(types: list[bytes]) -> None:
    """Reject a precision that would crash the process, because pyarrow does not check it."""
    for data in types:
        numbers = numbers_of(data)
        if numbers.get(1) == _DECIMAL and not 0 <= numbers.get(5, 0) <= _MOST_DIGITS:
            raise ValueError(f"ORC footer: a decimal of {numbers[5]} digits: expected {_MOST_DIGITS} at most.")


def _stripe(data: bytes) -> tuple[int, int, int]:
    numbers = numbers_of(data)
    stored = sum(numbers.get(part, 0) for part in (2, 3, 4))  # index, data, footer
    return numbers.get(1, 0), stored, numbers.get(5, 0)


def _overflowing(types: list[bytes], statistics: list[bytes]) -> frozenset[str]:
    """Top-level columns with overflowing timestamps in their own statistics or those of their children.

    Types are numbered in pre-order: a column's children follow it, up to the next column.
    """
    root = parts_of(types[0], 2, 3) if types else {2: [], 3: []}
    starts = [number for data in root[2] for number in packed_numbers(data)]
    names = [name.decode() for name in root[3]]
    beyond = [number for number, data in enumerate(statistics) if _overflows(data)]
    ranges = pairwise([*starts, len(types)])
    return frozenset(n for n, (a, b) in zip(names, ranges, strict=True) if any(a <= number < b for number in beyond))


def _overflows(column_statistics: bytes) -> bool:
    """Whether the minimum or maximum timestamp, in milliseconds, exceeds the range of 64-bit nanoseconds."""
    bounds = [value for part in parts_of(column_statistics, 9)[9] for n, value in _fields(part) if n in (1, 2, 3, 4)]
    return any(abs((value >> 1) ^ -(value & 1)) >= _MOST_MILLISECONDS for value in bounds if isinstance(value, int))


def parts_of(data: bytes, *fields: int) -> dict[int, list[bytes]]:
    """The messages, strings and packed lists in these fields of a message."""
    parts: dict[int, list[bytes]] = {field: [] for field in fields}
    for number, value in _fields(data):
        if number in parts and isinstance(value, bytes):
            parts[number].append(value)
    return parts


def numbers_of(data: bytes) -> dict[int, int]:
    """The numbers in the fields of a message."""
    return {number: value for number, value in _fields(data) if isinstance(value, int)}


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) for each field of a message, in its order; numbers as stored."""
    at = 0
    while at < len(data):
        key, at = varint_at(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint_at(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = varint_at(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"ORC footer: wire type {kind} at byte {at}: expected 0, 1, 2 or 5.")
        if at + size > len(data):
            raise ValueError(f"ORC footer: a field of {size} bytes at byte {at} of {len(data)}.")
        yield key >> 3, data[at : at + size]
        at += size


def packed_numbers(data: bytes) -> Iterator[int]:
    """The numbers of a packed list."""
    at = 0
    while at < len(data):
        value, at = varint_at(data, at)
        yield value


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, with 7 bits per byte, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"ORC footer: no number ends at byte {at} of {len(data)}.")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
