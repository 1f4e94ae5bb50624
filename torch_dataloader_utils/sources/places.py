"""Places of rows as a column, `PLACE`: the hash of a row's file and number, as subsets have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.hashing import U64, name_hash, number_hash, number_hashes
from torch_dataloader_utils.kernels.pages import Chunks
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.model import DataFileInfo, FileKey, FileLayout
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.reading.files import FileOpener, FileReader
from torch_dataloader_utils.sources.deleted_rows import LiveOpener, Positions
from torch_dataloader_utils.sources.manifest import FileManifest
from torch_dataloader_utils.storage import Storage

_FIELD = pa.field(PLACE, pa.uint64(), nullable=False)


def with_places(manifest: FileManifest, name: str) -> FileManifest:
    """The manifest with the column `PLACE`; `name` is that of the data.

    Raises:
        OptionError: the rows of the table have no place that stays.
    """
    if manifest.relative is None:
        raise OptionError(
            f"{name}: a transform asks for the places of rows, but those of this table move when it is rewritten. Tell "
            "its rows apart by columns: TargetEncode(by=[...])."
        )
    files = tuple(replace(file, name_hash=name_hash(manifest.name_of(file))) for file in manifest.files)
    keys = {file.info.key: file.name_hash for file in files}
    opener = manifest.opener
    placed: FileOpener = (  # rows have their numbers in the file as written
        replace(opener, inner=PlacedOpener(opener.inner, keys))
        if isinstance(opener, LiveOpener)
        else PlacedOpener(opener, keys)
    )
    return replace(manifest, files=files, opener=placed, schema=manifest.schema.append(_FIELD))


@dataclass(frozen=True)
class PlacedOpener:
    """Opens files of a format with the column `PLACE`.

    Attributes:
        inner: opens the files.
        keys: the hashes of their names.
    """

    inner: FileOpener
    keys: Mapping[FileKey, int]

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
        own = pa.schema([item for item in schema if item.name != PLACE])
        return _PlacedReader(self.inner.open(file, layout, storage, options, own), layout, self.keys[file.key])

    def value_ranges(self, layout: FileLayout, number: int, names: Collection[str]) -> Mapping[str, tuple[Any, Any]]:
        """As the file's format says."""
        return self.inner.value_ranges(layout, number, names)

    def decoder(self, layout: FileLayout, names: Sequence[str], options: Mapping[str, Any]) -> str:
        """As the file's format says."""
        return self.inner.decoder(layout, [name for name in names if name != PLACE], options)

    def list_values(self, layout: FileLayout, name: str) -> Sequence[int] | None:
        """As the file's format says."""
        return self.inner.list_values(layout, name)


class _PlacedReader:
    """An open file; used by one thread at a time."""

    def __init__(self, inner: FileReader, layout: FileLayout, key: int) -> None:
        self._inner, self._key, self._counted = inner, key, layout.known
        self._segments = {segment.number: segment for segment in layout.segments}
        self.schema: pa.Schema = inner.schema.append(_FIELD)

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

    def _uncounted(self, number: int, own: Sequence[str]) -> list[pa.ChunkedArray | pa.Array]:
        read = self._inner.read([number], list(own) or self._inner.schema.names[:1])
        places = _hashes(number_hash(self._key, number), 0, len(read[0]))
        return [*(read if own else ()), as_arrow(places)]

    def _places(self, numbers: Sequence[int]) -> U64:
        segments = [self._segments[number] for number in numbers]
        return np.concatenate([_hashes(self._key, segment.first_row, segment.rows or 0) for segment in segments])

    def chunks(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> Mapping[str, Chunks]:
        """Those of the file's own columns."""
        return self._inner.chunks(segment_numbers, [name for name in columns if name != PLACE])

    def together(self, columns: Sequence[str], rows: int) -> Sequence[str]:
        """Places alone; of the others, as the file's own reader decides."""
        if columns and columns[0] == PLACE:
            return [PLACE]
        return self._inner.together([name for name in columns if name != PLACE], rows)

    def read_rows(
        self, segment_numbers: Sequence[int], columns: Sequence[str], rows: Positions
    ) -> Mapping[str, pa.ChunkedArray]:
        """As the file's own reader, and places, if they are known without reading."""
        found = dict(self._inner.read_rows(segment_numbers, [name for name in columns if name != PLACE], rows))
        if PLACE in columns and self._counted:
            found[PLACE] = pa.chunked_array([as_arrow(self._places(segment_numbers)[rows])])
        return found

    def prefetch(self, segment_numbers: Sequence[int]) -> bool:
        """Fetch these segments; as the file's own reader."""
        return self._inner.prefetch(segment_numbers)

    def confirm(self) -> None:
        """Check that the file is still as planned."""
        self._inner.confirm()

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        self._inner.close()


def _hashes(key: int, first: int, count: int) -> U64:
    return np.concatenate([np.zeros(0, np.uint64), *number_hashes(key, first, count)])
