"""Decodes flat columns of local files by the package's own decoder (kernels/pages.c), all of a row group in one call.

pyarrow decodes into fresh memory, a column per call, and each call waits for the GIL beside a busy training loop. Here
one call decodes all columns, without the GIL, at half of pyarrow's processor time.

Whatever is not suited, or is refused for any reason, pyarrow decodes: so its errors, messages and leniency remain.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.formats.sizes import leaf_count
from torch_dataloader_utils.kernels.library import pages_library

# The numbers of a chunk, as the struct of this name in pages.c has them.
_FIELDS = (
    *("file", "start", "length", "codec", "type", "stored", "width", "optional", "rows"),
    *("values", "valid", "first", "checked", "nulls", "refused"),
)
_VALUES, _VALID, _FIRST, _, _NULLS, _REFUSED = range(len(_FIELDS) - 6, len(_FIELDS))

# Numbers of parquet.thrift.
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "ZSTD": 6}
_KINDS = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "FIXED_LEN_BYTE_ARRAY": 7}
_WIDTHS = {"BOOLEAN": 0, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}

# How values of these Arrow types must be stored for their bits to be those of the type.
_STORED = {
    pa.bool_(): "BOOLEAN",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.date32()), "INT32"),
    **dict.fromkeys((pa.int64(), pa.uint64()), "INT64"),
    pa.float16(): "FIXED_LEN_BYTE_ARRAY",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
}
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

_MOST_BYTES = 32 << 20  # decoded bytes of one call: some 10 ms of work, and few enough for every thread to hold them
_KEPT = 16 << 20  # bytes of memory for compressed and decompressed pages that a thread keeps between calls
_MOST_CHUNK = 1 << 30  # bytes of a chunk: of larger ones, pyarrow reads a page at a time
_SLACK = 1 << 10  # bytes that a chunk takes of that memory besides its own, because parts of it lie at 64 bytes

_scratch = threading.local()


class _Form(NamedTuple):
    """How a column is stored, and what its values become.

    Attributes:
        leaf: its number among the leaf columns.
        type: the Arrow type.
        kind: the number of the physical type.
        stored: bytes of a stored value; 0 for booleans, which are bits.
        width: bytes of a value of the type; 0 likewise.
        optional: whether values may be null.
    """

    leaf: int
    type: pa.DataType
    kind: int
    stored: int
    width: int
    optional: bool

    def room(self, rows: int) -> int:
        """Bytes of the values of so many rows."""
        return rows * self.width if self.width else -(-rows // 8)


class PageDecoder:
    """Decodes columns of an open local file. Used by one thread at a time.

    Args:
        source: the file, open.
        metadata: its footer.
        schema: its columns, as pyarrow reads them.
        verified: whether the checksums of pages are verified.
    """

    def __init__(self, source: pa.OSFile, metadata: pq.FileMetaData, schema: pa.Schema, verified: bool) -> None:
        self._source, self._metadata, self._schema, self._verified = source, metadata, schema, verified
        self._forms: dict[str, _Form | None] = {}
        self._leaves: dict[str, int] | None = None
        self._room = 0  # bytes of memory that the chunks seen so far need

    @staticmethod
    def usable(source: pa.NativeFile) -> bool:
        """Whether it can decode this open file in this process."""
        return isinstance(source, pa.OSFile) and pages_library() is not None

    def together(self, columns: Sequence[str], rows: int) -> list[str]:
        """The first of these columns that one call decodes best, in order; none if none is suited.

        Args:
            columns: names of columns.
            rows: of the row groups that are read together.
        """
        names: list[str] = []
        size = 0
        for name in columns:
            form = self._form(name)
            if form is not None:
                size += form.room(rows)
                if names and size > _MOST_BYTES:
                    break
                names.append(name)
        return names

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The rows of these row groups, for those of the columns that were decoded; pyarrow must read the others."""
        forms = {name: form for name in columns if (form := self._form(name)) is not None}
        counts = [self._metadata.row_group(group).num_rows for group in groups]
        chunks = [self._chunks(group, count, forms) for group, count in zip(groups, counts, strict=True)]
        forms = {name: form for name, form in forms.items() if all(name in chunk for chunk in chunks)}
        rows = sum(counts)
        if not forms or not rows:
            return {}
        table = np.array([chunk[name] for chunk in chunks for name in forms], np.int64)
        values = [pa.allocate_buffer(form.room(rows)) for form in forms.values()]
        valid = [pa.allocate_buffer(-(-rows // 8)) if form.optional else None for form in forms.values()]
        bits = [buffer for buffer, form in zip(values, forms.values(), strict=True) if not form.width]
        for buffer in (*bits, *valid):
            if buffer is not None:
                np.frombuffer(buffer, np.uint8)[:] = 0
        by_group = table.reshape(len(groups), len(forms), len(_FIELDS))
        by_group[:, :, _VALUES] = [buffer.address for buffer in values]
        by_group[:, :, _VALID] = [0 if buffer is None else buffer.address for buffer in valid]
        by_group[:, :, _FIRST] = (np.cumsum(counts) - counts)[:, None]
        _decode(table, self._room)
        nulls: list[int] = by_group[:, :, _NULLS].sum(0).tolist()
        refused: list[int] = by_group[:, :, _REFUSED].max(0).tolist()
        return {
            name: pa.chunked_array(
                [pa.Array.from_buffers(form.type, rows, [found if number else None, data], number)], form.type
            )
            for (name, form), data, found, number, no in zip(forms.items(), values, valid, nulls, refused, strict=True)
            if not no
        }

    def _chunks(self, group: int, rows: int, forms: dict[str, _Form]) -> dict[str, list[int]]:
        """The numbers of the chunks of these columns in a row group, without those that are stored in another way."""
        found, row_group, file = {}, self._metadata.row_group(group), self._source.fileno()
        for name, form in forms.items():
            chunk = row_group.column(form.leaf)
            codec, length = _CODECS.get(chunk.compression), chunk.total_compressed_size
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            if dictionary and dictionary < start:
                start = dictionary
            size = chunk.total_uncompressed_size
            sizes_fit = 0 < length <= _MOST_CHUNK and 0 <= size <= _MOST_CHUNK
            if codec is None or chunk.num_values != rows or not sizes_fit:
                continue
            # The chunk, a page of it, and its dictionary: as a page, and once more.
            self._room = max(self._room, length + 2 * size + _SLACK)
            numbers = (file, start, length, codec, form.kind, form.stored, form.width, form.optional, rows)
            found[name] = [*map(int, numbers), 0, 0, 0, int(self._verified), 0, 0]
        return found

    def _form(self, name: str) -> _Form | None:
        if name not in self._forms:
            self._forms[name] = self._found(name)
        return self._forms[name]

    def _found(self, name: str) -> _Form | None:
        """The form of a column; None if it is not suited."""
        if self._leaves is None:
            self._leaves = flat_leaves(self._schema)
        leaf = self._leaves.get(name)
        if leaf is None:
            return None
        kind, stored = self._schema.field(name).type, self._metadata.schema.column(leaf)
        physical = stored.physical_type
        if stored.max_repetition_level or stored.max_definition_level > 1 or not _same_bits(kind, stored):
            return None
        width = _WIDTHS.get(physical, stored.length)
        narrow = kind.bit_width // 8 if width else 0
        return _Form(leaf, kind, _KINDS[physical], width, narrow, stored.max_definition_level > 0)


def flat_leaves(schema: pa.Schema) -> dict[str, int]:
    """The number of the leaf column of each flat column; without names that occur twice."""
    numbers, leaf = {}, 0
    for field in schema:
        leaves = leaf_count(field.type)
        if leaves == 1:
            numbers[field.name] = leaf
        leaf += leaves
    return {name: number for name, number in numbers.items() if len(schema.get_all_field_indices(name)) == 1}


def _same_bits(kind: pa.DataType, stored: pq.ColumnSchema) -> bool:
    """Whether values of this Arrow type have the bits of those stored, or their lower ones."""
    physical = stored.physical_type
    if pt.is_timestamp(kind) or pt.is_time(kind):
        logical = json.loads(stored.logical_type.to_json())
        whole = "INT32" if kind.bit_width == 32 else "INT64"
        return bool(physical == whole and _UNITS.get(logical.get("timeUnit")) == kind.unit)
    if pt.is_fixed_size_binary(kind):
        return bool(physical == "FIXED_LEN_BYTE_ARRAY" and stored.length == kind.byte_width > 0)
    return bool(_STORED.get(kind) == physical) and (kind != pa.float16() or stored.length == 2)


def _decode(table: npt.NDArray[np.int64], room: int) -> None:
    """Decode the chunks of these numbers, which get the numbers of nulls and whether they were refused."""
    library, zstd = pages_library(), _zstd()
    assert library is not None
    memory = _memory(room)
    library.tdu_decode(
        table.ctypes.data, len(table), memory.ctypes.data, len(memory), None if zstd is None else zstd.ctypes.data
    )


def _memory(size: int) -> npt.NDArray[np.uint8]:
    """Memory of this thread for one call."""
    kept: npt.NDArray[np.uint8] | None = getattr(_scratch, "kept", None)
    if kept is not None and len(kept) >= size:
        return kept
    memory = np.empty(size, np.uint8)
    if size <= _KEPT:
        _scratch.kept = memory
    return memory


@lru_cache(maxsize=1)
def _zstd() -> npt.NDArray[np.uint64] | None:
    """The addresses of zstd's functions, as pages.c takes them; None if its library is not installed."""
    try:
        # By name: `ctypes.util.find_library` starts processes.
        found = ctypes.CDLL("libzstd.so.1")
        functions = (found.ZSTD_createDCtx, found.ZSTD_freeDCtx, found.ZSTD_decompressDCtx)
    except (OSError, AttributeError):
        return None
    return np.array([ctypes.cast(each, ctypes.c_void_p).value for each in functions], np.uint64)
