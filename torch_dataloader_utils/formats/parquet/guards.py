"""Parquet files on which pyarrow ends the process, reads other values, or refuses what is whole: one guard for each.

Each says what happens without it, and is to go with the pyarrow that no longer does it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.formats.parquet.thrift import (
    BINARY,
    STRUCT,
    check_unseen,
    coded_binary,
    end_of,
    end_of_struct,
    field,
    fields,
    items,
    signed,
    varint,
)
from torch_dataloader_utils.formats.possessive import MANY
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.schemas.depth import types_in
from torch_dataloader_utils.schemas.merge import without_dictionaries, without_views

# Removes minima and maxima of a wrong length from a Parquet footer, because pyarrow ends the process on them.
#
# pyarrow decodes both as soon as anything in a column chunk's statistics is requested, even its null count. They have
# a wrong length in damaged files, and in files whose writer shortens long values of fixed-size binary columns (Rust's
# `parquet` does). Without them a filter skips fewer row groups; null counts stay.
#
# A walk through the footer in Python would take longer than pyarrow's parser. So column chunks as common writers store
# them are recognised by regular expressions (2 us), and only others are walked (60 us). The expressions are small:
# every process that reads Parquet compiles them (4 ms) before its first batch.

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


@lru_cache(maxsize=1 << 14)
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


# Checks the dictionaries of columns that pyarrow reads as such: it does not, and their codes may name no value.


def check_dictionaries(column: pa.ChunkedArray) -> None:
    """Check that each code of a column that has dictionaries is the number of a value.

    Raises:
        ValueError: a code is not.
    """
    if pt.is_dictionary(column.type):
        for chunk in column.chunks:
            _check_codes(chunk)
    elif has_dictionary(column.type):
        column.validate(full=True)


def _check_codes(array: pa.DictionaryArray) -> None:
    ends = pc.min_max(array.indices)
    least, most, count = ends["min"].as_py(), ends["max"].as_py(), len(array.dictionary)
    if most is not None and not 0 <= least <= most < count:
        wrong = most if most >= count else least
        raise ValueError(f"its dictionary page is damaged: it has {count} values, and a row has number {wrong}.")


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether there are dictionaries in a type, at any depth."""
    if pt.is_dictionary(kind):
        return True
    return any(has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


# INT96 timestamps: pyarrow silently wraps around those that do not fit into 64-bit nanoseconds.


# INT96 columns are read again in this unit, which can represent every INT96 value with a calendar date.
COARSE = "ms"
# The unit for columns that schema= declares in a coarser unit than nanoseconds.
MICRO = "us"
# An option with which the reader of a table's files rounds times down to microseconds: they are the table's unit.
FLOORED = "floored"


def int96_columns(metadata: pq.FileMetaData, schema: pa.Schema) -> frozenset[str]:
    """The file's top-level columns that contain INT96 values."""
    leaves = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    return frozenset(schema.names).intersection(
        name for leaf in leaves if leaf.physical_type == "INT96" for name in names_above(leaf.path)
    )


def names_above(path: str) -> Iterator[str]:
    """The names that the top-level column of a leaf column may have: they may contain dots themselves."""
    return accumulate(path.split("."), "{}.{}".format)


def declared_coarser(wanted: pa.Schema, name: str) -> bool:
    """Whether a column is wanted with timestamps in a coarser unit than nanoseconds, and none in these."""
    place = wanted.get_field_index(name)
    units = {kind.unit for kind in types_in(wanted.field(place).type) if pt.is_timestamp(kind)} if place >= 0 else set()
    return bool(units) and "ns" not in units


def check_coarse(name: str, column: pa.ChunkedArray, *, micro: bool = False) -> None:
    """Check that the times of a column in milliseconds fit into 64-bit nanoseconds, or microseconds (`micro`).

    Raises:
        NotImplementedError: one does not; the message names the column and a remedy.
    """
    for leaf in (leaf for chunk in column.chunks for leaf in _timestamps(chunk)):
        bounds = pc.min_max(leaf.cast(pa.int64())).as_py()
        most = (2**63 - 1) // (10**3 if micro else 10**6)
        if bounds["min"] is not None and (bounds["min"] <= -most or bounds["max"] >= most):
            raise NotImplementedError(
                f"column {name} has INT96 timestamps that 64-bit microseconds do not hold: leave it out with columns=."
                if micro
                else f"column {name} has INT96 timestamps outside the years 1677 to 2262, which nanoseconds do not "
                "hold. Declare it in microseconds with schema=, such as pa.timestamp('us'), or leave it out with "
                "columns=."
            )


def check_whole(name: str, micros: pa.ChunkedArray, nanos: pa.ChunkedArray) -> None:
    """Check that the times of a column in microseconds are those in nanoseconds, which may have wrapped around.

    Raises:
        NotImplementedError: one has a fraction of a microsecond.
    """
    pairs = zip(micros.chunks, nanos.chunks, strict=True)
    for coarse, fine in ((a, b) for one, other in pairs for a, b in zip(_times(one), _times(other), strict=True)):
        with np.errstate(over="ignore"):
            if (coarse * 1000 != fine).any():
                raise NotImplementedError(
                    f"column {name} has INT96 timestamps with fractions of a microsecond: schema= has to declare it in "
                    "nanoseconds."
                )


def _times(array: pa.Array) -> Iterator[np.ndarray[Any, Any]]:
    """The numbers of the timestamps in a column or its children, 0 for nulls."""
    for leaf in _timestamps(array):
        yield pc.fill_null(leaf.cast(pa.int64()), 0).to_numpy()


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """The timestamps in a column or its children."""
    kind = array.type
    if pt.is_timestamp(kind):
        yield array
    elif pt.is_struct(kind):
        for field in array.flatten():
            yield from _timestamps(field)
    elif pt.is_map(kind):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif pt.is_nested(kind):
        yield from _timestamps(array.flatten())


# Recognizes 32-bit columns that pyarrow cannot read although they are whole: DuckDB's, in delta encoding.
#
# DELTA_BINARY_PACKED stores differences of neighbours, which wrap around in a 32-bit column, so that 32 bits hold
# them. DuckDB stores them unwrapped, in up to 33 bits, if its `PARQUET_VERSION` is v2. pyarrow refuses more than 32.

_ENCODING = 5  # the number of DELTA_BINARY_PACKED
_DATA, _DATA_V2 = 5, 8  # fields of a page header with the header of a data page
_CODECS = {"UNCOMPRESSED": None, "LZ4": "lz4_raw"}
_WIDE = 33  # bits of a difference of two differences of 32-bit integers; other widths would be damage
_TRUE = 1  # how Thrift codes a boolean field


def has_wide_deltas(source: pa.NativeFile, metadata: pq.FileMetaData, group: int, leaf: int) -> bool:
    """Whether a column chunk of 32-bit integers stores differences of more than 32 bits.

    Reads the whole chunk, and is False in doubt.

    Args:
        source: the file.
        metadata: its footer.
        group: the number of the row group.
        leaf: the number of the leaf column.
    """
    chunk = metadata.row_group(group).column(leaf)
    if chunk.physical_type != "INT32" or "DELTA_BINARY_PACKED" not in chunk.encodings:
        return False
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    data = source.read_at(chunk.total_compressed_size, start)
    column = metadata.schema.column(leaf)
    levels = sum(level > 0 for level in (column.max_repetition_level, column.max_definition_level))
    codec = _CODECS.get(chunk.compression, chunk.compression.lower())
    at = 0
    try:
        while at < len(data):
            wide, at = _page(data, at, codec, levels, chunk.total_uncompressed_size)
            if wide:
                return True
    except (ValueError, LookupError, OSError):  # pyarrow's errors are among them
        return False
    return False


def _page(data: bytes, at: int, codec: str | None, levels: int, most: int) -> tuple[bool, int]:
    """Whether the page at this offset has wide differences, and the offset after it."""
    header = {number: value for number, _, value in fields(data, at)}
    at = end_of_struct(data, at)
    plain, stored = signed(data, header[2]), signed(data, header[3])
    body, at = data[at : at + stored], at + stored
    if stored < 0 or plain > most:
        raise ValueError("the page is larger than its column chunk.")
    if _DATA in header:
        inner = {number: value for number, _, value in fields(data, header[_DATA])}
        values = _decompressed(body, plain, codec)
        for _ in range(levels):
            values = values[4 + int.from_bytes(values[:4], "little") :]
        return signed(data, inner[2]) == _ENCODING and _is_wide(values), at
    if _DATA_V2 in header:
        kinds = {number: kind for number, kind, _ in fields(data, header[_DATA_V2])}
        inner = {number: value for number, _, value in fields(data, header[_DATA_V2])}
        size = signed(data, inner[5]) + signed(data, inner[6])
        values = _decompressed(body[size:], plain - size, codec if kinds.get(7, _TRUE) == _TRUE else None)
        return signed(data, inner[4]) == _ENCODING and _is_wide(values), at
    return False, at  # a dictionary


def _decompressed(data: bytes, size: int, codec: str | None) -> bytes:
    return data if codec is None else pa.decompress(data, size, codec, asbytes=True)


def _is_wide(values: bytes) -> bool:
    """Whether a miniblock of these differences has 33 bits for each."""
    size, at = varint(values, 0)
    miniblocks, at = varint(values, at)
    left, at = varint(values, at)
    at, left, each = varint(values, at)[1], left - 1, size // miniblocks if miniblocks else 0
    while left > 0 and each > 0:
        at = varint(values, at)[1]  # the least difference of the block
        widths, at = values[at : at + miniblocks], at + miniblocks
        for width in widths:
            if left <= 0:
                break  # miniblocks without values may have any width
            if width == _WIDE:
                return True
            at, left = at + width * each // 8, left - each
    return False


# Reads strings and bytes as what pyarrow decodes best where the file's Arrow schema asks for something else.
#
# Rust's `parquet` (DataFusion, delta-rs) stores a schema with views, which say nothing about the file: they are the
# types that its writer had in memory. pyarrow would build them, and neither filters nor statistics accept them. They
# would be converted to large strings before anything else, which takes longer than reading them as such.
#
# The same schema asks for dictionaries. pyarrow cannot build them of columns in delta encodings (DELTA_BYTE_ARRAY,
# DELTA_LENGTH_BYTE_ARRAY), so these are read as plain strings or bytes, and encoded afterwards.

_KEY = b"ARROW:schema"
_DELTAS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})


