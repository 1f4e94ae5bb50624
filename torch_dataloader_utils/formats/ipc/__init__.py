"""Arrow IPC files (including Feather version 2) and streams: a segment is a record batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.formats.base import Format
from torch_dataloader_utils.formats.ipc.arrays import check_types
from torch_dataloader_utils.formats.ipc.messages import Index, Message, index_of
from torch_dataloader_utils.formats.ipc.reader import IpcReader
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout


class IpcFormat(Format):
    """The Arrow IPC formats; the layout's metadata is an `Index`."""

    name = "ipc"
    segment_name = "record batch"
    columnar = False  # columns of a batch are adjacent: one read fetches them all
    reader = IpcReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        """The batches that have rows, and the file's schema."""
        index = index_of(source)
        schema = index.arrow_schema()
        check_types(schema)
        return counted_layout(((batch.rows, batch.body) for batch in index.batches), schema, index), schema

    def pack_metadata(self, metadata: Index) -> tuple[Any, bytes]:
        """The messages' locations, and the schema message unchanged, because the others refer to its dictionary ids."""
        messages = [list(map(astuple, kind)) for kind in (metadata.dictionaries, metadata.batches)]
        return [*messages, metadata.needed], metadata.schema

    def unpack_metadata(self, plain: Any, blob: bytes, schema: pa.Schema) -> Index:
        """The index."""
        *messages, needed = plain
        dictionaries, batches = (tuple(Message(*numbers) for numbers in kind) for kind in messages)
        return Index(blob, dictionaries, batches, tuple(needed))


FORMAT = IpcFormat()
