"""Parquet: a segment is a row group; the footer is read once and travels in the layout."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.formats.base import Format, Pruner, Reader
from torch_dataloader_utils.formats.parquet.dictionaries import dictionary_leaves, holds_codes
from torch_dataloader_utils.formats.parquet.footer import (
    NO_NULLS,
    Footer,
    checked_footer,
    list_values,
    row_group_ranges,
)
from torch_dataloader_utils.formats.parquet.guards import (
    COARSE,
    FLOORED,
    MICRO,
    check_coarse,
    check_dictionaries,
    check_whole,
    declared_coarser,
    has_dictionary,
    has_wide_deltas,
    int96_columns,
    names_above,
)
from torch_dataloader_utils.formats.parquet.pages import PageDecoder, chunk_start, left_to_pyarrow
from torch_dataloader_utils.formats.parquet.pruning import row_group_pruner
from torch_dataloader_utils.formats.sizes import LEAST_WIDTH, fixed_width, leaf_count, storage_type
from torch_dataloader_utils.kernels.library import pages_library
from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.lazy import cached_property
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.printing import listed
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder, numbered
from torch_dataloader_utils.storage import Decoding, Storage, prefetch


class ParquetReader(Reader):
    """An open Parquet file; its footer is taken from the layout."""

    def __init__(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> None:
        super().__init__(file, layout, storage, options, schema)
        self._metadata: pq.FileMetaData = self.metadata.metadata
        self._coded = dictionary_leaves(self._metadata, schema)  # the leaf columns that are read as dictionaries
        self._options = {
            "metadata": self._metadata,
            "pre_buffer": False,  # the storage prefetches
            "page_checksum_verification": options["page_checksums"],
            "read_dictionary": [self._metadata.schema.column(leaf).path for leaf in self._coded.values()] or None,
        }
        self._file = pq.ParquetFile(self.source, **self._options)
        self.schema = self._file.schema_arrow
        self._int96 = int96_columns(self._metadata, self.schema)
        # INT96 columns that are declared in another unit than nanoseconds, and how they are read.
        self._micro = frozenset(name for name in self._int96 if declared_coarser(schema, name))
        self._floored = bool(options.get(FLOORED))
        self._in_micro: pq.ParquetFile | None = None
        if self._micro:
            self._in_micro = pq.ParquetFile(self.source, coerce_int96_timestamp_unit=MICRO, **self._options)
            micro = self._in_micro.schema_arrow
            self.schema = pa.schema([micro.field(f.name) if f.name in self._micro else f for f in self.schema])
        self._local = storage.local
        self._leaves = [] if storage.local else self._leaves_of(schema.names)
        self._fetched: list[int] = []  # the row groups that were prefetched
        self._unread: set[int] = set()  # their leaf columns that have not been read yet
        _check_engine(options["engine"])
        self._engine = options["engine"]
        self._pages = self._decoder_of(self._file)

    def _decoder_of(self, file: pq.ParquetFile) -> PageDecoder | None:
        """The package's own decoder of columns as pyarrow reads them from this open file; None if it is not used."""
        if self._engine == "pyarrow" or not PageDecoder.usable(self.source):
            return None
        return PageDecoder(self.source, self._metadata, file.schema_arrow, self._options["page_checksum_verification"])

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these row groups, from one decoder call in the calling thread."""
        groups, names = list(segment_numbers), list(columns)
        plain = self._not_coded(groups, names)
        coded = [name for name in names if name not in plain]
        arrays = self._arrays(self._file, self._pages, groups, coded) if coded or not names else {}
        if plain:
            arrays |= self._as_words(self._arrays(*self._plain, groups, plain))
        return [arrays[name] for name in names]

    def _arrays(
        self, file: pq.ParquetFile, decoder: PageDecoder | None, groups: list[int], names: list[str]
    ) -> dict[str, pa.ChunkedArray]:
        """One array per column, by the package's own decoder, and from the open file those that it leaves."""
        arrays = {} if decoder is None else self._by_pages(decoder, groups, names)
        rest = [name for name in names if name not in arrays]
        if rest or not names:
            arrays |= zip(rest, self._by_pyarrow(file, groups, rest), strict=True)
            recorder().count("bytes_by_pyarrow", self._stored(groups, rest))
        return arrays

    @cached_property
    def _plain(self) -> tuple[pq.ParquetFile, PageDecoder | None]:
        """What reads columns that are requested as dictionaries as they are stored."""
        file = pq.ParquetFile(self.source, **{**self._options, "read_dictionary": None})
        return file, self._decoder_of(file)

    def _not_coded(self, groups: list[int], names: list[str]) -> list[str]:
        """Those of the columns that are requested as dictionaries, and faster to read as they are stored."""
        asked = [name for name in names if name in self._coded]
        if not asked:
            return []
        if self._leaves:
            with Decoding(self.path, lambda: self._damaged(groups, names)):
                self._fetch(groups, [])
        row_groups = [self._metadata.row_group(group) for group in groups]
        rest = []
        for name in asked:
            chunks = [group.column(self._coded[name]) for group in row_groups]
            in_lists = pt.is_nested(self.schema.field(name).type)
            if not all(holds_codes(self.source, chunk, in_lists) for chunk in chunks):
                rest.append(name)
        # Its Arrow schema may ask for dictionaries.
        return [name for name in rest if not has_dictionary(self._plain[0].schema_arrow.field(name).type)]

    def _as_words(self, arrays: Mapping[str, pa.ChunkedArray]) -> dict[str, pa.ChunkedArray]:
        return {name: numbered(column, self.schema.field(name).type) for name, column in arrays.items()}

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """Those of the columns of a local file that have few words, by the package's own decoder."""
        if self._pages is None or self._leaves:
            return {}
        groups = list(segment_numbers)
        few = [name for name in columns if self._has_few_words(groups, name)]
        return {name: partial(self._pages.dictionaries, groups, name) for name in few}

    def _has_few_words(self, groups: list[int], name: str) -> bool:
        """Whether a column has few words in each of these row groups, and as far as is known no nulls."""
        row_groups = map(self._metadata.row_group, groups)
        chunks = [group.column(leaf) for group in row_groups for leaf in self._by_name[name]]
        if any(_has_nulls(chunk.statistics) for chunk in chunks):
            return False
        with Decoding(self.path, lambda: self._damaged(groups, [name])):
            return all(holds_codes(self.source, chunk, in_lists=False) for chunk in chunks)

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the columns of a local file that are stored as the package's own decoder knows."""
        return {} if self._pages is None else self._pages.chunks(segment_numbers, columns)

    def _by_pages(self, decoder: PageDecoder, groups: list[int], names: list[str]) -> dict[str, pa.ChunkedArray]:
        """Those of the columns that the package's own decoder decodes."""
        if not self._leaves:
            return decoder.read(groups, names)
        with Decoding(self.path, lambda: self._damaged(groups, names)):
            self._fetch(groups, names)
            arrays = decoder.read(groups, names)
        self._unread.update(leaf for name in names if name not in arrays for leaf in self._by_name[name])
        return arrays

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """Those of the columns that the package's own decoder decodes at these rows alone."""
        if self._pages is None:
            return {}
        plain = self._not_coded(list(segment_numbers), list(columns))
        found = self._pages.read_rows(segment_numbers, [name for name in columns if name not in plain], rows)
        if not plain or self._plain[1] is None:
            return found
        return {**found, **self._as_words(self._plain[1].read_rows(segment_numbers, plain, rows))}

    def _stored(self, groups: Sequence[int], names: Sequence[str]) -> int:
        """The stored bytes of columns of these row groups."""
        leaves = self._leaves_of(names)
        chunks = (self._metadata.row_group(group) for group in groups)
        return sum(chunk.column(leaf).total_compressed_size for chunk in chunks for leaf in leaves)

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        """The numbers of the leaf columns of each top-level column."""
        found: dict[str, list[int]] = {name: [] for name in self.schema.names}
        for leaf in range(self._metadata.num_columns):
            for name in names_above(self._metadata.schema.column(leaf).path):
                if name in found:
                    found[name].append(leaf)
        return found

    def _leaves_of(self, names: Iterable[str]) -> list[int]:
        """The numbers of the leaf columns of these top-level columns, as far as the file has them."""
        return sorted({leaf for name in names for leaf in self._by_name.get(name, ())})

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """The columns that the package's own decoder decodes.

        Of those that pyarrow decodes, one per call is faster than all at once: its values stay in the CPU cache.
        """
        return () if self._pages is None else self._pages.together(columns, rows)

    def _by_pyarrow(self, file: pq.ParquetFile, groups: list[int], names: list[str]) -> list[pa.ChunkedArray]:
        """As `read`, by pyarrow, from the open file."""
        with Decoding(self.path, lambda: self._damaged(groups, names)):
            if self._leaves:
                self._fetch(groups, names)
            try:
                arrays = self._decoded(file, groups, names)
            except (pa.ArrowException, OSError) as error:
                self._reject_wide_deltas(groups, names, error)
                raise
            self._check_rows(groups, arrays)
            for column in arrays:
                check_dictionaries(column)
            if self._int96:
                self._check_int96(groups, names, arrays)
            return arrays

    def _damaged(self, groups: list[int], names: list[str]) -> str:
        """The first column of a row group that cannot be read; for remote files, all that were requested together."""
        if self._local:
            for group, name in itertools.product(groups, names):
                try:
                    self._file.read_row_group(group, columns=[name], use_threads=False)
                except (pa.ArrowException, OSError):
                    return f"row group {group}, column {name}"
        return f"row groups {listed(groups, 5)}, columns {listed(names, 5)}"

    def _reject_wide_deltas(self, groups: list[int], names: list[str], error: Exception) -> None:
        """Raise an error that names the writer, if what pyarrow cannot decode is its, and no damage."""
        for group, leaf in itertools.product(groups, self._leaves_of(names)):
            if has_wide_deltas(self.source, self._metadata, group, leaf):
                column, writer = self._metadata.schema.column(leaf).path, self._metadata.created_by or "its writer"
                raise FileReadError(
                    f"{printable(self.path)}, row group {group}, column {column}: it is not damaged, but stored in a "
                    f"way that pyarrow {pa.__version__} cannot read: {printable(writer)} stores differences of more "
                    "than 32 bits in a column of 32-bit integers (DELTA_BINARY_PACKED). Write the file with this "
                    "column as 64-bit integers, or in another encoding (DuckDB: PARQUET_VERSION v1)."
                ) from error

    def _fetch(self, groups: list[int], names: list[str]) -> None:
        """Prefetch all requested columns of these row groups from a remote store when the first of them is read."""
        asked = set(self._leaves_of(names))
        if groups != self._fetched or not asked <= self._unread:
            prefetch(self.source, self.ranges(groups))
            self._fetched, self._unread = groups, set(self._leaves)
        self._unread -= asked

    def ranges(self, segment_numbers: Sequence[int]) -> Sequence[tuple[int, int]]:
        """The column chunks that will be requested."""
        groups = map(self._metadata.row_group, segment_numbers)
        return [_place(group.column(leaf)) for group in groups for leaf in self._leaves]

    def _decoded(self, file: pq.ParquetFile, groups: list[int], names: list[str]) -> list[pa.ChunkedArray]:
        """One array per column; INT96 in microseconds where it is declared in a coarser unit than nanoseconds."""
        micro = [name for name in names if name in self._micro]
        if self._in_micro is None or not micro:
            return _read(file, groups, names)
        others = [name for name in names if name not in self._micro]
        arrays = dict(zip(micro, _read(self._in_micro, groups, micro), strict=True))
        arrays |= zip(others, _read(file, groups, others) if others else (), strict=True)
        return [arrays[name] for name in names]

    def _check_int96(self, groups: list[int], names: list[str], arrays: Sequence[pa.ChunkedArray]) -> None:
        """Raise for timestamps that overflowed when pyarrow read them, or lost their nanoseconds."""
        doubtful = [name for name in names if name in self._int96]
        if doubtful:
            file = pq.ParquetFile(self.source, coerce_int96_timestamp_unit=COARSE, **self._options)
            for name, column in zip(doubtful, _read(file, groups, doubtful), strict=True):
                check_coarse(name, column, micro=name in self._micro)
        micro = [] if self._floored else [name for name in doubtful if name in self._micro]
        read = dict(zip(names, arrays, strict=True))
        for name, exact in zip(micro, _read(self._file, groups, micro) if micro else (), strict=True):
            check_whole(name, read[name], exact)

    def _check_rows(self, groups: Sequence[int], columns: Sequence[pa.ChunkedArray]) -> None:
        """Raise if the pages' rows differ from the footer's, which pyarrow detects only for two or more columns."""
        rows = sum(self._metadata.row_group(group).num_rows for group in groups)
        for column in columns:
            if len(column) != rows:
                raise ValueError(f"its pages have {len(column)} rows, but the footer says {rows}.")

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._file.close()
        super().close()


