"""What reading asks of files: every format gives it, and so does what reads the data files of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage


class FileReader(Protocol):
    """An open file, as reading needs it (see `formats.base.Reader`). Used by one thread at a time."""

    schema: pa.Schema  # the columns, as `read` gives them

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over the rows of these segments."""
        ...

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        ...


class FileOpener(Protocol):
    """Opens the files of a scan: a file format, or what reads the data files of a table. Stateless and picklable."""

    @property
    def segment_name(self) -> str:
        """What a segment is called in messages."""
        ...

    @property
    def columnar(self) -> bool:
        """Whether a column is read without its neighbours; where it is not, all columns are asked for in one call."""
        ...

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> FileReader:
        """A reader of the file.

        Args:
            file: as it was planned; an error says so where it has changed since.
            layout: as it was planned, perhaps with fewer segments.
            storage: where the file is.
            options: the `format_options` given.
            schema: the columns that will be asked for, with the types wanted (see `Format.open`).

        Raises:
            FileReadError: naming the file.
        """
        ...

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """The least and the greatest value of top-level columns in a segment, as far as they are known unread."""
        ...
