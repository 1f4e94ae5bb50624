"""The names of rows as columns: `_file`, the name of a row's file, and `_pos`, its number there, from 0, as written.

Deletes, filters and subsets change no number, because what leaves rows out is applied to files that have the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.model import DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.options.sources import FILE, POSITION
from torch_dataloader_utils.reading.added_columns import AddingOpener, LaidOutReader
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.rows import I64
from torch_dataloader_utils.storage import Storage

FILE_TYPE = pa.dictionary(pa.int32(), pa.string())  # a block has one word for each of its files
FILE_FIELD, POSITION_FIELD = pa.field(FILE, FILE_TYPE), pa.field(POSITION, pa.int64())


@dataclass(frozen=True)
class NumberedOpener(AddingOpener):
    """Opens files with the column `_pos`, by their layouts.

    Attributes:
        inner: opens the files. Each says how many rows its segments have, or has a single one.
    """

    inner: FileOpener
    added = POSITION

    def open(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> FileReader:
        """A reader of the file."""
        own = pa.schema([item for item in schema if item.name != POSITION])
        return _NumberedReader(self.inner.open(file, layout, storage, options, own), POSITION_FIELD, layout)


class _NumberedReader(LaidOutReader):
    """A file with the numbers of its rows."""

    def values(self, segment: Segment, rows: int) -> I64:
        """The numbers of a segment's rows."""
        return np.arange(segment.first_row, segment.first_row + rows, dtype=np.int64)