class ParquetFormat(Format):
    """The Parquet format; the layout's metadata is a `Footer`.

    The option `page_checksums` makes a page with a wrong checksum an error (pages without a checksum are accepted).
    The option `engine` is what decodes: "auto", the package's own decoder where it can, and pyarrow elsewhere; or
    "pyarrow" alone.
    """

    name = "parquet"
    segment_name = "row group"
    options = MappingProxyType({"page_checksums": True, "engine": "auto"})
    free_options = frozenset({"engine"})
    reader = ParquetReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The row groups that have rows, and the file's schema."""
        content, metadata, schema = checked_footer(source)
        footer = Footer(content, _nulls(metadata))
        return FileLayout(tuple(_segments(metadata, schema)), metadata=footer), schema

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Check the value of `engine`."""
        _check_engine(options["engine"])

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A function that drops row groups by their statistics and the file's constants."""
        keep = row_group_pruner(expression, schema)

        def prune(layout: FileLayout, file_schema: pa.Schema, constants: Mapping[str, Any]) -> FileLayout:
            kept = keep(layout.metadata, file_schema, constants)
            return replace(layout, segments=tuple(s for s in layout.segments if s.number in kept))

        return prune

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """Columns with a null count above zero in any of the row groups; excludes leaves below lists."""
        nulls = layout.metadata.nulls
        return frozenset(name for segment in layout.segments for name in nulls.get(segment.number, ()))

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The ranges from a row group's statistics."""
        return row_group_ranges(layout.metadata.metadata, number, names)

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """The values of each row group by its statistics; None unless all have them, and lists hold plain values."""
        return list_values(layout.metadata.metadata, [segment.number for segment in layout.segments], name)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """The package's own decoder, or pyarrow, or both."""
        if {**self.options, **options}["engine"] == "pyarrow":
            return "pyarrow, as `engine` says"
        if pages_library() is None:
            return "pyarrow, more slowly, because there was no C compiler when the package was installed"
        schema = layout.metadata.metadata.schema.to_arrow_schema()
        left = left_to_pyarrow(layout.metadata.metadata, [name for name in names if name in schema.names])
        return "the package itself" + (f"; pyarrow: {listed(left, 5)}" if left else "")

    def kept(self, blob: bytes | memoryview) -> bytes | memoryview:
        """The memory itself: thousands of footers are there once for all processes that share it."""
        return blob

    def pack_metadata(self, metadata: Footer) -> tuple[Any, bytes]:
        """The columns with nulls, and the footer."""
        return list(metadata.nulls.items()), bytes(metadata.file)

    def unpack_metadata(self, plain: Any, blob: bytes | memoryview, schema: pa.Schema) -> Footer:
        """The footer, unparsed."""
        return Footer(blob, {number: tuple(names) for number, names in plain} or NO_NULLS)


