"""Decodes flat columns with Polars, which needs about half of pyarrow's processor time for whole row groups.

The arrays cannot be written to, so it serves callers that copy the values. Polars maps the file into memory, through
the descriptor that was checked when the file was opened. A read beyond the end of a mapped file would end the process,
so before each call the file must be as it was when it was opened; pyarrow reads a changed one, and raises its error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.errors import MissingExtraError, OptionError
from torch_dataloader_utils.formats.parquet.footer import Footer
from torch_dataloader_utils.formats.parquet.pages import leaf_numbers
from torch_dataloader_utils.formats.sizes import fixed_width

logger = logging.getLogger("torch_dataloader_utils")

ENGINES = ("auto", "pyarrow", "polars")

# What Polars decodes to the same bits: Arrow type -> how it is stored. See `_same_bits` for timestamps and decimals.
_STORED = {
    pa.bool_(): "BOOLEAN",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.date32()), "INT32"),
    **dict.fromkeys((pa.int64(), pa.uint64()), "INT64"),
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
}
_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "ZSTD"})  # not GZIP: Polars ignores its checksums
_ENCODINGS = frozenset(
    {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"}
)

# Decoded bytes of one call: enough for a call to be worth its cost, and few enough for every thread to hold them.
_MOST_BYTES = 32 << 20

_OLDEST = (1, 31)  # the version of Polars in the extra

_HEADER = 32  # the bytes of a page header up to its checksum, and more

_forked_with_polars = False


def _after_fork() -> None:
    """Note that this process has copies of Polars's locks, but not its threads: a call could wait forever."""
    global _forked_with_polars
    _forked_with_polars = "polars" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_engine(engine: str) -> None:
    """Check the value of the option `engine`.

    Raises:
        OptionError: it is not one of `ENGINES`.
        MissingExtraError: it is "polars", which is not installed, or too old.
    """
    if engine not in ENGINES:
        expected = ", ".join(map(repr, ENGINES))
        raise OptionError(f"format_options={{'engine': {engine!r}}}: expected one of {expected}.")
    if engine == "polars" and not _installed():
        oldest = ".".join(map(str, _OLDEST))
        raise MissingExtraError(
            f"format_options={{'engine': 'polars'}} needs Polars {oldest} or later: "
            "pip install 'torch-dataloader-utils[fast]'"
        )


@lru_cache(maxsize=1)
def _installed() -> bool:
    """Whether Polars is installed, in a version that has what is used here."""
    try:
        found = find_spec("polars") is not None
        return found and tuple(int(part) for part in version("polars").split(".")[:2]) >= _OLDEST
    except (ImportError, ValueError):  # PackageNotFoundError is an ImportError
        return False


def usable(engine: str) -> bool:
    """Whether Polars may decode in this process."""
    # Elsewhere Polars would read the whole file through its descriptor.
    return engine == "polars" and os.name == "posix" and not _forked_with_polars and _installed()


