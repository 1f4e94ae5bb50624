"""Places of rows as a column, `PLACE`: the hash of a row's file and number, as subsets have it; and back.

For each file the hash is a bijection, so a place tells its row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.hashing import U64, hashed_number, hashes_of_numbers, name_hash, number_hash, number_hashes
from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.options.transform import PLACE
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
class PlacedOpener:
    """Opens files with the column `PLACE`.

    Attributes:
        inner: opens the files.
        keys: of the files.
        numbered: whether the readers of `inner` know the numbers of rows, and return them as that column.
    """

    inner: FileOpener
    keys: FileKeys
    numbered: bool = False

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
        """A reader of the file."""
        key = self.keys.of(file)
        if self.numbered:
            return _NumberedReader(self.inner.open(file, layout, storage, options, schema), key)
        own = pa.schema([item for item in schema if item.name != PLACE])
        return _PlacedReader(self.inner.open(file, layout, storage, options, own), key, layout)

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """As the file's format says."""
        return self.inner.value_ranges(layout, number, names)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """As the file's format says."""
        return self.inner.decoder(layout, [name for name in names if name != PLACE], options)

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """As the file's format says."""
        return self.inner.list_values(layout, name)


class _Reader:
    """An open file; used by one thread at a time."""

    def __init__(self, inner: FileReader, key: int) -> None:
        self._inner, self._key = inner, key

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the file's own columns."""
        return self._inner.chunks(segment_numbers, [name for name in columns if name != PLACE])

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """Places alone; of the others, as the file's own reader decides."""
        if columns and columns[0] == PLACE:
            return [PLACE]
        return self._inner.together([name for name in columns if name != PLACE], rows)

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Fetch these segments; as the file's own reader."""
        return self._inner.prefetch(segment_numbers)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        self._inner.confirm()

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._inner.close()


class _PlacedReader(_Reader):
    """A file whose rows have their numbers by its layout."""

    def __init__(self, inner: FileReader, key: int, layout: FileLayout) -> None:
        super().__init__(inner, key)
        self._counted = layout.known
        self._segments = {segment.number: segment for segment in layout.segments}
        self.schema: pa.Schema = inner.schema.append(PLACE_FIELD)

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the rows of these segments."""
        if PLACE not in columns:
            return self._inner.read(segment_numbers, columns)
        own = [name for name in columns if name != PLACE]
        if self._counted:
            found = dict(zip(own, self._inner.read(segment_numbers, own) if own else (), strict=True))
            found[PLACE] = pa.chunked_array([as_arrow(self._places(segment_numbers))])
            return [found[name] for name in columns]
        # Only a segment that is read alone shows how many rows it has.
        parts = [self._uncounted(number, own) for number in segment_numbers]
        tables = [pa.table(dict(zip([*own, PLACE], part, strict=True))) for part in parts]
        return list(pa.concat_tables(tables).select(list(columns)).columns)

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """As the file's own reader, and places, if they are known without reading."""
        found = dict(self._inner.read_rows(segment_numbers, [name for name in columns if name != PLACE], rows))
        if PLACE in columns and self._counted:
            found[PLACE] = pa.chunked_array([as_arrow(self._places(segment_numbers)[rows])])
        return found

    def _uncounted(self, number: int, own: Sequence[str]) -> list[pa.ChunkedArray | pa.Array]:
        read = self._inner.read([number], list(own) or self._inner.schema.names[:1])
        places = _hashes(number_hash(self._key, number), 0, len(read[0]))
        return [*(read if own else ()), as_arrow(places)]

    def _places(self, numbers: Sequence[int]) -> U64:
        segments = [self._segments[number] for number in numbers]
        return np.concatenate([_hashes(self._key, segment.first_row, segment.rows or 0) for segment in segments])


class _NumberedReader(_Reader):
    """A file whose own reader knows the numbers of the rows that it returns."""

    def __init__(self, inner: FileReader, key: int) -> None:
        super().__init__(inner, key)
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
        return self._inner.read_rows(segment_numbers, [name for name in columns if name != PLACE], rows)


def _hashes(key: int, first: int, count: int) -> U64:
    return np.concatenate([np.zeros(0, np.uint64), *number_hashes(key, first, count)])