FORMAT = ParquetFormat()


def _read(file: pq.ParquetFile, groups: list[int], names: list[str]) -> list[pa.ChunkedArray]:
    """One array per column over these row groups."""
    if len(groups) > 1 and any(map(_has_inner_dictionary, map(file.schema_arrow.field, names))):
        # pyarrow does not join dictionaries within lists and structs.
        parts = [_read(file, [group], names) for group in groups]
        return [pa.chunked_array([chunk for part in own for chunk in part.chunks]) for own in zip(*parts, strict=True)]
    if len(groups) == 1:
        table = file.read_row_group(groups[0], columns=names, use_threads=False)
    else:
        table = file.read_row_groups(groups, columns=names, use_threads=False)
    # By exact name: for a column "x.y", pyarrow also reads the field y of a struct x.
    read = set(table.column_names)
    return [table.column(name) if name in read else _without_leaves(file, groups, name) for name in names]


def _has_inner_dictionary(field: pa.Field) -> bool:
    return pt.is_nested(field.type) and has_dictionary(field.type)


def _without_leaves(file: pq.ParquetFile, groups: list[int], name: str) -> pa.ChunkedArray:
    """A group without fields: without a leaf nothing is stored of it, and pyarrow reads it by no name.

    Raises:
        KeyError: the column has leaves, or there is none.
    """
    kind = file.schema_arrow.field(name).type
    if leaf_count(kind):
        raise KeyError(name)
    return pa.chunked_array([pa.nulls(sum(file.metadata.row_group(group).num_rows for group in groups), kind)])


