"""Filters on partition columns alone: true or false for all rows of a file, which is kept whole or left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.filters.arrow import evaluate, filter_columns
from torch_dataloader_utils.late_imports import pc
from torch_dataloader_utils.model import DataFile


def matching_files(
    files: Sequence[DataFile],
    predicate: pc.Expression | None,
    schema: pa.Schema,
    values_of: Callable[[DataFile], Mapping[str, Any]],
) -> list[DataFile] | None:
    """The files of which the filter keeps all rows; None if it may keep some rows of a file, or there is no filter.

    Args:
        files: those that may have rows that match.
        predicate: the filter, over the columns of `schema`.
        schema: the columns.
        values_of: returns the columns that have one value in all rows of a file, with it (None: null).
    """
    names = () if predicate is None else filter_columns(predicate, schema)
    if predicate is None or not names:
        return None
    found: list[tuple[Any, ...]] = []
    for file in files:
        values = values_of(file)
        if not all(name in values for name in names):
            return None
        found.append(tuple(values[name] for name in names))
    distinct = list(dict.fromkeys(found))
    if not distinct:
        return []
    kinds = [schema.field(name).type for name in names]
    try:
        columns = [_column(values, kind) for values, kind in zip(zip(*distinct, strict=True), kinds, strict=True)]
        kept = evaluate(pa.table(columns, names=list(names)), predicate)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None  # the error is that of the rows, with their file's name, once they are read
    matches = dict(zip(distinct, kept.to_pylist(), strict=True))
    return [file for file, values in zip(files, found, strict=True) if matches[values]]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    scalars = (value if isinstance(value, pa.Scalar) else pa.scalar(value, kind) for value in values)
    return pa.concat_arrays([pa.repeat(scalar.cast(kind), 1) for scalar in scalars])
