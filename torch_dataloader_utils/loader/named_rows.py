"""What a model makes of rows as a table that names each row: to join it to the files, by any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.loader.dataset import LoaderDataset
from torch_dataloader_utils.loader.loader import StructuredLoader
from torch_dataloader_utils.options.packing import OF_DOCUMENTS
from torch_dataloader_utils.options.sources import FILE
from torch_dataloader_utils.printing import shown

_CODES = (FILE, OF_DOCUMENTS[FILE])
_CHUNK = 1 << 20  # rows whose names are in one array, which holds 2 GiB of text at most


def named_rows(loader: StructuredLoader[Any, Any] | LoaderDataset, rows: Mapping[str, Any]) -> pa.Table:
    """A table of these columns, where the codes of files are their names.

    Example:
        ```python
        table = tdu.named_rows(loader, {"_file": codes, "_pos": positions, "score": scores})
        ```

    Args:
        loader: read the rows, with `metadata_columns=("_file", "_pos")`.
        rows: by name, tensors, arrays or lists with one entry for each row [n], or with several [n, ...]. Codes of
            files, int64 [n], are under "_file", or "document_file" for documents that were packed; text stays text.

    Returns:
        The columns in their order: names of files as text, what has several entries for each row as lists of a fixed
        size.

    Raises:
        OptionError: columns have different lengths, or a code is not one of the loader's.
        ColumnNotFoundError: there are codes of files, but the loader has none.
    """
    made = {key: _column(key, values) for key, values in rows.items()}
    lengths = {key: len(column) for key, column in made.items()}
    if len(set(lengths.values())) > 1:
        raise OptionError(f"named_rows: the columns have different lengths: {lengths}.")
    for key in _CODES:
        if key in made and pa.types.is_integer(made[key].type):
            made[key] = _named(key, made[key].to_numpy(), loader.vocabulary(FILE))
    return pa.table(made)


def _column(key: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.cast(pa.string()) if pa.types.is_dictionary(values.type) and key in _CODES else values
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if not isinstance(values, np.ndarray):
        return pa.array(values)
    if not values.ndim:
        raise OptionError(f"named_rows: {key!r} is {shown(values)}: expected an entry for each row.")
    column = as_arrow(values.reshape(-1)) if values.dtype.kind in "biuf" else pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _named(key: str, codes: np.ndarray[Any, Any], names: list[str]) -> pa.ChunkedArray:
    """The names of the files that have these codes."""
    wrong = np.flatnonzero((codes < 0) | (codes >= len(names)))
    if len(wrong):
        raise OptionError(
            f"named_rows: {key!r} has {codes[wrong[0]]} in row {wrong[0]}, which is no code of the loader: these are "
            f"0 to {len(names) - 1}. Give the codes as the loader's batches have them."
        )
    texts = pa.array(names, pa.string())
    parts = [texts.take(as_arrow(codes[at : at + _CHUNK])) for at in range(0, len(codes), _CHUNK)]
    return pa.chunked_array(parts, pa.string())
