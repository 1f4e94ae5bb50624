"""Rows of data files that a table has deleted: not counted when an epoch is planned, skipped when files are read.

Rows outside a subset that is chosen by place are treated alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import FileReadError, OptionError
from torch_dataloader_utils.events import during
from torch_dataloader_utils.hashing import Choice, number_hash
from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.reading.decoding import numbers_of
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.reading.places import FileKeys, placed
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder
from torch_dataloader_utils.sources.roaring import rows_in
from torch_dataloader_utils.storage import Storage

Positions: TypeAlias = npt.NDArray[np.int64]  # row numbers in a file as written, ascending, each once
Mask: TypeAlias = npt.NDArray[np.bool_]

_MOST = 0.9  # the share of rows left up to which gathering them is faster than Arrow's filter, which branches per row
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def live_segments(segments: Sequence[Segment], deleted: Positions) -> Iterator[Segment]:
    """The segments with rows left, numbered as if the deleted rows never existed; all segments need row counts."""
    for segment in segments:
        assert segment.rows is not None
        begin, end = np.searchsorted(deleted, [segment.first_row, segment.first_row + segment.rows])
        rows = segment.rows - int(end - begin)
        if rows:
            yield replace(segment, first_row=segment.first_row - int(begin), rows=rows)


def live_mask(segments: Sequence[Segment], deleted: Positions, dead: Mapping[int, Mask]) -> pa.Array | None:
    """Which rows of these segments are left: Arrow bools over all their rows; None if all are left.

    Args:
        segments: segments of the file as written.
        deleted: row numbers.
        dead: further deleted rows by segment number: bool [rows].
    """
    masks = [_mask(segment, deleted, dead.get(segment.number)) for segment in segments]
    if all(mask is None for mask in masks):
        return None
    parts = [
        np.ones(segment.rows or 0, np.bool_) if mask is None else mask
        for segment, mask in zip(segments, masks, strict=True)
    ]
    bits = np.packbits(np.concatenate(parts), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), sum(map(len, parts)), [None, pa.py_buffer(bits)], 0)


def _mask(segment: Segment, deleted: Positions, dead: Mask | None) -> Mask | None:
    """Which rows of a segment are left: bool [rows]; None if all are left."""
    first, rows = segment.first_row, segment.rows or 0
    begin, end = np.searchsorted(deleted, [first, first + rows])
    if begin == end and (dead is None or not dead.any()):
        return None
    live: Mask = np.ones(rows, np.bool_) if dead is None else ~dead
    live[deleted[begin:end] - first] = False
    return live


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows of one file that a choice holds.

    Attributes:
        choice: the choice.
        key: the hash of the file's name.
        counted: whether the file records how many rows its segments have.
    """

    choice: Choice
    key: int
    counted: bool

    def mask(self, segment: Segment, rows: int) -> npt.NDArray[np.bool_]:
        """Which rows of a segment are chosen, bool [rows].

        A row has its number in the file as written; where that is known only after reading all rows before it, its
        number in the segment.

        Args:
            segment: of the file's own layout.
            rows: its number of rows.
        """
        key, first = (self.key, segment.first_row) if self.counted else (number_hash(self.key, segment.number), 0)
        return np.concatenate([np.zeros(0, np.bool_), *self.choice.rows(key, first, rows)])


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The metadata of a layout without some rows.

    Attributes:
        inner: the file's own layout.
        deleted: the deleted rows.
        chosen: chooses among all rows; None for all of them.
    """

    inner: FileLayout
    deleted: Positions
    chosen: ChosenRows | None = None

    def mask(self, segment: Segment) -> Mask:
        """Which rows of a segment of the file's own layout are left, if its row count is known: bool [rows]."""
        live = _mask(segment, self.deleted, self._dead(segment, segment.rows or 0))
        return np.ones(segment.rows or 0, np.bool_) if live is None else live

    def live(self, segments: Sequence[Segment], counts: Sequence[int]) -> pa.Array | None:
        """As `live_mask`, for segments with these numbers of rows."""
        if self.chosen is None:
            return live_mask(segments, self.deleted, {})
        known = [replace(segment, rows=count) for segment, count in zip(segments, counts, strict=True)]
        dead = {segment.number: self._dead(segment, segment.rows or 0) for segment in known}
        return live_mask(known, self.deleted, {number: mask for number, mask in dead.items() if mask is not None})

    def _dead(self, segment: Segment, rows: int) -> Mask | None:
        return None if self.chosen is None else ~self.chosen.mask(segment, rows)


