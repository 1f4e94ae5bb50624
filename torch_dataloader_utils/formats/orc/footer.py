"""What pyarrow does not expose of an ORC footer: the rows of each stripe, and which timestamps no Arrow array can hold.

pyarrow hands out the footer decompressed, as a protocol-buffers message; of its wire format, the little that is needed
here is read by hand. Field numbers are those of https://orc.apache.org/specification/ORCv1/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

# Timestamps are nanoseconds in Arrow arrays of ORC columns, and milliseconds in ORC's statistics.
_MOST_MILLISECONDS = (2**63 - 1) // 10**6

_DECIMAL, _MOST_DIGITS = 14, 38  # the kind of a type, and how large its precision may be

Value: TypeAlias = "int | bytes"


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """What planning and reading need of the footer.

    Attributes:
        stripes: (offset of its first byte, bytes as stored, rows) of each stripe.
        overflowing: top-level columns with timestamps that do not fit into 64 bits of nanoseconds.
        encrypted: whether columns are encrypted.
    """

    stripes: tuple[tuple[int, int, int], ...]
    overflowing: frozenset[str]
    encrypted: bool


def read_footer(tail: bytes) -> OrcFooter:
    """The footer in pyarrow's serialised file tail.

    Raises:
        ValueError: the bytes are no such message.
    """
    footer = _parts(b"".join(_parts(tail, 2)[2]), 3, 4, 7, 10)
    _check_decimals(footer[4])
    stripes = tuple(_stripe(data) for data in footer[3])
    return OrcFooter(stripes, _overflowing(footer[4], footer[7]), bool(footer[10]))


def _check_decimals(types: list[bytes]) -> None:
    """Refuse a precision that would end the process: pyarrow takes it as it is."""
    for data in types:
        numbers = _numbers(data)
        if numbers.get(1) == _DECIMAL and not 0 <= numbers.get(5, 0) <= _MOST_DIGITS:
            raise ValueError(f"ORC footer: a decimal of {numbers[5]} digits: expected {_MOST_DIGITS} at most.")


def _stripe(data: bytes) -> tuple[int, int, int]:
    numbers = _numbers(data)
    stored = sum(numbers.get(part, 0) for part in (2, 3, 4))  # index, data, footer
    return numbers.get(1, 0), stored, numbers.get(5, 0)


def _overflowing(types: list[bytes], statistics: list[bytes]) -> frozenset[str]:
    """Top-level columns whose statistics, or those of their children, have a timestamp that overflows.

    Types are numbered in pre-order: the children of a column follow it, up to the next column.
    """
    root = _parts(types[0], 2, 3) if types else {2: [], 3: []}
    starts = [number for data in root[2] for number in _packed(data)]
    names = [name.decode() for name in root[3]]
    beyond = [number for number, data in enumerate(statistics) if _overflows(data)]
    ranges = pairwise([*starts, len(types)])
    return frozenset(n for n, (a, b) in zip(names, ranges, strict=True) if any(a <= number < b for number in beyond))


def _overflows(column_statistics: bytes) -> bool:
    """Whether the least or greatest timestamp, in milliseconds, is beyond what 64 bits of nanoseconds hold."""
    bounds = [value for part in _parts(column_statistics, 9)[9] for n, value in _fields(part) if n in (1, 2, 3, 4)]
    return any(abs((value >> 1) ^ -(value & 1)) >= _MOST_MILLISECONDS for value in bounds if isinstance(value, int))


def _parts(data: bytes, *fields: int) -> dict[int, list[bytes]]:
    """The messages, strings and packed lists in these fields of a message."""
    parts: dict[int, list[bytes]] = {field: [] for field in fields}
    for number, value in _fields(data):
        if number in parts and isinstance(value, bytes):
            parts[number].append(value)
    return parts


def _numbers(data: bytes) -> dict[int, int]:
    """The numbers in the fields of a message."""
    return {number: value for number, value in _fields(data) if isinstance(value, int)}


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) of each field of a message, in its order; numbers as they are stored."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"ORC footer: wire type {kind} at byte {at}: expected 0, 1, 2 or 5.")
        if at + size > len(data):
            raise ValueError(f"ORC footer: a field of {size} bytes at byte {at} of {len(data)}.")
        yield key >> 3, data[at : at + size]
        at += size


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, 7 bits a byte, and where the next field begins."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"ORC footer: no number ends at byte {at} of {len(data)}.")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
