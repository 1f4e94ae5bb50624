"""Reads strings and bytes as what pyarrow decodes best where the file's Arrow schema asks for something else.

Rust's `parquet` (DataFusion, delta-rs) stores a schema with views, which say nothing about the file: they are the types
that its writer had in memory. pyarrow would build them, and neither filters nor statistics accept them. They would be
converted to large strings before anything else, which takes longer than reading them as such.

The same schema asks for dictionaries. pyarrow cannot build them of columns in delta encodings (DELTA_BYTE_ARRAY,
DELTA_LENGTH_BYTE_ARRAY), so these are read as plain strings or bytes, and encoded afterwards.
"""

from __future__ import annotations

import base64
from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.formats.parquet.thrift import coded_binary
from torch_dataloader_utils.schemas.merge import without_views

_KEY = b"ARROW:schema"
_DELTAS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})


def readable_types(footer: bytes, opened: pq.ParquetFile) -> tuple[bytes, pa.Schema]:
    """The footer with a stored Arrow schema that pyarrow can read as; most footers unchanged. And the file's schema.

    The schema has no views; columns are dictionaries there that the returned footer has as plain values.

    Args:
        footer: a FileMetaData struct.
        opened: a file with this footer.
    """
    schema = opened.schema_arrow
    stored = (opened.metadata.metadata or {}).get(_KEY)
    if stored is None:
        return footer, schema
    types = [(kind, without_views(kind)) for kind in schema.types]
    dictionaries = {field.name for field in schema if pt.is_dictionary(field.type)}
    plain = delta_strings(opened.metadata, dictionaries) if dictionaries else frozenset()
    if not plain and all(better is kind or better == kind for kind, better in types):
        return footer, schema
    fields = [field.with_type(better) for field, (_, better) in zip(schema, types, strict=True)]
    schema = pa.schema(fields, schema.metadata)
    read_as = pa.schema([_plain(field) if field.name in plain else field for field in fields], schema.metadata)
    # The last place with this key and value is the one: only the writer's name and the order of columns follow.
    before, after, end = footer.rpartition(_KEY + b"\x18" + coded_binary(stored))
    value = base64.b64encode(read_as.serialize())
    return (b"".join([before, _KEY, b"\x18", coded_binary(value), end]) if after else footer), schema


def delta_strings(metadata: pq.FileMetaData, names: Collection[str]) -> frozenset[str]:
    """Those of these top-level columns with strings or bytes in delta encodings, in any row group.

    Args:
        metadata: a file's.
        names: columns of strings or bytes.
    """
    leaves = [(i, metadata.schema.column(i).path) for i in range(metadata.num_columns)]
    groups = range(metadata.num_row_groups)
    return frozenset(
        path
        for leaf, path in leaves
        if path in names
        and any(not _DELTAS.isdisjoint(metadata.row_group(group).column(leaf).encodings) for group in groups)
    )


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type)
