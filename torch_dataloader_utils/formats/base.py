"""What a file format has to offer; a new format is one file of this package and one line in its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Storage

# (layout, schema of the file, its constants: column -> value for partition columns) -> layout without the segments
# that hold no row which can match.
Pruner = Callable[[FileLayout, pa.Schema, Mapping[str, Any]], FileLayout]


class Reader(Protocol):
    """An open file. Used by one thread at a time."""

    @property
    def schema(self) -> pa.Schema:
        """The file's top-level columns, as `read` gives them."""
        ...

    def read(self, segment_numbers: Sequence[int], columns: Sequence[str]) -> list[pa.ChunkedArray]:
        """One array per column, in the order of `columns`, over the rows of these segments in the order given.

        Args:
            segment_numbers: `Segment.number` of each segment.
            columns: names of top-level columns that the file has.

        Raises:
            FileReadError: naming file, segments and columns.
        """
        ...

    def close(self) -> None:
        """Close the file; the arrays read from it stay valid."""
        ...


class Format(Protocol):
    """A file format: how files are laid out and read. Stateless and picklable."""

    @property
    def name(self) -> str:
        """As `format=` spells it."""
        ...

    @property
    def segment_name(self) -> str:
        """What the format calls a segment."""
        ...

    @property
    def typed(self) -> bool:
        """Whether files say the types of their columns; of text, any type will do that all values can be read as."""
        ...

    @property
    def columnar(self) -> bool:
        """Whether a column is read without its neighbours; where it is not, all columns are asked for in one call."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """The `format_options` it takes, with their defaults."""
        ...

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The file's segments that hold rows, and its schema, from its footer alone (one open).

        Where a format has no row counts but by reading, segments have none (text: from its length and first bytes).
        `options` here and in `open` are those given; the format adds its defaults.

        Raises:
            FileReadError: naming the file.
        """
        ...

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
    ) -> Reader:
        """A reader of the file, which does not read the footer again.

        Args:
            file: as it was planned; an error says so where it has changed since.
            layout: from `layout`, perhaps with fewer segments.
            storage: where the file is.
            options: the `format_options` given.
            schema: the columns that will be asked for, with the types wanted. A format whose files say their types
                may give those instead; one whose files do not gives these. Strings or bytes as a dictionary: to be
                encoded, where the format can. It may name columns that the file does not have.

        Raises:
            FileReadError: naming the file.
        """
        ...

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A function that drops segments of a file in which no row can match `expression`; opens no file.

        Args:
            expression: a filter that fits `schema`.
            schema: the schema resolved over all files.
        """
        ...

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """Columns (nested ones as `parent.child`) that hold a null in these segments, as far as statistics prove it."""
        ...

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """What `layout` returned, as bytes that a manifest file can keep (never a pickle)."""
        ...

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """What `pack` was given.

        Raises:
            ValueError: the bytes are not of `pack`.
        """
        ...


def keep_all(expression: pc.Expression, schema: pa.Schema) -> Pruner:
    """The pruner of a format without statistics: it drops nothing."""
    return lambda layout, file_schema, constants: layout
