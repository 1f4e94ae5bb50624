"""The column that a transform reads, and the batch with its result."""

from __future__ import annotations

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError, UnsupportedTypeError
from torch_dataloader_utils.printing import shown


def check_column(name: object, who: str) -> None:
    """Check a column's name.

    Raises:
        OptionError: it is not a string, or empty.
    """
    if not isinstance(name, str) or not name:
        raise OptionError(f"{who} got {shown(name)} as a column: expected its name.")


def place_of(batch: object, name: str, who: str) -> int:
    """The index of a column in a record batch.

    Raises:
        UnsupportedTypeError: the rows are not a record batch.
        ColumnNotFoundError: there is no such column, or several have the name.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise UnsupportedTypeError(
            f"{who} got rows as {type(batch).__name__}: expected a pyarrow.RecordBatch. Leave out Transform(format=)."
        )
    place: int = batch.schema.get_field_index(name)
    if place < 0:
        raise ColumnNotFoundError(f"{who} reads column {name!r}, which is not one of {batch.schema.names}.")
    return place


def replaced(batch: pa.RecordBatch, place: int, name: str, values: pa.Array) -> pa.RecordBatch:
    """The batch with another column at an index."""
    return batch.set_column(place, pa.field(name, values.type), values)
