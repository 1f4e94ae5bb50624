"""Recognizes 32-bit columns that pyarrow cannot read although they are whole: DuckDB's, in delta encoding.

DELTA_BINARY_PACKED stores differences of neighbours, which wrap around in a 32-bit column, so that 32 bits hold them.
DuckDB stores them unwrapped, in up to 33 bits, if its `PARQUET_VERSION` is v2. pyarrow refuses more than 32.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.thrift import end_of_struct, fields, varint

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
    plain, stored = _number(data, header[2]), _number(data, header[3])
    body, at = data[at : at + stored], at + stored
    if stored < 0 or plain > most:
        raise ValueError("the page is larger than its column chunk.")
    if _DATA in header:
        inner = {number: value for number, _, value in fields(data, header[_DATA])}
        values = _decompressed(body, plain, codec)
        for _ in range(levels):
            values = values[4 + int.from_bytes(values[:4], "little") :]
        return _number(data, inner[2]) == _ENCODING and _is_wide(values), at
    if _DATA_V2 in header:
        kinds = {number: kind for number, kind, _ in fields(data, header[_DATA_V2])}
        inner = {number: value for number, _, value in fields(data, header[_DATA_V2])}
        size = _number(data, inner[5]) + _number(data, inner[6])
        values = _decompressed(body[size:], plain - size, codec if kinds.get(7, _TRUE) == _TRUE else None)
        return _number(data, inner[4]) == _ENCODING and _is_wide(values), at
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


def _number(data: bytes, at: int) -> int:
    """The signed number at this offset."""
    coded = varint(data, at)[0]
    return (coded >> 1) ^ -(coded & 1)
