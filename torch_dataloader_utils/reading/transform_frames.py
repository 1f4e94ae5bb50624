"""Input and output of transforms in pandas or polars: DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import MissingExtraError, UnsupportedTypeError
from torch_dataloader_utils.reading.transform_arrays import Returned

_NULLABLE = {
    "bool": "BooleanDtype", "float": "Float32Dtype", "double": "Float64Dtype",
    **{f"{sign}int{bits}": f"{sign.upper()}Int{bits}Dtype" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Name of an Arrow type -> nullable dtype of pandas."""


def pandas_given(batch: pa.RecordBatch) -> Any:
    """The rows as a DataFrame with nullable dtypes, so that no dtype depends on nulls: ints stay ints."""
    pandas = _library("pandas")
    return batch.to_pandas(types_mapper=lambda kind: _pandas_dtype(kind, pandas))


def _pandas_dtype(kind: pa.DataType, pandas: Any) -> Any:
    """The dtype of a column; None for pandas' own, which has nulls: datetime64, timedelta64 and category."""
    if pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_dictionary(kind):
        return None
    if pt.is_string(kind) or pt.is_large_string(kind):
        return pandas.StringDtype("pyarrow")
    name = _NULLABLE.get(str(kind))
    return pandas.ArrowDtype(kind) if name is None else getattr(pandas, name)()


def pandas_returned(result: Any) -> Iterator[tuple[str, Returned]]:
    """The columns of a DataFrame, without its index.

    Raises:
        UnsupportedTypeError: `result` is not a DataFrame.
    """
    _check_frame(result, _library("pandas").DataFrame, "pandas")
    for name, column in result.items():
        if column.dtype == object:
            yield name, column.where(column.notna(), None).tolist()
        else:
            array = pa.array(column, from_pandas=True)
            yield name, _one(array) if isinstance(array, pa.ChunkedArray) else array


def polars_given(batch: pa.RecordBatch) -> Any:
    """The rows as a DataFrame."""
    columns = [_unsliced(column) for column in batch.columns]
    return _library("polars").from_arrow(pa.Table.from_arrays(columns, schema=batch.schema))


def _unsliced(column: pa.Array) -> pa.Array:
    """The rows as an array with offset 0: polars 2 fails on slices of fixed-size lists with nulls."""
    return pa.concat_arrays([column, column.slice(0, 0)]) if column.offset else column


def polars_returned(result: Any) -> Iterator[tuple[str, Returned]]:
    """The columns of a DataFrame.

    Raises:
        UnsupportedTypeError: `result` is not a DataFrame.
    """
    _check_frame(result, _library("polars").DataFrame, "polars")
    table = result.to_arrow()
    for name, column in zip(table.column_names, table.columns, strict=True):
        yield name, _one(column)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The rows as one array; copied only if there are several chunks."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"Transform(format={name!r}) needs {name}: pip install 'torch-dataloader-utils[{name}]'"
        ) from error


def _check_frame(result: Any, frame: type, name: str) -> None:
    if not isinstance(result, frame):
        raise UnsupportedTypeError(f"transform returned {type(result).__name__}: expected a {name} DataFrame.")