class PolarsDecoder:
    """Decodes columns of an open local file. Used by one thread at a time.

    Args:
        path: the file's path, for the log.
        source: the file, open.
        footer: its footer.
        schema: its columns, as pyarrow reads them.
        verified: whether pages with a checksum must be checked, which Polars does not do.
    """

    def __init__(self, path: str, source: pa.OSFile, footer: Footer, schema: pa.Schema, verified: bool) -> None:
        self._path, self._source, self._schema, self._verified = path, source, schema, verified
        self._metadata: pq.FileMetaData = footer.metadata
        self._nulls = footer.nulls
        self._opened = _identity(source)
        groups = [self._metadata.row_group(number).num_rows for number in range(self._metadata.num_row_groups)]
        self._starts = [0, *accumulate(groups)]
        self._most_rows = max(groups, default=0)
        self._leaves = leaf_numbers(schema)
        self._suited: dict[str, bool] = {}
        self._frame: Any = None

    def together(self, columns: Sequence[str]) -> list[str]:
        """The first of these columns that one call decodes best, in order; at least one, unless none is suited."""
        names: list[str] = []
        size = 0
        for name in columns:
            if self._suits(name):
                size += self._most_rows * (fixed_width(self._schema.field(name).type) or 0)
                if names and size > _MOST_BYTES:
                    break
                names.append(name)
        return names

    def read(self, groups: Sequence[int], columns: Sequence[str]) -> Mapping[str, pa.ChunkedArray]:
        """The rows of these row groups, for those of the columns that were decoded; pyarrow must read the others."""
        names = [name for name in columns if self._suits(name) and not self._has_null(groups, name)]
        if not all(self._stored_well(group, name) for group in groups for name in names):
            return {}
        if not names or not self._unchanged() or (self._verified and self._has_checksums(groups, names)):
            return {}
        import polars as pl

        try:
            parts = [self._decoded(start, stop, names).to_arrow() for start, stop in self._row_ranges(groups)]
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, TypeError) as error:
            logger.debug("%s: Polars cannot decode it, pyarrow does: %s: %s", self._path, type(error).__name__, error)
            self._suited = dict.fromkeys(self._schema.names, False)
            return {}
        return self._as_pyarrow(parts, names)

    def close(self) -> None:
        """Release the file."""
        self._frame = None

    def _row_ranges(self, groups: Sequence[int]) -> list[tuple[int, int]]:
        """The rows of these row groups, half-open; consecutive ones are joined."""
        ranges: list[tuple[int, int]] = []
        for group in groups:
            start, stop = self._starts[group : group + 2]
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, stop))
        return ranges

    def _decoded(self, start: int, stop: int, names: Sequence[str]) -> Any:
        """The rows `[start, stop)` of the file as a Polars DataFrame."""
        import polars as pl
        from polars import selectors

        if self._frame is None:
            file = open(self._source.fileno(), "rb", closefd=False)  # noqa: SIM115 (Polars copies the descriptor)
            options: dict[str, Any] = {"glob": False, "hive_partitioning": False, "use_statistics": False}
            logger.debug("%s: Polars %s decodes columns that are copied", self._path, pl.__version__)
            self._frame = pl.scan_parquet(file, parallel="none", **options)
        # By selector: text such as "^a.*$" would be a pattern.
        frame = self._frame.select(selectors.by_name(*names)).slice(start, stop - start).collect(engine="in-memory")
        if frame.height != stop - start:
            raise ValueError(f"rows {start} to {stop} of the footer are {frame.height} rows in the pages.")
        return frame

    def _as_pyarrow(self, parts: Sequence[pa.Table], names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The columns that are exactly what pyarrow reads; the others will not be decoded again."""
        columns = {}
        for name in names:
            chunks = [chunk for part in parts for chunk in part.column(name).chunks]
            kind = self._schema.field(name).type
            if all(chunk.type == kind and chunk.null_count == 0 for chunk in chunks):
                columns[name] = pa.chunked_array(chunks, kind)
            else:
                self._suited[name] = False
        return columns

    def _suits(self, name: str) -> bool:
        """Whether the file's first row group has the column in a form that Polars decodes to the same bits."""
        if name not in self._suited:
            self._suited[name] = name in self._leaves and self._starts[-1] > 0 and self._is_suited(name)
        return self._suited[name]

    def _is_suited(self, name: str) -> bool:
        leaf = self._leaves[name]
        same = _same_bits(self._schema.field(name).type, self._metadata.schema.column(leaf).physical_type)
        return same and "\0" not in name and self._stored_well(0, name)

    def _stored_well(self, group: int, name: str) -> bool:
        """Whether a column chunk is compressed and encoded in a way that Polars reads."""
        chunk = self._metadata.row_group(group).column(self._leaves[name])
        return chunk.compression in _CODECS and _ENCODINGS.issuperset(chunk.encodings)

    def _has_null(self, groups: Sequence[int], name: str) -> bool:
        return any(name in self._nulls.get(group, ()) for group in groups)

    def _unchanged(self) -> bool:
        return _identity(self._source) == self._opened

    def _has_checksums(self, groups: Sequence[int], names: Sequence[str]) -> bool:
        """Whether pages of these row groups have checksums: all or none, because one writer writes a row group.

        The footer does not record it, so the first pages of a column are looked at: some writers leave out the checksum
        of either dictionaries or data.
        """
        leaf = self._leaves[names[0]]
        for group in groups:
            chunk = self._metadata.row_group(group).column(leaf)
            pages = (chunk.data_page_offset, chunk.dictionary_page_offset)
            if any(page is not None and _has_checksum(self._source.read_at(_HEADER, page)) for page in pages):
                return True
        return False


def _same_bits(kind: pa.DataType, stored: str) -> bool:
    """Whether Polars decodes values of this Arrow type, stored in this way, to the same bits as pyarrow."""
    if pt.is_timestamp(kind):
        return stored == "INT64"
    if pt.is_decimal128(kind):
        return stored in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
    return bool(_STORED.get(kind) == stored)


def _has_checksum(header: bytes) -> bool:
    """Whether a page has a checksum, by the first bytes of its header; True if in doubt.

    The header is a Thrift struct in the compact protocol: type and two sizes (fields 1 to 3, 32-bit integers), checksum
    (field 4), then the struct of a data page, dictionary page or data page of version 2 (fields 5, 7, 8).
    """
    content = header.ljust(_HEADER, b"\0")
    place = 0
    for _ in range(3):
        if content[place] != 0x15:
            return True
        place += 1
        while content[place] & 0x80:
            place += 1
        place += 1
    return content[place] not in (0x2C, 0x4C, 0x5C)


def _identity(source: pa.OSFile) -> tuple[int, int]:
    """The size and the time of change of an open file."""
    now = os.fstat(source.fileno())
    return now.st_size, now.st_mtime_ns
