"""Estimates the bytes that decoded values take: the basis of split sizes, before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.model import FileLayout, Segment

# The minimum decoded bytes of a value whose type has no fixed width: an offset and some content.
LEAST_WIDTH = 16


def fixed_width(kind: pa.DataType) -> int | None:
    """Decoded bytes of a value (a bool takes one), or None if they differ between values."""
    kind = storage_type(kind)
    if pt.is_fixed_size_list(kind):
        inner = fixed_width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if pt.is_null(kind):
        return 0
    return (
        (kind.bit_width + 7) // 8
        if pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_decimal(kind)
        else None
    )


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The storage type of an extension type; any other type unchanged."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def leaf_count(kind: pa.DataType) -> int:
    """The number of columns of plain values that a column of this type is stored as."""
    kind = storage_type(kind)
    if pt.is_nested(kind):
        return sum(leaf_count(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def size_estimate(schema: pa.Schema) -> Callable[[int, int], int]:
    """A function (rows, stored bytes of all columns) -> estimated decoded bytes of all columns.

    Fixed-width columns take rows x width; each other column takes an equal share of the stored bytes, but at least 16
    bytes per row.
    """
    widths = [width for field in schema for width in _widths(field.type)]
    loose, every = widths.count(None), max(len(widths), 1)
    fixed = sum(width for width in widths if width is not None)
    return lambda rows, stored: rows * fixed + max(stored * loose // every, rows * LEAST_WIDTH * loose)


def counted_layout(parts: Iterable[tuple[int, int]], schema: pa.Schema, metadata: Any = None) -> FileLayout:
    """The layout of a file whose parts declare their row counts: the parts that have rows, numbered in file order.

    Args:
        parts: (rows, stored bytes of all columns) for each part.
        schema: the file's schema.
        metadata: the layout's metadata, for the file's readers.
    """
    segments, first_row, estimate = [], 0, size_estimate(schema)
    for number, (rows, stored) in enumerate(parts):
        if rows:
            segments.append(Segment(number, first_row, rows, estimate(rows, stored)))
        first_row += rows
    return FileLayout(tuple(segments), metadata=metadata)


def _widths(kind: pa.DataType) -> list[int | None]:
    """The fixed widths of a column, or of the fields of a struct."""
    kind = storage_type(kind)
    if pt.is_struct(kind):
        return [width for field in kind for width in _widths(field.type)]
    return [fixed_width(kind)]
