"""Data files that a filter rules out, judged by what the log records: partition values and bounds of columns."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.delta.files import ListedFile
from torch_dataloader_utils.delta.schema import Columns
from torch_dataloader_utils.filters.arrow import filter_columns, may_name_nan
from torch_dataloader_utils.filters.facts import can_be_true
from torch_dataloader_utils.late_imports import pc

CanHold: TypeAlias = Callable[[ListedFile], bool]

_EXACT_DIGITS = 15  # of a decimal number in a float64
_MILLISECOND = timedelta(milliseconds=1)  # the log rounds bounds of times


def file_test(expression: pc.Expression, columns: Columns) -> CanHold:
    """A function that reports whether a file can hold a row that matches; it may be wrong only by saying yes.

    Args:
        expression: a filter that fits the table's schema.
        columns: the table's columns.
    """
    if may_name_nan(expression):
        return lambda file: True
    schema = columns.table.schema
    needed = pa.schema([schema.field(name) for name in filter_columns(expression, schema)]).remove_metadata()

    def can_hold(file: ListedFile) -> bool:
        facts = [fact for item in needed for fact in _facts(item, file, columns)]
        return can_be_true(expression, facts, needed)

    return can_hold


def _facts(column: pa.Field, file: ListedFile, columns: Columns) -> Iterator[pc.Expression]:
    """Expressions that are true for every row of the file."""
    place = pc.field(column.name)
    if column.name in columns.partitions:
        value = file.partition.get(column.name)
        if not pt.is_floating(column.type):  # a NaN, or either zero
            yield place.is_null() if value is None else place == pa.scalar(value, column.type)
        return
    name = columns.physical[column.name]
    lower, upper, nulls = (file.bounds[part].get(name) for part in ("min", "max", "null_count"))
    if nulls and nulls == file.rows:  # zero of zero says nothing of a file with rows
        yield place.is_null()
    elif _has_bounds(column.type):
        if pt.is_timestamp(column.type) and upper is not None:
            upper += _MILLISECOND
        for compare, end in ((operator.ge, lower), (operator.le, upper)):
            if end is not None:
                yield compare(place, pa.scalar(end, column.type)) | place.is_null()


def _has_bounds(kind: pa.DataType) -> bool:
    """Whether the bounds hold for all values: those of floats do not cover NaNs, and writers round long decimals."""
    if pt.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return any(test(kind) for test in (pt.is_integer, pt.is_string, pt.is_date, pt.is_timestamp))
