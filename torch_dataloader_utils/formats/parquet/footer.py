"""Reads the footer of a Parquet file, and rejects footers that would crash the process.

pyarrow crashes when asked for a column chunk with damaged or encrypted metadata (the C++ library throws an exception
that pyarrow does not catch). Opening the column for reading makes the same checks, and its errors are caught.
Statistics whose minimum or maximum has a wrong length crash it, too: see `guards`, which also changes types
that a writer had in memory.

Every footer is checked when it is read from its file, before anything requests a column chunk: planning itself needs
the chunks' sizes and null counts. Footers from a manifest, and those sent to worker processes, were checked then.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.guards import readable_types, without_bad_bounds

# A Parquet footer with what plans need of it, so that thousands of files are planned without parsing one.


NO_NULLS: Mapping[int, tuple[str, ...]] = {}  # one for thousands of footers


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Footer:
    """A footer, parsed when it is used; picklable.

    Attributes:
        file: a Parquet file that contains only this footer, perhaps in memory that processes share.
        nulls: number of a row group -> the columns that certainly contain a null in it; excludes row groups without
            such columns, and leaves below lists.
    """

    file: bytes | memoryview = field(repr=False)
    nulls: Mapping[int, tuple[str, ...]]

    _parsed: pq.FileMetaData | None = field(default=None, init=False, repr=False)

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer as parsed by pyarrow."""
        parsed = self._parsed
        if parsed is None:
            parsed = pq.read_metadata(pa.BufferReader(self.file))
            object.__setattr__(self, "_parsed", parsed)
            _forget_others(self)
        return parsed

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the parsed footer, which is many times larger; compression reduces these bytes to a quarter.
        return _inflated, (len(self.file), pa.compress(self.file, "zstd", asbytes=True), self.nulls)


# Parsed, a footer is ten times as large: only of these that were parsed last, that is kept.
_KEPT = 64
_LAST: deque[weakref.ref[Footer]] = deque()


def _forget_others(footer: Footer) -> None:
    """Keep what was parsed of this footer, and of the last ones before it."""
    _LAST.append(weakref.ref(footer))
    while len(_LAST) > _KEPT:
        with suppress(IndexError):  # several threads forget
            other = _LAST.popleft()()
            if other is not None:
                object.__setattr__(other, "_parsed", None)


def _inflated(size: int, data: bytes, nulls: Mapping[int, tuple[str, ...]]) -> Footer:
    return Footer(pa.decompress(data, size, "zstd", asbytes=True), nulls)


# The value ranges of a row group's columns, from its statistics.


