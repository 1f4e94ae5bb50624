"""Reads strings and bytes as large strings and binaries where the file's Arrow schema asks for views.

Rust's `parquet` (DataFusion, delta-rs) stores a schema with views, which say nothing about the file: they are the types
that its writer had in memory. pyarrow would build them, and neither filters nor statistics accept them. They would be
converted to large strings before anything else, which takes longer than reading them as such.
"""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils.formats.parquet.thrift import coded_binary
from torch_dataloader_utils.schemas.merge import without_views

_KEY = b"ARROW:schema"


def without_view_types(footer: bytes, opened: pq.ParquetFile) -> bytes:
    """The footer with a stored Arrow schema that has no views; most footers unchanged.

    Args:
        footer: a FileMetaData struct.
        opened: a file with this footer.
    """
    stored = (opened.metadata.metadata or {}).get(_KEY)
    if stored is None:
        return footer
    schema = opened.schema_arrow
    types = [(kind, without_views(kind)) for kind in schema.types]
    if all(plain is kind or plain == kind for kind, plain in types):
        return footer
    fields = [field.with_type(plain) for field, (_, plain) in zip(schema, types, strict=True)]
    # The last place with this key and value is the one: only the writer's name and the order of columns follow.
    before, after, end = footer.rpartition(_KEY + b"\x18" + coded_binary(stored))
    value = base64.b64encode(pa.schema(fields, schema.metadata).serialize())
    return b"".join([before, _KEY, b"\x18", coded_binary(value), end]) if after else footer