def readable_types(footer: bytes, opened: pq.ParquetFile) -> tuple[bytes, pa.Schema]:
    """The footer with a stored Arrow schema that pyarrow can read as; most footers unchanged. And the file's schema.

    The schema has no views; top-level columns are dictionaries there that the returned footer has as plain values.

    Args:
        footer: a FileMetaData struct.
        opened: a file with this footer.
    """
    schema = opened.schema_arrow
    stored = (opened.metadata.metadata or {}).get(_KEY)
    if stored is None:
        return footer, schema
    types = [(kind, without_views(kind)) for kind in schema.types]
    names = [name for name, (kind, _) in zip(schema.names, types, strict=True) if without_dictionaries(kind) != kind]
    plain = delta_strings(opened.metadata, names) if names else frozenset()
    if not plain and all(better is kind or better == kind for kind, better in types):
        return footer, schema
    fields = [field.with_type(better) for field, (_, better) in zip(schema, types, strict=True)]
    read_as = [field.with_type(without_dictionaries(field.type)) if field.name in plain else field for field in fields]
    # Nested strings are not encoded afterwards.
    known = [field if pt.is_dictionary(field.type) else read for field, read in zip(fields, read_as, strict=True)]
    schema, stored_as = (pa.schema(each, schema.metadata) for each in (known, read_as))
    # The last place with this key and value is the one: only the writer's name and the order of columns follow.
    before, after, end = footer.rpartition(_KEY + b"\x18" + coded_binary(stored))
    value = base64.b64encode(stored_as.serialize())
    return (b"".join([before, _KEY, b"\x18", coded_binary(value), end]) if after else footer), schema


def delta_strings(metadata: pq.FileMetaData, names: Collection[str]) -> frozenset[str]:
    """Those of these top-level columns that have strings or bytes in delta encodings, in any row group."""
    groups, wanted = range(metadata.num_row_groups), frozenset(names)
    found: set[str] = set()
    for leaf in range(metadata.num_columns):
        above = wanted.intersection(names_above(metadata.schema.column(leaf).path))
        if above and any(not _DELTAS.isdisjoint(metadata.row_group(g).column(leaf).encodings) for g in groups):
            found.update(above)
    return frozenset(found)
