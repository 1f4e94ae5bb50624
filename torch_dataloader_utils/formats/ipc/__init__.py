"""Arrow IPC files (Feather version 2 among them) and streams: a segment is a record batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.formats.base import Pruner, keep_all
from torch_dataloader_utils.formats.ipc.messages import Index, Message, index_of
from torch_dataloader_utils.formats.ipc.reader import IpcReader
from torch_dataloader_utils.formats.packing import pack_index, unpack_index
from torch_dataloader_utils.formats.sizes import counted_segments
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Naming, Storage

_MESSAGE = ("offset", "metadata", "body", "kind", "rows")


@dataclass(frozen=True)
class IpcFormat:
    """The Arrow IPC formats."""

    name: str = "ipc"
    segment_name: str = "record batch"
    typed: bool = True
    columnar: bool = False  # columns of a batch lie side by side: one read brings them all

    @property
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """The batches that hold rows, with the `Index` as the layout's metadata, and the file's schema."""
        with Naming(file.path, "footer"), storage.open_footer(file) as source:
            index = index_of(source)
            schema = index.arrow_schema()
            twice = {name for name in schema.names if schema.names.count(name) > 1}
            if twice:
                raise ValueError(f"columns {', '.join(sorted(twice))}: a name occurs twice.")
            return _layout(index, schema), schema

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
    ) -> IpcReader:
        """A reader that takes the places of the messages from the layout."""
        with Naming(file.path):
            return IpcReader(file, layout.metadata, storage)

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A pruner that drops nothing: there are no statistics."""
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """No column: nothing is proven without statistics."""
        return frozenset()

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """The index of the messages."""
        index: Index = layout.metadata
        messages = (*index.dictionaries, *index.batches)
        numbers = {name: [getattr(message, name) for message in messages] for name in _MESSAGE}
        return pack_index(index.schema, {**numbers, "needed": index.needed})

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """The layout and schema that were packed."""
        packed, found = unpack_index(data, (*_MESSAGE, "needed"))
        needed = tuple(found["needed"])
        messages = tuple(Message(*numbers) for numbers in zip(*(found[name] for name in _MESSAGE), strict=True))
        first = len(messages) - len(needed)
        index = Index(packed, messages[:first], messages[first:], needed)
        schema = index.arrow_schema()
        return _layout(index, schema), schema


FORMAT = IpcFormat()


def _layout(index: Index, schema: pa.Schema) -> FileLayout:
    parts = ((batch.rows, batch.body) for batch in index.batches)
    return FileLayout(counted_segments(parts, schema), metadata=index)
