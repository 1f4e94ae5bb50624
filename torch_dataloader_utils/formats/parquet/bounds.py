"""Removes minima and maxima of a wrong length from a Parquet footer, because pyarrow ends the process on them.

pyarrow decodes both as soon as anything in a column chunk's statistics is requested, even its null count. They have
a wrong length in damaged files, and in files whose writer shortens long values of fixed-size binary columns (Rust's
`parquet` does). Without them a filter skips fewer row groups; null counts stay.

A walk through the footer in Python would take longer than pyarrow's parser. So column chunks as common writers store
them are recognised by regular expressions (2 us), and only others are walked (60 us). The expressions are small:
every process that reads Parquet compiles them (4 ms) before its first batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.thrift import (
    BINARY,
    STRUCT,
    check_unseen,
    end_of,
    end_of_struct,
    field,
    fields,
    items,
    varint,
)
from torch_dataloader_utils.formats.possessive import MANY

# Fields of the footer's structs: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
_SCHEMA, _ROW_GROUPS, _CHUNKS, _CHUNK_METADATA, _STATISTICS, _NULL_COUNT = 2, 4, 1, 3, 12, 3
_BOUNDS = frozenset({1, 2, 5, 6})  # max, min, max_value, min_value

# The length in bytes of one value; 0 for strings, which have any.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 0}


def without_bad_bounds(footer: bytes, schema: pq.ParquetSchema) -> bytes:
    """The footer without those minima and maxima whose length is not their column type's; most footers unchanged.

    Args:
        footer: a FileMetaData struct that pyarrow has parsed.
        schema: its schema.

    Raises:
        ValueError: the footer's structure is not that of its schema, or a struct has a field twice.
    """
    kept, done = [], 0
    leaves = [_leaf(schema.column(number)) for number in range(len(schema))]
    for start, end, statistics in _replacements(footer, leaves):
        kept += [footer[done:start], statistics]
        done = end
    return b"".join([*kept, footer[done:]]) if kept else footer


class _Leaf(NamedTuple):
    """A leaf column: the bytes of one value (0: any number), and its path as it is stored; None for an unusual one."""

    width: int
    path: bytes | None


def _leaf(column: pq.ColumnSchema) -> _Leaf:
    kind = column.physical_type
    return _Leaf(column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[kind], _stored_path(column.path))


@lru_cache(maxsize=1 << 12)
def _stored_path(path: str) -> bytes | None:
    names = [name.encode() for name in path.split(".")]  # that of a name with a dot will not be found
    if len(names) > 14 or any(len(name) > 0x7F for name in names):
        return None
    return bytes([len(names) << 4 | BINARY]) + b"".join(bytes([len(name)]) + name for name in names)


def _replacements(footer: bytes, leaves: Sequence[_Leaf]) -> Iterator[tuple[int, int, bytes]]:
    """Start, end and substitute of each Statistics struct with bad bounds."""
    _, groups, at = items(footer, _value(footer, _end_of_schema(footer), _ROW_GROUPS, (_SCHEMA,)))
    for _ in range(groups):
        _, chunks, at = items(footer, _value(footer, at, _CHUNKS))
        if chunks != len(leaves):
            raise ValueError(f"a row group has {chunks} column chunks for {len(leaves)} columns.")
        for leaf in leaves:
            end = _end_of_common(footer, at, leaf)
            if end is None:
                yield from _replacement(footer, at, leaf.width)
                end = end_of_struct(footer, at)
            at = end
        at = end_of_struct(footer, at, _CHUNKS, (_CHUNKS,))
    end_of_struct(footer, at, _ROW_GROUPS, (_SCHEMA, _ROW_GROUPS))


def _end_of_schema(data: bytes) -> int:
    """The offset after the field `schema` of the footer."""
    _, elements, at = items(data, _value(data, 0, _SCHEMA, others=(_ROW_GROUPS,)))
    common = _element()
    for _ in range(elements):
        match = common.match(data, at)
        at = match.end() if match else end_of_struct(data, at)
    return at


def _value(data: bytes, at: int, wanted: int, seen: Sequence[int] = (), others: Sequence[int] = ()) -> int:
    """The offset of the value of a field of a struct, of which `at` is the start, or the field after the last `seen`.

    Raises:
        ValueError: it is missing, or behind one that was seen or one of the `others`.
    """
    number, kind, at = field(data, at, seen[-1] if seen else 0)
    while number != wanted:
        if not kind:
            raise ValueError(f"field {wanted} is missing.")
        check_unseen(number, (*seen, *others))
        number, kind, at = field(data, end_of(data, at, kind), number)
    return at


def _replacement(data: bytes, at: int, width: int) -> Iterator[tuple[int, int, bytes]]:
    """As `_replacements`, of the column chunk at this offset, whose values have this width."""
    for number, kind, metadata in fields(data, at):
        if (number, kind) == (_CHUNK_METADATA, STRUCT):
            for number, kind, start in fields(data, metadata):
                if (number, kind) == (_STATISTICS, STRUCT) and width and _has_bad_bounds(data, start, width):
                    yield start, end_of_struct(data, start), _without_bounds(data, start)


def _has_bad_bounds(data: bytes, statistics: int, width: int) -> bool:
    bounds = (at for number, kind, at in fields(data, statistics) if kind == BINARY and number in _BOUNDS)
    return any(varint(data, at)[0] != width for at in bounds)


def _without_bounds(data: bytes, statistics: int) -> bytes:
    """A Statistics struct that has the null count of the one at this offset, if any, and nothing else."""
    kept = b""
    for number, kind, at in fields(data, statistics):
        if number == _NULL_COUNT:  # the last one counts, as for other readers
            kept = bytes([_NULL_COUNT << 4 | kind]) + data[at : end_of(data, at, kind)]
    return kept + b"\x00"


def _end_of_common(data: bytes, at: int, leaf: _Leaf) -> int | None:
    """The offset after the column chunk at this offset; None if it is unusual or its bounds have another width."""
    (width, path), (before, after, rest) = leaf, _common()
    match = before.match(data, at)
    if match is None or path is None or not data.startswith(path, at := match.end()):
        return None
    match = after.match(data, at + len(path))
    if match is None:
        return None
    at = match.end()
    if data[at] in (0x1C, 0x3C):  # a struct: number 12 after 11 or 9, the statistics
        statistics = _statistics(width).match(data, at + 1)
        if statistics is None and width:
            return None
        at = statistics.end() if statistics else end_of_struct(data, at + 1)
    match = rest.match(data, at)
    return match and match.end()


# Regular expressions of the compact protocol. A field's header is its number's distance to the previous number, from
# 1 to 15, in the high 4 bits, and its kind in the low ones. A list's header has its length, up to 14, in the high bits.
_NUMBER = rb"(?:[\x80-\xff]{0,9}+[\x00-\x7f])"
_MOST_ITEMS = 6


def _header(*kinds: int) -> bytes:
    return b"[%b]" % b"".join(re.escape(bytes([step << 4 | kind])) for kind in kinds for step in range(1, 16))


def _list(kind: int, item: bytes) -> bytes:
    sizes = (b"%b%b{%d}" % (re.escape(bytes([size << 4 | kind])), item, size) for size in range(_MOST_ITEMS + 1))
    return b"(?:%b)" % b"|".join(sizes)


def _bytes(length: int) -> bytes:
    coded = bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
    return b"%b.{%d}" % (re.escape(coded), length)


_STRING = b"(?:%b)" % b"|".join(map(_bytes, range(128)))
_PLAIN = b"(?:%b|%b%b)" % (_header(1, 2), _header(4, 5, 6), _NUMBER)  # a boolean or a number
_NUMBERS = b"(?:%b(?:%b|%b))" % (_header(9), _list(5, _NUMBER), _list(6, _NUMBER))


@cache
def _element() -> re.Pattern[bytes]:
    """An element of the schema, with a logical type."""
    struct = rb"%b%b\x00" % (_PLAIN, MANY)
    for _ in range(3):  # as TIMESTAMP(unit=MILLIS) is stored
        struct = rb"(?:%b|%b%b)%b\x00" % (_PLAIN, _header(12), struct, MANY)
    fields = (_PLAIN, _header(8), _STRING, _header(12), struct)
    return re.compile(rb"(?:%b|%b%b|%b%b)%b\x00" % (*fields, MANY), re.DOTALL)


@cache
def _common() -> tuple[re.Pattern[bytes], re.Pattern[bytes], re.Pattern[bytes]]:
    """What a column chunk has before the path of its column, between that and the statistics, and after these."""
    # file_offset, meta_data {type, encodings, (path), codec, num_values, two sizes, and one or two offsets of pages
    before = rb"\x26%b\x1c\x15%b\x19%b\x19" % (_NUMBER, _NUMBER, _list(5, _NUMBER))
    after = rb"\x15N\x16N\x16N\x16N\x26N(?:\x26N)?".replace(b"N", _NUMBER)
    structs = _list(12, rb"(?:%b%b\x00)" % (_PLAIN, MANY))
    nested = rb"%b(?:%b|%b)%b\x00" % (_header(12), _PLAIN, _NUMBERS, MANY)
    rest = rb"(?:%b|%b|%b|%b%b)%b\x00" % (_PLAIN, _NUMBERS, nested, _header(9), structs, MANY)
    return re.compile(before), re.compile(after), re.compile(rb"(?:%b){2}" % rest)


@cache
def _statistics(width: int) -> re.Pattern[bytes]:
    """A Statistics struct with bounds of this width, from its first field to its end."""
    value = _bytes(width) if width else _STRING
    return re.compile(rb"(?:%b|%b%b)%b\x00" % (_PLAIN, _header(8), value, MANY), re.DOTALL)
