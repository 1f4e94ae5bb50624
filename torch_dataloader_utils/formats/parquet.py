"""Parquet: a segment is a row group; the footer is read once and travels in the layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.formats.base import Pruner
from torch_dataloader_utils.formats.parquet_pruning import row_group_pruner
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.storage import Storage, naming

# The least decoded bytes of a value whose type has no fixed width: an offset and some content.
_LEAST_WIDTH = 16


@dataclass(frozen=True)
class ParquetFormat:
    """The Parquet format."""

    name: str = "parquet"
    segment_name: str = "row group"

    @property
    def options(self) -> Mapping[str, Any]:
        """`page_checksums`: whether a page whose checksum is wrong is an error (pages without one always pass)."""
        return {"page_checksums": True}

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The row groups that hold rows, with `pq.FileMetaData` as the layout's metadata, and the file's schema."""
        with naming(file.path, "footer"), storage.open(file.path) as source:
            opened = pq.ParquetFile(source, pre_buffer=False)
            metadata, schema = opened.metadata, opened.schema_arrow
            return FileLayout(tuple(_segments(metadata, schema)), metadata=metadata), schema

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        encoded: Collection[str] = (),
    ) -> ParquetReader:
        """A reader that takes the footer from the layout."""
        checksums = {**self.options, **options}["page_checksums"]
        with naming(file.path):
            return ParquetReader(file.path, storage, layout.metadata, checksums, encoded)

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A function that drops row groups by their statistics and the file's constants."""
        keep = row_group_pruner(expression, schema)

        def prune(layout: FileLayout, file_schema: pa.Schema, constants: Mapping[str, Any]) -> FileLayout:
            kept = keep(layout.metadata, file_schema, constants)
            return replace(layout, segments=tuple(s for s in layout.segments if s.number in kept))

        return prune

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """Columns whose null count is above zero in one of the row groups; leaves below lists are left out."""
        metadata: pq.FileMetaData = layout.metadata
        leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        open_leaves = {i: leaf.path for i, leaf in enumerate(leaves) if leaf.max_repetition_level == 0}
        found: set[str] = set()
        for segment in layout.segments:
            group = metadata.row_group(segment.number)
            proven = [i for i in open_leaves if _has_nulls(group.column(i))]
            found.update(open_leaves.pop(i) for i in proven)
        return frozenset(found)


FORMAT = ParquetFormat()


class ParquetReader:
    """An open Parquet file. Used by one thread at a time.

    Attributes:
        schema: the file's top-level columns, as `read` gives them.
    """

    def __init__(
        self,
        path: str,
        storage: Storage,
        metadata: pq.FileMetaData,
        page_checksums: bool,
        encoded: Collection[str] = (),
    ) -> None:
        self.path = path
        self._source = storage.open(path)
        # Coalescing reads ahead pays for remote stores only.
        self._file = pq.ParquetFile(
            self._source,
            metadata=metadata,
            pre_buffer=not storage.local,
            page_checksum_verification=page_checksums,
            read_dictionary=_top_level(metadata, encoded),
        )
        self.schema: pa.Schema = self._file.schema_arrow

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these row groups: one call of the decoder, in the calling thread.

        Decoding one column per call is faster than all at once, as its values stay in the CPU's cache.
        """
        groups, names = list(segment_numbers), list(columns)
        with naming(self.path, f"row groups {_listed(groups)}, columns {_listed(names)}"):
            if len(groups) == 1:
                table = self._file.read_row_group(groups[0], columns=names, use_threads=False)
            else:
                table = self._file.read_row_groups(groups, columns=names, use_threads=False)
            # By exact name: for a column "x.y", pyarrow also reads the field y of a struct x.
            return [table.column(name) for name in names]

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._file.close()
        self._source.close()


def _top_level(metadata: pq.FileMetaData, names: Collection[str]) -> list[str] | None:
    """Those of the names that are columns of the file and no fields of a struct."""
    leaves = (metadata.schema.column(i) for i in range(metadata.num_columns if names else 0))
    return [leaf.path for leaf in leaves if leaf.path in names and leaf.path == leaf.name] or None


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items[:5])) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def _has_nulls(chunk: pq.ColumnChunkMetaData) -> bool:
    statistics = chunk.statistics
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
                size += max(stored, rows * _LEAST_WIDTH)
            yield Segment(number, first_row, rows, int(size))
        first_row += rows


def _widths(schema: pa.Schema) -> tuple[int, list[range]]:
    """Decoded bytes per row of all fixed-width columns, and the leaf columns of each of the others."""
    width, loose, leaf = 0, [], 0
    pending = [field.type for field in reversed(schema)]
    while pending:
        kind = _storage_type(pending.pop())
        if pt.is_struct(kind):
            pending.extend(field.type for field in reversed(list(kind)))
            continue
        fixed = fixed_width(kind)
        if fixed is None:
            loose.append(range(leaf, leaf + _leaves(kind)))
        width += fixed or 0
        leaf += _leaves(kind)
    return width, loose


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def fixed_width(kind: pa.DataType) -> int | None:
    """Decoded bytes of a value (a bool takes one), or None where they differ from value to value."""
    kind = _storage_type(kind)
    if pt.is_fixed_size_list(kind):
        inner = fixed_width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if pt.is_null(kind):
        return 0
    return (
        (kind.bit_width + 7) // 8
        if pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_decimal(kind)
        else None
    )


def _leaves(kind: pa.DataType) -> int:
    """How many leaf columns Parquet stores for a column of this type."""
    kind = _storage_type(kind)
    if pt.is_nested(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    return 1
