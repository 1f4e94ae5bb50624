"""What a file format has to offer; a new format is one file of this package and one line in its table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    def options(self) -> Mapping[str, Any]:
        """The `format_options` it takes, with their defaults."""
        ...

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The file's segments that hold rows, and its schema, from its footer alone (one open).

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
        encoded: Collection[str] = (),
    ) -> Reader:
        """A reader of the file, which does not read the footer again.

        The columns `encoded`, of strings or bytes, are better given as dictionaries, where the format can.

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
