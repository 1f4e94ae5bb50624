"""Types within types, and how deeply they may be nested: most code that walks them calls itself for each level."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

MOST_LEVELS = 100


def nests_too_deeply(kind: pa.DataType) -> bool:
    """Whether lists, structs and maps are nested in each other for more than `MOST_LEVELS` levels."""
    stack = [(kind, 0)]
    while stack:
        outer, level = stack.pop()
        if level > MOST_LEVELS:
            return True
        stack += [(kind, level + 1) for kind in _inner(outer)]
    return False


def types_in(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type and all types within it."""
    stack = [kind]
    while stack:
        yield (outer := stack.pop())
        stack += _inner(outer)


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pt.is_dictionary(kind):
        return [kind.value_type]
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    return [kind.field(number).type for number in range(kind.num_fields)] if pt.is_nested(kind) else []
