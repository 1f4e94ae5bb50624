"""How deeply types may be nested: code that walks them calls itself once or more for each level."""

from __future__ import annotations

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
        if pt.is_dictionary(outer):
            stack.append((outer.value_type, level + 1))
        elif isinstance(outer, pa.BaseExtensionType):
            stack.append((outer.storage_type, level + 1))
        elif pt.is_nested(outer):
            stack += [(outer.field(number).type, level + 1) for number in range(outer.num_fields)]
    return False