def chosen_file(file: DataFile, choice: Choice, name: int) -> DataFile:
    """The file with only the chosen rows of those it has left, for `LiveOpener`; `name` is the hash of its name."""
    own = file.layout.metadata
    live = own if isinstance(own, LiveRows) else LiveRows(file.layout, np.zeros(0, np.int64))
    live = replace(live, chosen=ChosenRows(choice, name, live.inner.known))
    if not live.inner.known:
        return replace(file, layout=replace(file.layout, metadata=live))
    kept, segments, first = {segment.number for segment in file.layout.segments}, [], 0
    for segment in live.inner.segments:
        rows = int(live.mask(segment).sum()) if segment.number in kept else 0
        if rows:
            segments.append(replace(segment, first_row=first, rows=rows))
            first += rows
    layout = replace(file.layout, segments=tuple(segments), metadata=live)
    return replace(file, info=replace(file.info, record_count=first), layout=layout)


def live_file(file: DataFile, deleted: Sequence[int] | Positions) -> DataFile:
    """The file without these rows, for `LiveOpener`.

    Args:
        file: with the layout from its format; segments may have been dropped, but the row count must be unchanged.
        deleted: row numbers in the file, in any order.

    Raises:
        OptionError: the format does not number rows.
        FileReadError: the file does not contain these rows.
    """
    if not len(deleted):
        return file
    positions = np.unique(np.asarray(deleted, np.int64))
    path, rows = printable(file.info.path), file.info.record_count
    if rows is None:
        raise OptionError(
            f"{path}: the table deletes rows by number, and files of this format do not record row counts: "
            "expected a format that does, such as Parquet."
        )
    if positions[0] < 0 or positions[-1] >= rows:
        wrong = positions[0] if positions[0] < 0 else positions[-1]
        raise FileReadError(f"{path}: the table deletes row {wrong}, but the file has {rows} rows.")
    segments = tuple(live_segments(file.layout.segments, positions))
    layout = replace(file.layout, segments=segments, metadata=LiveRows(file.layout, positions))
    return replace(file, info=replace(file.info, record_count=rows - len(positions)), layout=layout)


@dataclass(frozen=True)
class LiveOpener:
    """Opens files of a format without the rows that `live_file` removed.

    Attributes:
        inner: opens the unmodified files.
    """

    inner: FileOpener

    @property
    def segment_name(self) -> str:
        """What the format calls a segment."""
        return self.inner.segment_name

    @property
    def columnar(self) -> bool:
        """Whether a column is read without its neighbours."""
        return self.inner.columnar

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> FileReader:
        """A reader of the remaining rows."""
        live = layout.metadata
        if not isinstance(live, LiveRows):
            return self.inner.open(file, layout, storage, options, schema)
        return _LiveReader(self.inner.open(file, live.inner, storage, options, schema), live)

    def placed(self, keys: FileKeys) -> LiveOpener:
        """The opener that also reads the places of rows, by their numbers in the file as written."""
        return replace(self, inner=placed(self.inner, keys))

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The ranges of all rows of the segment, including deleted ones."""
        return self.inner.value_ranges(own_layout(layout), number, names)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """As the file's format says."""
        return self.inner.decoder(own_layout(layout), names, options)

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """The values of a file without deleted rows; None of any other: it is not known what the others hold."""
        return None if isinstance(layout.metadata, LiveRows) else self.inner.list_values(layout, name)


def own_layout(layout: FileLayout) -> FileLayout:
    """The layout of the file as written."""
    return layout.metadata.inner if isinstance(layout.metadata, LiveRows) else layout


