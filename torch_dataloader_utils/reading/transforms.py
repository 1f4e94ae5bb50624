"""The user's transform of Arrow record batches, and the checks of what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from torch_dataloader_utils.convert.converter import compact
from torch_dataloader_utils.errors import SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.events import recorder
from torch_dataloader_utils.schemas.merge import kept_schema

if TYPE_CHECKING:
    from torch_dataloader_utils.reading.scan import ScanSpec


def transformed(table: pa.Table, spec: ScanSpec) -> pa.Table:
    """What the scan's transform returns for these rows.

    Raises:
        UnsupportedTypeError: it is not a record batch.
        SchemaMismatchError: it has another schema than the one expected, or another number of rows.
    """
    recorder().enter("transform")
    assert spec.transform is not None
    batch = compact(table)
    result = spec.transform(batch)
    check_transformed(batch, result, spec.transform_rows)
    if not _same_schema(result.schema, spec.output_schema):
        raise SchemaMismatchError(
            f"transform returned the schema\n{result.schema}\nwhere its call on 0 rows (or transform_schema) said\n"
            f"{spec.output_schema}\nIts columns and types must not depend on the rows."
        )
    return pa.Table.from_batches([result])


def _same_schema(returned: pa.Schema, expected: pa.Schema) -> bool:
    """Whether they are the same; a worker process has a copy of the expected one."""
    return bool(returned.equals(expected) or kept_schema(returned).equals(kept_schema(expected)))


def check_transformed(given: pa.RecordBatch, result: object, rows: str) -> None:
    """Check what a transform returned.

    Raises:
        UnsupportedTypeError: it is not a record batch.
        SchemaMismatchError: it has another number of rows, and `rows` is "same".
    """
    if not isinstance(result, pa.RecordBatch):
        raise UnsupportedTypeError(f"transform returned {type(result).__name__}: expected a pyarrow.RecordBatch.")
    if rows == "same" and result.num_rows != given.num_rows:
        raise SchemaMismatchError(
            f"transform returned {result.num_rows} rows for {given.num_rows}: pass transform_rows='any' if it may "
            "change their number (row counts are then unknown before reading), or use filters= to leave rows out."
        )