def row_group_ranges(metadata: pq.FileMetaData, number: int, names: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """The (minimum, maximum) of each of these top-level columns whose statistics have them."""
    group, ranges = metadata.row_group(number), {}
    for leaf in range(metadata.num_columns):
        chunk = group.column(leaf)
        name = chunk.path_in_schema
        if name in names and metadata.schema.column(leaf).name == name:  # else a field of a struct
            ends = _range(chunk)
            if ends is not None:
                ranges[name] = ends
    return ranges


def _range(chunk: pq.ColumnChunkMetaData) -> tuple[Any, Any] | None:
    try:
        known = chunk.statistics
        ends = (known.min, known.max) if known is not None and known.has_min_max else None
    except (pa.ArrowException, ValueError, OverflowError, ImportError):  # values that Python cannot represent
        return None
    # Bytes may belong to a type with another order (float16).
    return None if ends is None or isinstance(ends[0], bytes) else ends


# How many values the lists of a column hold, from a footer.


def list_values(metadata: pq.FileMetaData, groups: Sequence[int], name: str) -> list[int] | None:
    """The number of values in a column of lists, for each of these row groups; None if statistics do not say.

    A column chunk has an entry for each value, and one for each null or empty list. Entries that are no value count as
    nulls.

    Args:
        metadata: the footer.
        groups: numbers of row groups.
        name: of the column.
    """
    leaves = [leaf for leaf in range(metadata.num_columns) if metadata.schema.column(leaf).path.startswith(f"{name}.")]
    if len(leaves) != 1 or metadata.schema.column(leaves[0]).max_repetition_level != 1:
        return None
    chunks = [metadata.row_group(group).column(leaves[0]) for group in groups]
    known = [chunk.statistics for chunk in chunks]
    if any(statistics is None or not statistics.has_null_count for statistics in known):
        return None
    return [chunk.num_values - statistics.null_count for chunk, statistics in zip(chunks, known, strict=True)]


_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"

# Bytes of a first read, which contains the whole footer of most files.
_GUESS = 1 << 16

# If a file has encrypted columns, its unencrypted footer is followed by a signature of this many bytes.
_SIGNATURE = 28
_NO_KEYS = "its {} encrypted, and keys cannot be passed here: write a decrypted copy with a tool that has them."


def checked_footer(source: pa.NativeFile) -> tuple[bytes, pq.FileMetaData, pa.Schema]:
    """A Parquet file that contains only the footer of this open file, parsed, and its schema. Makes at most two reads.

    Raises:
        ValueError: the file is encrypted, or not a Parquet file.
        OSError: the footer is inconsistent.
    """
    tail, length = _tail(source)
    file = _MAGIC + tail
    opened = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
    if opened.metadata.serialized_size + _SIGNATURE == length:
        raise ValueError(_NO_KEYS.format("columns are"))
    _probe(opened.metadata)
    footer = tail[:-8]
    try:
        changed, schema = readable_types(without_bad_bounds(footer, opened.metadata.schema), opened)
    except (ValueError, IndexError) as error:
        raise ValueError(f"its footer is damaged: {error}") from error
    if changed is footer:
        return file, opened.metadata, schema
    file = b"".join([_MAGIC, changed, len(changed).to_bytes(4, "little"), _MAGIC])
    return file, pq.read_metadata(pa.BufferReader(file)), schema


def _tail(source: pa.NativeFile) -> tuple[bytes, int]:
    """The bytes of the footer, its length field and the magic bytes; and the footer's length in bytes."""
    size = source.size()
    start = max(size - _GUESS, 0)
    tail = source.read_at(size - start, start)
    if tail[-4:] == _ENCRYPTED:
        raise ValueError(_NO_KEYS.format("footer is"))
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        raise ValueError(f"its {size} bytes do not end like a Parquet file: it is truncated, or of another format.")
    length = int.from_bytes(tail[-8:-4], "little")
    if length + 12 > size:
        raise ValueError(f"its footer of {length} bytes does not fit into its {size} bytes.")
    if length + 8 > len(tail):
        tail = source.read_at(length + 8, size - length - 8)
    return tail[-length - 8 :], length


def _probe(metadata: pq.FileMetaData) -> None:
    """Make pyarrow open each column chunk, up to the first byte of its data."""
    data = _NoData()
    file = pq.ParquetFile(pa.PythonFile(data, "r"), metadata=metadata, buffer_size=1, pre_buffer=False)
    kinds = [metadata.schema.column(leaf).physical_type for leaf in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        data.reached = False
        try:
            file.read_row_group(number, use_threads=False)
        except Exception:
            if not data.reached:  # all column chunks are opened before the first is read
                raise
        group = metadata.row_group(number)
        for leaf, kind in enumerate(kinds):
            stored = group.column(leaf).physical_type
            if stored != kind:
                raise ValueError(f"row group {number} has {stored} in leaf column {leaf}, but the schema has {kind}.")


class _NoData:
    """A Python file object that accepts all offsets and has no data.

    `read` returns what pyarrow refuses, because that is cheap: an exception would be formatted with its traceback.

    Attributes:
        reached: whether `read` was called.
    """

    closed = False
    _size = 1 << 62

    def __init__(self) -> None:
        self.reached = False
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """The new position."""
        self._at = offset + (self._size if whence == 2 else 0)
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def read(self, size: int) -> None:
        """None instead of bytes."""
        self.reached = True