@dataclass(frozen=True, slots=True)
class _Kept:
    """The rows that are left: a mask, and their places if gathering them is faster."""

    mask: pa.Array
    places: pa.Array | None

    def of(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column's rows that are left."""
        gathered = self.places is not None and column.num_chunks == 1 and pa.types.is_primitive(column.type)
        return column.take(self.places) if gathered else column.filter(self.mask)


def _kept(mask: pa.Array) -> _Kept:
    few = mask.true_count <= _MOST * len(mask)
    return _Kept(mask, pc.indices_nonzero(mask) if few else None)


class _LiveReader:
    """An open file; used by one thread at a time."""

    def __init__(self, inner: FileReader, live: LiveRows) -> None:
        self._inner = inner
        self._segments = {segment.number: segment for segment in live.inner.segments}
        self._live_rows = live
        self._kept: tuple[list[int], _Kept | None] = ([], None)  # the last one: columns are read in several calls
        self.schema: pa.Schema = inner.schema

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the remaining rows of these segments."""
        numbers = list(segment_numbers)
        segments = [self._segments[number] for number in numbers]
        if len(segments) > 1 and any(segment.rows is None for segment in segments):
            # Only a segment that is read alone shows how many rows it has.
            parts = [self.read([number], columns) for number in numbers]
            same = zip(*parts, strict=True)
            return [pa.chunked_array([c for part in all_of for c in part.chunks], all_of[0].type) for all_of in same]
        arrays = self._inner.read(numbers, columns)
        if not arrays:
            return arrays
        counts = [len(arrays[0]) if segment.rows is None else segment.rows for segment in segments]
        with during("delete"):
            kept = self._left(segments, counts)
            return arrays if kept is None else [kept.of(array) for array in arrays]

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """None, because rows are left out."""
        return {}

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """None, because rows are left out."""
        return {}

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """As the file's own reader decides."""
        return self._inner.together(columns, rows)

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: Positions
    ) -> Mapping[str, pa.ChunkedArray]:
        """As the file's own reader, if it is known which of the file's rows these are."""
        segments = [self._segments[number] for number in segment_numbers]
        if any(segment.rows is None for segment in segments):
            return {}
        with during("delete"):
            kept = self._left(segments, [segment.rows or 0 for segment in segments])
            stored = rows if kept is None else numbers_of(kept.mask)[rows]
        return self._inner.read_rows(segment_numbers, columns, stored)

    def _left(self, segments: Sequence[Segment], counts: Sequence[int]) -> _Kept | None:
        """The rows of these segments that are left, by their numbers of rows; None for all."""
        numbers = [segment.number for segment in segments]
        if numbers != self._kept[0]:
            mask = self._live_rows.live(segments, counts)
            self._kept = (numbers, None if mask is None else _kept(mask))
        return self._kept[1]

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Fetch these segments; as the file's own reader."""
        return self._inner.prefetch(segment_numbers)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        self._inner.confirm()

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._inner.close()


def deletion_vector(blob: bytes, most: int) -> Positions:
    """The row numbers, int64, ascending, in a deletion vector as Iceberg and Delta Lake store it.

    Args:
        blob: length, magic, a 64-bit roaring bitmap in portable form, a checksum.
        most: how many rows it may delete; this is checked before the bitmap is expanded.

    Raises:
        ValueError: it is damaged, deletes more rows, or is not a deletion vector.
    """
    if int.from_bytes(blob[:4], "big") != len(blob) - 8:
        raise ValueError(f"its length is given as {int.from_bytes(blob[:4], 'big')} bytes, but it has {len(blob)}.")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("its checksum is wrong: the bytes are damaged.")
    return vector_rows(blob[4:-4], most)


def vector_rows(data: bytes, most: int) -> Positions:
    """As `deletion_vector`, for the bytes between length and checksum: the magic and the bitmap."""
    if data[:4] != _VECTOR_MAGIC:
        raise ValueError(f"it begins with {data[:4]!r}, expected {_VECTOR_MAGIC!r}.")
    return rows_in(data[4:], most)
