"""ORC: a segment is a stripe; row counts are in the footer, which pyarrow reads again for each open file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.types as pt

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.base import BatchReader, Format
from torch_dataloader_utils.formats.orc.footer import OrcFooter, read_footer
from torch_dataloader_utils.formats.orc.lengths import LengthCheck
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage, prefetch


class OrcReader(BatchReader):
    """An open ORC file; pyarrow reads its tail again, because it does not accept a footer."""

    segments = "stripes"

    def __init__(
        self, file: DataFileInfo, layout: FileLayout, storage: Storage, options: Mapping[str, Any], schema: pa.Schema
    ) -> None:
        super().__init__(file, layout, storage, options, schema)
        self._file = orc.ORCFile(self.source)
        self.schema = self._file.schema
        # pyarrow reads 128 KiB at a time; a whole stripe is one request to a remote store, unless most is not needed.
        self._whole = 2 * len(set(schema.names) & set(self.schema.names)) >= len(self.schema)
        self._fetched = -1  # the stripe that was prefetched
        self._unread: set[str] = set()  # its columns that have not been read yet
        # The lengths of a few columns of a remote file would need requests of their own.
        checked = (storage.local or self._whole) and not all(map(pt.is_primitive, schema.types))
        self._lengths = LengthCheck(self.source, self._file.reader.serialized_file_tail()) if checked else None

    def ranges(self, segment_numbers: Sequence[int]) -> Sequence[tuple[int, int]]:
        """The stripes, unless most columns are not needed."""
        stripes = (self.metadata.stripes[number] for number in segment_numbers if self._whole)
        return [(offset, offset + stored) for offset, stored, _ in stripes]

    def batches(self, numbers: list[int], columns: list[str]) -> Sequence[pa.RecordBatch]:
        """The stripes, with at least these columns."""
        for name in self.metadata.overflowing.intersection(columns):
            # Some versions of pyarrow would return wrong times.
            raise FileReadError(
                f"{self.path}, column {name}: has timestamps outside the years 1677 to 2262, which pyarrow cannot "
                "represent, because it reads ORC as nanoseconds. Leave out the column with columns=, or rewrite the "
                "file."
            )
        return [self._stripe(number, columns) for number in numbers]

    def _stripe(self, number: int, names: list[str]) -> pa.RecordBatch:
        if self._whole and (self._fetched != number or not set(names) <= self._unread):
            prefetch(self.source, self.ranges([number]))
            self._fetched, self._unread = number, set(self.schema.names)
        self._unread -= set(names)
        if self._lengths is not None:
            self._lengths.check(number, names)
        batch = self._file.read_stripe(number, names)
        if not set(names) <= set(batch.schema.names):
            # ORC may resolve "x.y" to the field y of a struct x, even if there is a column with that name.
            batch = self._file.read_stripe(number)
        return batch


class OrcFormat(Format):
    """The ORC format; the layout's metadata is an `OrcFooter`."""

    name = "orc"
    segment_name = "stripe"
    reader = OrcReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The stripes that have rows, and the file's schema."""
        opened = orc.ORCFile(source)
        footer = read_footer(opened.reader.serialized_file_tail())
        _check(footer, opened)
        parts = ((rows, stored) for _, stored, rows in footer.stripes)
        return counted_layout(parts, opened.schema, footer), opened.schema

    def pack_metadata(self, metadata: OrcFooter) -> tuple[Any, bytes]:
        """The stripes, and the columns that overflow."""
        return [metadata.stripes, sorted(metadata.overflowing)], b""

    def unpack_metadata(self, plain: Any, blob: bytes, schema: pa.Schema) -> OrcFooter:
        """The footer."""
        stripes, overflowing = plain
        return OrcFooter(tuple(map(tuple, stripes)), frozenset(overflowing), False)


FORMAT = OrcFormat()


def _check(footer: OrcFooter, opened: orc.ORCFile) -> None:
    """Reject an inconsistent footer, and files that pyarrow would misread."""
    if footer.encrypted:
        raise ValueError("its columns are encrypted, and pyarrow's ORC reader cannot decrypt them: rewrite the file.")
    rows = sum(rows for _, _, rows in footer.stripes)
    if (len(footer.stripes), rows) != (opened.nstripes, opened.nrows):
        counts = f"{opened.nstripes} and {opened.nrows}"
        raise ValueError(f"its {len(footer.stripes)} stripes have {rows} rows, but the file declares {counts}.")
