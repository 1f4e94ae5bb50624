"""Walks a value of Thrift's compact protocol, in which Parquet footers are written, without building objects.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

All functions raise ValueError or IndexError for bytes that are not such a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

STOP, BINARY, LIST, STRUCT = 0, 8, 9, 12
_INTEGERS, _SET, _MAP = (4, 5, 6), 10, 11
_FIXED = {1: 0, 2: 0, 3: 1, 7: 8, 13: 16}  # true, false, byte, double and UUID, in bytes
_IN_COLLECTIONS = {**_FIXED, 1: 1, 2: 1}  # where a boolean is not part of a field's header


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned number at this offset, and the offset after it."""
    value = shift = 0
    while data[at] >= 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def signed(data: bytes, at: int) -> int:
    """The signed number at this offset."""
    coded = varint(data, at)[0]
    return (coded >> 1) ^ -(coded & 1)


def coded_binary(value: bytes) -> bytes:
    """A value of the kind BINARY: its length, coded as an unsigned number, and its bytes."""
    head, length = bytearray(), len(value)
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + value


def field(data: bytes, at: int, previous: int = 0) -> tuple[int, int, int]:
    """The next field of a struct: its number, its kind, and the offset of its value.

    At the end of the struct the kind is STOP and the offset the one after the struct. Fields may have any numbers, in
    any order: Databricks' Photon stores -16384 after 6.
    """
    step, kind = divmod(data[at], 16)
    at += 1
    if kind == STOP:
        return previous, STOP, at
    number = previous + step
    if not step:
        number, at = signed(data, at), varint(data, at)[1]
    return number, kind, at


def fields(data: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """The number, kind and value's offset of each field of the struct at this offset."""
    number, kind, at = field(data, at)
    while kind != STOP:
        yield number, kind, at
        number, kind, at = field(data, end_of(data, at, kind), number)


def items(data: bytes, at: int) -> tuple[int, int, int]:
    """The kind of the items of the list at this offset, their number, and the offset of the first."""
    size, kind = divmod(data[at], 16)
    at += 1
    if size == 15:
        size, at = varint(data, at)
    return kind, size, at


def end_of(data: bytes, at: int, kind: int) -> int:
    """The offset after the value of this kind at this offset."""
    if kind in _INTEGERS:
        return varint(data, at)[1]
    if kind == BINARY:
        size, at = varint(data, at)
        return at + size
    if kind == STRUCT:
        return end_of_struct(data, at)
    if kind in (LIST, _SET):
        kind, size, at = items(data, at)
        return _end_of_items(data, at, (kind,), size)
    if kind == _MAP:
        return _end_of_map(data, at)
    return at + _fixed(kind, _FIXED)


def end_of_struct(data: bytes, at: int, previous: int = 0, seen: Collection[int] = ()) -> int:
    """The offset after a struct whose field after the one of the number `previous` is at this offset.

    Raises:
        ValueError: a field of those that were `seen` is there again: a reader that keeps the last one of two would use
            another than the one that was looked at.
    """
    number, kind, at = field(data, at, previous)
    while kind != STOP:
        check_unseen(number, seen)
        number, kind, at = field(data, end_of(data, at, kind), number)
    return at


def check_unseen(number: int, seen: Collection[int]) -> None:
    """Check that a field is none of those that must not be there (again).

    Raises:
        ValueError: it is.
    """
    if number in seen:
        raise ValueError(f"field {number} is there twice, or not where writers put it.")


def _end_of_map(data: bytes, at: int) -> int:
    size, at = varint(data, at)
    if not size:
        return at
    return _end_of_items(data, at + 1, divmod(data[at], 16), size)


def _end_of_items(data: bytes, at: int, kinds: tuple[int, ...], count: int) -> int:
    if count > len(data):
        raise ValueError(f"a collection of {count} items is larger than the footer.")
    if count > 1 and kinds == (STRUCT,):  # such as the orders of values, which are one for all columns
        first = data[at : end_of_struct(data, at)]
        if first and len(first) * count <= len(data) - at and data.startswith(first * count, at):
            return at + len(first) * count
    for _ in range(count):
        for kind in kinds:
            at = at + _fixed(kind, _IN_COLLECTIONS) if kind in _IN_COLLECTIONS else end_of(data, at, kind)
    return at


def _fixed(kind: int, sizes: dict[int, int]) -> int:
    if kind not in sizes:
        raise ValueError(f"there is no kind {kind} of values.")
    return sizes[kind]
