"""ORC: a segment is a stripe; rows come from the footer, which pyarrow reads anew for each open file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc

from torch_dataloader_utils.errors import FileReadError
from torch_dataloader_utils.formats.base import Pruner, keep_all
from torch_dataloader_utils.formats.decoding import Decoding
from torch_dataloader_utils.formats.orc.footer import OrcFooter, read_footer
from torch_dataloader_utils.formats.packing import pack_index, unpack_index
from torch_dataloader_utils.formats.sizes import counted_segments
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Naming, Storage, prefetch

_INDEX = ("offset", "stored", "rows")
_OVERFLOWING = "overflowing"


@dataclass(frozen=True)
class OrcFormat:
    """The ORC format."""

    name: str = "orc"
    segment_name: str = "stripe"
    typed: bool = True
    columnar: bool = True

    @property
    def options(self) -> Mapping[str, Any]:
        """None: ORC has neither checksums nor dialects."""
        return {}

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The stripes that hold rows, with the `OrcFooter` as the layout's metadata, and the file's schema."""
        with Naming(file.path, "footer"), storage.open_footer(file) as source:
            opened = orc.ORCFile(source)
            footer = read_footer(opened.reader.serialized_file_tail())
            schema = opened.schema
            _check(footer, opened, schema)
            return _layout(footer, schema), schema

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
    ) -> OrcReader:
        """A reader; pyarrow reads the tail of the file again, as it takes no footer from outside."""
        with Naming(file.path):
            return OrcReader(file, layout.metadata, storage, schema)

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A pruner that drops nothing: pyarrow does not tell the statistics of stripes."""
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """No column: nothing is proven without statistics."""
        return frozenset()

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """The stripes and the schema."""
        footer: OrcFooter = layout.metadata
        columns = zip(*footer.stripes, strict=True) if footer.stripes else ((),) * len(_INDEX)
        overflowing = [schema.get_field_index(name) for name in sorted(footer.overflowing)]
        numbers = {**dict(zip(_INDEX, columns, strict=True)), _OVERFLOWING: overflowing}
        return pack_index(schema.serialize().to_pybytes(), numbers)

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """The layout and schema that were packed."""
        packed, found = unpack_index(data, (*_INDEX, _OVERFLOWING))
        schema = pa.ipc.read_schema(pa.py_buffer(packed))
        stripes = tuple(zip(*(found[name] for name in _INDEX), strict=True))
        overflowing = frozenset(schema.names[place] for place in found[_OVERFLOWING])
        return _layout(OrcFooter(stripes, overflowing, False), schema), schema


FORMAT = OrcFormat()


class OrcReader:
    """An open ORC file. Used by one thread at a time.

    Attributes:
        schema: the file's top-level columns, as `read` gives them.
    """

    def __init__(self, file: DataFileInfo, footer: OrcFooter, storage: Storage, wanted: pa.Schema) -> None:
        self.path = file.path
        self._footer = footer
        self._source = storage.open_data(file)
        self._file = orc.ORCFile(self._source)
        self.schema: pa.Schema = self._file.schema
        # pyarrow reads 128 KiB at a time; a remote store is asked for a stripe at once, unless most of it is unwanted.
        self._whole = 2 * len(set(wanted.names) & set(self.schema.names)) >= len(self.schema)
        self._fetched = -1  # the stripe that was asked for
        self._unread: set[str] = set()  # columns of it that are still at hand

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column over these stripes, with a chunk per stripe."""
        names = list(columns)
        with Decoding(self.path, f"stripes {', '.join(map(str, segment_numbers))}, columns {', '.join(names)}"):
            self._check_timestamps(names)
            stripes = [self._stripe(number, names) for number in segment_numbers]
            kinds = [self.schema.field(name).type for name in names]
            return [pa.chunked_array([s.column(n) for s in stripes], k) for n, k in zip(names, kinds, strict=True)]

    def _stripe(self, number: int, names: list[str]) -> pa.RecordBatch:
        """A stripe's columns of these names and perhaps others."""
        offset, stored, rows = self._footer.stripes[number]
        if self._whole and (self._fetched != number or not set(names) <= self._unread):
            prefetch(self._source, [(offset, offset + stored)])
            self._fetched, self._unread = number, set(self.schema.names)
        self._unread -= set(names)
        batch = self._file.read_stripe(number, names)
        if not set(names) <= set(batch.schema.names):
            # To ORC, "x.y" may be the field y of a struct x, though there is a column of that name.
            batch = self._file.read_stripe(number)
        if names and batch.num_rows != rows:
            raise ValueError(f"stripe {number} has {batch.num_rows} rows, where the footer says {rows}.")
        return batch

    def _check_timestamps(self, names: Sequence[str]) -> None:
        """Refuse what some versions of pyarrow would read as other times."""
        for name in self._footer.overflowing.intersection(names):
            raise FileReadError(
                f"{self.path}, column {name}: has timestamps outside the years 1677 to 2262, which pyarrow, reading "
                "ORC as nanoseconds, cannot hold. Leave the column out with columns=, or rewrite the file."
            )

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._source.close()


def _layout(footer: OrcFooter, schema: pa.Schema) -> FileLayout:
    parts = ((rows, stored) for _, stored, rows in footer.stripes)
    return FileLayout(counted_segments(parts, schema), metadata=footer)


def _check(footer: OrcFooter, opened: orc.ORCFile, schema: pa.Schema) -> None:
    """Refuse a footer that contradicts itself, and files that pyarrow would read wrongly."""
    if footer.encrypted:
        raise ValueError("its columns are encrypted, which pyarrow's ORC reader does not decrypt: rewrite the file.")
    rows = sum(rows for _, _, rows in footer.stripes)
    if (len(footer.stripes), rows) != (opened.nstripes, opened.nrows):
        told = f"{opened.nstripes} and {opened.nrows}"
        raise ValueError(f"its {len(footer.stripes)} stripes have {rows} rows, where the file says {told}.")
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise ValueError(f"columns {', '.join(sorted(twice))}: a name occurs twice, so one of them cannot be read.")
