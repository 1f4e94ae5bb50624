"""Arrow columns as what a user without a library makes of them."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch


def tensors(batch: Any) -> dict[str, Any]:
    """A tensor for each column of a record batch or table; lists of Python objects for strings and ragged lists."""
    return {name: column_tensor(batch.column(name)) for name in batch.schema.names}


def column_tensor(column: Any) -> Any:
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_fixed_size_list(kind):
        return torch.from_numpy(column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1).copy())
    if pa.types.is_decimal(kind):
        return torch.from_numpy(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if pa.types.is_date(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype("datetime64[D]").astype(np.int64))
    if pa.types.is_primitive(kind):
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())
    return column.to_pylist()
