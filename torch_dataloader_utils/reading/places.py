"""Places of rows as a column, `PLACE`: the hash of a row's file and number, as subsets have it; and back.

For each file the hash is a bijection, so a place tells its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import U64, hashed_number, hashes_of_numbers, name_hash, number_hash, number_hashes
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.added_columns import AddedReader, AddingOpener, LaidOutReader
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.storage import Storage

PLACE_FIELD = pa.field(PLACE, pa.uint64(), nullable=False)
_MOST_ROWS = 1 << 36  # of a file: a larger number is that of a row of another one


@dataclass(frozen=True)
class FileKeys:
    """The key of each file, under which its rows are hashed.

    Attributes:
        names: path -> the hash of the file's name; None: that of its path is taken.
    """

    names: Mapping[str, int] | None = None

    def of(self, file: DataFileInfo) -> int:
        """The key of a file."""
        return name_hash(file.path) if self.names is None else self.names[file.path]


class RowOfFile(NamedTuple):
    """Where a row is.

    Attributes:
        row: its number in the file as written; with a segment, in that segment.
        segment: the number of its segment, where the file does not say how many rows are before it; else None.
    """

    row: int
    segment: int | None


def row_of_file(place: int, key: int, segments: Sequence[int]) -> RowOfFile | None:
    """The row of a file that has this place; None if it has none.

    Args:
        place: the place.
        key: of the file.
        segments: the numbers of the segments in which it may be.
    """
    row = hashed_number(key, place)
    if row < _MOST_ROWS:
        return RowOfFile(row, None)
    for segment in segments:
        row = hashed_number(number_hash(key, segment), place)
        if row < _MOST_ROWS:
            return RowOfFile(row, segment)
    return None


def placed(opener: FileOpener, keys: FileKeys) -> FileOpener:
    """The opener of the same files that also reads the column `PLACE`."""
    made = getattr(opener, "placed", None)  # of those that leave rows out: rows have their numbers in the file
    return PlacedOpener(opener, keys) if made is None else made(keys)


@dataclass(frozen=True)
class PlacedOpener(AddingOpener):
    """Opens files with the column `PLACE`.

    Attributes:
        inner: opens the files.
        keys: of the files.
        numbered: whether the readers of `inner` know the numbers of rows, and return them as that column.
    """

    inner: FileOpener
    keys: FileKeys
    numbered: bool = False
    added = PLACE

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> FileReader:
        """A reader of the file."""
        key = self.keys.of(file)
        if self.numbered:
            return _HashingReader(self.inner.open(file, layout, storage, options, schema), key)
        own = pa.schema([item for item in schema if item.name != PLACE])
        return _PlacedReader(self.inner.open(file, layout, storage, options, own), key, layout)


class _PlacedReader(LaidOutReader):
    """A file whose rows have their numbers by its layout."""

    def __init__(self, inner: FileReader, key: int, layout: FileLayout) -> None:
        super().__init__(inner, PLACE_FIELD, layout)
        self._key = key

    def values(self, segment: Segment, rows: int) -> U64:
        """The places of a segment's rows."""
        if self._counted:
            return _hashes(self._key, segment.first_row, rows)
        return _hashes(number_hash(self._key, segment.number), 0, rows)


class _HashingReader(AddedReader):
    """A file whose own reader knows the numbers of the rows that it returns."""

    def __init__(self, inner: FileReader, key: int) -> None:
        super().__init__(inner, PLACE)
        self._key = key
        place = inner.schema.get_field_index(PLACE)
        self.schema: pa.Schema = inner.schema if place < 0 else inner.schema.set(place, PLACE_FIELD)

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the rows that are left of these segments."""
        arrays = list(self._inner.read(segment_numbers, columns))
        if PLACE in columns:
            at = list(columns).index(PLACE)
            arrays[at] = pa.chunked_array([as_arrow(hashes_of_numbers(self._key, arrays[at].to_numpy()))])
        return arrays

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """As the file's own reader, without places."""
        return self._inner.read_rows(segment_numbers, self._stored(columns), rows)


def _hashes(key: int, first: int, count: int) -> U64:
    return np.concatenate([np.zeros(0, np.uint64), *number_hashes(key, first, count)])
