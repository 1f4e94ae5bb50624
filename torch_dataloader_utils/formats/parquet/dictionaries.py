"""Checks the dictionaries of columns that pyarrow reads as such: it does not, and their codes may name no value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.late_imports import pc


def check_dictionaries(column: pa.ChunkedArray) -> None:
    """Check that each code of a column that has dictionaries is the number of a value.

    Raises:
        ValueError: a code is not.
    """
    if pt.is_dictionary(column.type):
        for chunk in column.chunks:
            _check_codes(chunk)
    elif _has_dictionary(column.type):
        column.validate(full=True)


def _check_codes(array: pa.DictionaryArray) -> None:
    ends = pc.min_max(array.indices)
    least, most, count = ends["min"].as_py(), ends["max"].as_py(), len(array.dictionary)
    if most is not None and not 0 <= least <= most < count:
        wrong = most if most >= count else least
        raise ValueError(f"its dictionary page is damaged: it has {count} values, and a row has number {wrong}.")


def _has_dictionary(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))
