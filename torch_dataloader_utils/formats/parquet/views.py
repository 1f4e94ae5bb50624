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

    The schema has no views; top-level columns are dictionaries there that the returned footer has as plain values.

    Args:
        footer: a FileMetaData struct.
        opened: a file with this footer.
    """
    schema = opened.schema_arrow
    stored = (opened.metadata.metadata or {}).get(_KEY)
    if stored is None:
        return footer, schema
    types = [(kind, without_views(kind)) for kind in schema.types]
    names = [name for name, (kind, _) in zip(schema.names, types, strict=True) if _without_dictionaries(kind) != kind]
    plain = delta_strings(opened.metadata, names) if names else frozenset()
    if not plain and all(better is kind or better == kind for kind, better in types):
        return footer, schema
    fields = [field.with_type(better) for field, (_, better) in zip(schema, types, strict=True)]
    read_as = [_plain(field) if field.name in plain else field for field in fields]
    # Nested strings are not encoded afterwards.
    known = [field if pt.is_dictionary(field.type) else read for field, read in zip(fields, read_as, strict=True)]
    schema, stored_as = (pa.schema(each, schema.metadata) for each in (known, read_as))
    # The last place with this key and value is the one: only the writer's name and the order of columns follow.
    before, after, end = footer.rpartition(_KEY + b"\x18" + coded_binary(stored))
    value = base64.b64encode(stored_as.serialize())
    return (b"".join([before, _KEY, b"\x18", coded_binary(value), end]) if after else footer), schema


def delta_strings(metadata: pq.FileMetaData, names: Collection[str]) -> frozenset[str]:
    """Those of these top-level columns that have strings or bytes in delta encodings, in any row group."""
    groups, found = range(metadata.num_row_groups), set()
    for leaf in range(metadata.num_columns):
        path = metadata.schema.column(leaf).path
        above = [name for name in names if f"{path}.".startswith(f"{name}.")]
        if above and any(not _DELTAS.isdisjoint(metadata.row_group(g).column(leaf).encodings) for g in groups):
            found.update(above)
    return frozenset(found)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_without_dictionaries(field.type))


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """The type with dictionaries replaced by their values."""
    if pt.is_dictionary(kind):
        return kind.value_type
    if pt.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    if pt.is_map(kind):
        return pa.map_(_without_dictionaries(kind.key_type), _plain(kind.item_field), keys_sorted=kind.keys_sorted)
    if pt.is_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pt.is_large_list(kind):
        return pa.large_list(_plain(kind.value_field))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_field), kind.list_size)
    return kind
