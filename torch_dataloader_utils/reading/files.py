"""The interface through which files are read: formats implement it, and so do the readers of tables' data files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.schemas.dictionaries import DictionaryDecoder
from torch_dataloader_utils.storage import Storage


class FileReader(Protocol):
    """An open file (see `formats.base.Reader`). Used by one thread at a time."""

    schema: pa.Schema  # the columns, as `read` returns them

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column, with the rows of these segments."""
        ...

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Whether it is known what `read` needs for all columns of these segments: then a remote store is asked now."""
        ...

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """Which of these columns one call of `read` of so many rows decodes best, in order; call again for others."""
        ...

    def codes(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, DictionaryDecoder]:
        """Those of the columns of strings or bytes that are numbers of few words, and what decodes them so."""
        ...

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the columns that `kernels.pages` can decode: chunk for each segment, of all rows."""
        ...

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: npt.NDArray[np.int64]
    ) -> Mapping[str, pa.ChunkedArray]:
        """The rows with these ascending numbers, for those of the columns of which that costs less than `read`."""
        ...

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        ...

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        ...


class FileOpener(Protocol):
    """Opens the files of a scan: a file format, or the reader of a table's data files. Stateless and picklable."""

    @property
    def segment_name(self) -> str:
        """What a segment is called in messages."""
        ...

    @property
    def columnar(self) -> bool:
        """Whether a column can be read without the others; if not, one call requests all columns."""
        ...

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> FileReader:
        """A reader of the file.

        Args:
            file: as it was planned; it is an error if the file has changed since.
            layout: as it was planned, perhaps with fewer segments.
            storage: where the file is.
            options: the `format_options` given.
            schema: the columns that will be requested, with the requested types (see `Format.open`).

        Raises:
            FileReadError: the file cannot be read; names it.
        """
        ...

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The minimum and maximum of top-level columns in a segment, where they are known without reading it."""
        ...

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """What decodes these columns of a file, in words; "" if there is nothing to say."""
        ...

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """The number of values in the lists of a top-level column, for each segment, if known without reading it."""
        ...
