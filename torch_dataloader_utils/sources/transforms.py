"""The transform that the options give, and the columns that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.reading.transform_formats import FormattedTransform, formatted, no_rows
from torch_dataloader_utils.reading.transforms import Chained, check_transformed

Transform: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


def transform_of(given: pa.Schema, read: ReadOptions) -> tuple[Transform | None, pa.Schema]:
    """The transform of record batches, and its output schema: as given, else that of its result on 0 rows."""
    if read.transform is None:
        return None, given
    function = read.transform if callable(read.transform) else Chained(tuple(read.transform))
    schema = read.transform_schema
    if not isinstance(schema, (pa.Schema, type(None))):
        raise OptionError(
            f"Transform(schema={shown(schema)}): expected a pyarrow.Schema of the columns that it returns."
        )
    transform = formatted(function, read.transform_format, given)
    output = _call_on_nothing(transform, given) if schema is None else schema
    return (replace(transform, expected=output) if isinstance(transform, FormattedTransform) else transform), output


def _call_on_nothing(transform: Transform, given: pa.Schema) -> pa.Schema:
    nothing = no_rows(given)
    try:
        result = transform(nothing)
        check_transformed(nothing, result, "same", transform)
    except Exception as error:
        error.add_note(
            "raised by transform on 0 rows, called to learn which columns it returns. If it cannot take 0 rows, pass "
            "Transform(schema=), such as pa.schema({'ids': pa.list_(pa.int64())})."
        )
        raise
    return result.schema
