"""Whether known facts about rows rule out an expression.

pyarrow does not expose the parts of an expression, but it skips the files of a dataset whose known facts contradict
it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import cache, reduce
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from torch_dataloader_utils.late_imports import ds, pc

_STORE = LocalFileSystem()


def is_nan(path: tuple[str, ...], kind: pa.DataType) -> pc.Expression:
    """The fact that the column at `path` is NaN."""
    return pc.field(*path) == pa.scalar(math.nan, kind)  # as a fact, this states the value


def is_value(field: pc.Expression, value: Any, kind: pa.DataType) -> pc.Expression:
    """The fact that the field has this value, None for null, in a column of this type."""
    return field.is_null() if value is None else field == pa.scalar(value, kind)


def can_be_true(expression: pc.Expression, facts: Iterable[pc.Expression], schema: pa.Schema) -> bool:
    """Whether the expression can be true for a row for which all `facts` are true."""
    form = _any_format()
    file = form.make_fragment("", _STORE, partition_expression=reduce(operator.and_, facts, pc.scalar(True)))
    try:
        return any(True for _ in ds.FileSystemDataset([file], schema, form, _STORE).get_fragments(expression))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return True  # Arrow cannot compute with the known values: reading may fail too, or cast them


@cache
def _any_format() -> ds.FileFormat:
    """A format for files that are never opened."""
    return ds.ParquetFileFormat()
