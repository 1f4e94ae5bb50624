"""A column that follows from where a row is in its file, read beside those that the file holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import FileLayout, Segment
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder


class AddingOpener:
    """What all openers of files with such a column have in common; `inner` opens them without it."""

    inner: FileOpener

    @property
    def added(self) -> str:
        """The name of the column."""
        raise NotImplementedError

    @property
    def segment_name(self) -> str:
        """What the format calls a segment."""
        return self.inner.segment_name

    @property
    def columnar(self) -> bool:
        """Whether a column is read without its neighbours."""
        return self.inner.columnar

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """As the file's format says."""
        return self.inner.value_ranges(layout, number, names)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """As the file's format says."""
        return self.inner.decoder(layout, [name for name in names if name != self.added], options)

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """As the file's format says."""
        return self.inner.list_values(layout, name)


class AddedReader:
    """An open file, with the column; used by one thread at a time.

    Args:
        inner: the file.
        added: the name of the column.
    """

    def __init__(self, inner: FileReader, added: str) -> None:
        self._inner, self._added = inner, added

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """The columns of these that the file holds."""
        return [name for name in columns if name != self._added]

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """Those of the file's own columns."""
        return self._inner.codes(segment_numbers, self._stored(columns))

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the file's own columns."""
        return self._inner.chunks(segment_numbers, self._stored(columns))

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """The added column alone; of the others, as the file's own reader decides."""
        if columns and columns[0] == self._added:
            return [self._added]
        return self._inner.together(self._stored(columns), rows)

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Fetch these segments; as the file's own reader."""
        return self._inner.prefetch(segment_numbers)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        self._inner.confirm()

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._inner.close()


class LaidOutReader(AddedReader, ABC):
    """A file with a column that follows from its layout.

    Args:
        inner: the file.
        field: the column.
        layout: of the file.
    """

    def __init__(self, inner: FileReader, field: pa.Field, layout: FileLayout) -> None:
        super().__init__(inner, field.name)
        self._counted = layout.known
        self._segments = {segment.number: segment for segment in layout.segments}
        self.schema: pa.Schema = inner.schema.append(field)

    @abstractmethod
    def values(self, segment: Segment, rows: int) -> npt.NDArray[Any]:
        """The column in a segment of so many rows: [rows]."""

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the rows of these segments."""
        if self._added not in columns:
            return self._inner.read(segment_numbers, columns)
        own = self._stored(columns)
        if self._counted:
            found = dict(zip(own, self._inner.read(segment_numbers, own) if own else (), strict=True))
            found[self._added] = pa.chunked_array([as_arrow(self._known(segment_numbers))])
            return [found[name] for name in columns]
        # Only a segment that is read alone shows how many rows it has.
        parts = [self._uncounted(number, own) for number in segment_numbers]
        tables = [pa.table(dict(zip([*own, self._added], part, strict=True))) for part in parts]
        return list(pa.concat_tables(tables).select(list(columns)).columns)

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """As the file's own reader, and the column, if it is known without reading."""
        found = dict(self._inner.read_rows(segment_numbers, self._stored(columns), rows))
        if self._added in columns and self._counted:
            found[self._added] = pa.chunked_array([as_arrow(self._known(segment_numbers)[rows])])
        return found

    def _uncounted(self, number: int, own: Sequence[str]) -> list[pa.ChunkedArray | pa.Array]:
        read = self._inner.read([number], list(own) or self._inner.schema.names[:1])
        return [*(read if own else ()), as_arrow(self.values(self._segments[number], len(read[0])))]

    def _known(self, numbers: Sequence[int]) -> npt.NDArray[Any]:
        segments = [self._segments[number] for number in numbers]
        return np.concatenate([self.values(segment, segment.rows or 0) for segment in segments])
