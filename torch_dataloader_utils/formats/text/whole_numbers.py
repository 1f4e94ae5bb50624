"""Whole numbers in text that a float64 would round: found in columns of inferred types, or given an unsigned type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_EXACT = 2.0**53  # float64 has every whole number up to here
_LEAST_UNSIGNED, _MOST_UNSIGNED = 2.0**63, 2.0**64
_MOST_FLOAT = 2**1023
_LONG = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{16,}(?![0-9.eE])")

Path = tuple[int, ...]  # to a type within a type: the number of the field at each level


def may_round(column: pa.ChunkedArray) -> bool:
    """Whether a float64 in the column, at any depth, is so large that it may stand for another whole number."""
    return any(bool((np.abs(values) >= _EXACT).any()) for values in _floats(column))


def may_write_long(text: pa.Buffer) -> bool:
    """Whether the text may hold a whole number that a float64 rounds."""
    return _LONG.search(text) is not None


def is_rounded(value: int) -> bool:
    """Whether a float64 has no such number."""
    return abs(value) > _MOST_FLOAT or float(value) != value


def rounds(value: Any, kind: pa.DataType) -> bool:
    """Whether a JSON value holds a whole number that is rounded in a column of this type."""
    if pt.is_float64(kind):
        return isinstance(value, int) and is_rounded(value)
    if pt.is_struct(kind) and isinstance(value, dict):
        return any(rounds(value.get(field.name), field.type) for field in kind)
    return pt.is_list(kind) and isinstance(value, list) and any(rounds(item, kind.value_type) for item in value)


def with_unsigned(table: pa.Table, fits: Callable[[str, pa.DataType], bool]) -> pa.Schema:
    """The schema, with uint64 where pyarrow inferred float64 for numbers of which some exceed int64.

    Args:
        table: as pyarrow inferred it.
        fits: whether the text of a column can be parsed as this type.
    """
    return pa.schema([field.with_type(_unsigned(field.name, table[field.name], fits)) for field in table.schema])


def _unsigned(name: str, column: pa.ChunkedArray, fits: Callable[[str, pa.DataType], bool]) -> pa.DataType:
    kind = column.type
    for path in _float_paths(kind):
        values = list(_floats(column, path))
        most, least = max(_bounds(values, np.fmax)), min(_bounds(values, np.fmin))
        if least >= 0 and _LEAST_UNSIGNED <= most <= _MOST_UNSIGNED:
            unsigned = _replaced(kind, path)
            kind = unsigned if fits(name, unsigned) else kind
    return kind


def _bounds(values: Iterable[np.ndarray[Any, Any]], of: np.ufunc) -> list[float]:
    return [float(of.reduce(chunk)) for chunk in values if len(chunk)] or [0.0]


def _float_paths(kind: pa.DataType) -> Iterator[Path]:
    if pt.is_float64(kind):
        yield ()
    elif pt.is_struct(kind) or pt.is_list(kind):
        for number in range(kind.num_fields):
            yield from ((number, *path) for path in _float_paths(kind.field(number).type))


def _replaced(kind: pa.DataType, path: Path) -> pa.DataType:
    if not path:
        return pa.uint64()
    fields = [kind.field(number) for number in range(kind.num_fields)]
    fields[path[0]] = fields[path[0]].with_type(_replaced(fields[path[0]].type, path[1:]))
    return pa.struct(fields) if pt.is_struct(kind) else pa.list_(fields[0])


def _floats(column: pa.ChunkedArray, only: Path | None = None) -> Iterator[np.ndarray[Any, Any]]:
    """The float64 values of the column at any depth, or at this one; the values of nulls are any."""
    for path in _float_paths(column.type) if only is None else (only,):
        for chunk in column.chunks:
            array = chunk
            for number in path:
                array = array.field(number) if pt.is_struct(array.type) else array.values
            data = array.buffers()[-1]
            if data is not None:
                yield np.frombuffer(data, np.float64)[array.offset : array.offset + len(array)]