def _check_engine(engine: str) -> None:
    """Check the option `engine`; also when a file is opened, because those of tables are not checked before."""
    if engine not in ("auto", "pyarrow"):
        raise OptionError(f"format_options={{'engine': {engine!r}}}: expected 'auto' or 'pyarrow'.")


def _place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """The byte range of a column chunk in the file, half-open."""
    start = chunk_start(chunk)
    return start, start + chunk.total_compressed_size


def _nulls(metadata: pq.FileMetaData) -> dict[int, tuple[str, ...]]:
    """Columns with a null count above zero, by row group; excludes leaves below lists."""
    leaves = enumerate(map(metadata.schema.column, range(metadata.num_columns)))
    open_leaves = {i: leaf.path for i, leaf in leaves if leaf.max_repetition_level == 0}
    nulls = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        proven = tuple(name for i, name in open_leaves.items() if _has_nulls(group.column(i).statistics))
        if proven:
            nulls[number] = proven
    return nulls


def _has_nulls(statistics: pq.Statistics | None) -> bool:
    return statistics is not None and bool(statistics.null_count)


def _segments(metadata: pq.FileMetaData, schema: pa.Schema) -> Iterator[Segment]:
    """One segment per row group that has rows."""
    width, loose = _widths(schema)
    first_row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows = group.num_rows
        if rows:
            size = rows * width
            for leaves in loose:
                stored = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
                size += max(stored, rows * LEAST_WIDTH)
            yield Segment(number, first_row, rows, int(size))
        first_row += rows


def _widths(schema: pa.Schema) -> tuple[int, list[range]]:
    """The decoded bytes per row of all fixed-width columns, and the leaf columns of each other column."""
    width, loose, leaf = 0, [], 0
    pending = [field.type for field in reversed(schema)]
    while pending:
        kind = storage_type(pending.pop())
        if pt.is_struct(kind):
            pending.extend(field.type for field in reversed(list(kind)))
            continue
        fixed = fixed_width(kind)
        if fixed is None:
            loose.append(range(leaf, leaf + leaf_count(kind)))
        width += fixed or 0
        leaf += leaf_count(kind)
    return width, loose
