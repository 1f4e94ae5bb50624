"""Types within types: which are nested too deeply for code that calls itself for each level, or have no arrays."""

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


def has_values(kind: pa.DataType) -> bool:
    """Whether pyarrow has arrays of the type in Python: not of intervals in months, or in days and milliseconds."""
    return not any(str(inner) in ("month_interval", "day_time_interval") for inner in types_in(kind))


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pt.is_dictionary(kind):
        return [kind.value_type]
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    return [kind.field(number).type for number in range(kind.num_fields)] if pt.is_nested(kind) else []
