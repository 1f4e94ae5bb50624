"""Wraps a transform of single rows, which are dicts, as one of Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import RowErrors, SchemaMismatchError, UnsupportedTypeError
from torch_dataloader_utils.reading.failures import is_of_rows
from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.reading.transform_arrays import Returned, numpy_given
from torch_dataloader_utils.reading.transform_formats import FormattedTransform
from torch_dataloader_utils.schemas.columns import python_values


class RowTransform(FormattedTransform):
    """A transform of record batches that calls one for each row; picklable if that one is.

    A call on 0 rows cannot tell which columns a row becomes, so without a schema they are those of the rows.
    """

    def _returned(self, batch: pa.RecordBatch, *rng: RowGenerator) -> Iterable[tuple[str, Returned]]:
        """What the rows become, column by column; each row is drawn for alone.

        Raises:
            RowErrors: the transform failed for some rows.
            UnsupportedTypeError: it returned neither a dict nor a list of dicts.
            SchemaMismatchError: a dict has other columns than expected.
        """
        names = list((self.expected or self.given).names)
        made: list[Mapping[str, Any]] = []
        errors: dict[int, Exception] = {}
        for number, row in enumerate(_rows(batch)):
            try:
                result = self.transform(row, *(each.take(slice(number, number + 1)) for each in rng))
            except Exception as error:
                if not is_of_rows(error):
                    raise
                errors[number] = error
            else:
                made += _checked(result, names)
        if errors:
            raise RowErrors(errors) from next(iter(errors.values()))
        return [(name, [row[name] for row in made]) for name in names]


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of Python objects; tensors are arrays."""
    columns = [
        list(numpy_given(batch.select([place]))[name])
        if isinstance(column.type, pa.BaseExtensionType)
        else python_values(column, name, ())
        for place, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True))
    ]
    return (dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True))


def _checked(result: Any, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """The rows that one row became, which have these columns."""
    rows = result if isinstance(result, (list, tuple)) else [result]
    for row in rows:
        if not isinstance(row, Mapping):
            raise UnsupportedTypeError(
                f"transform returned {type(result).__name__} for a row: expected a dict, or with rows='any' a list of "
                "dicts."
            )
        if row.keys() != set(names):
            raise SchemaMismatchError(
                f"transform returned a row with the columns {list(row)}, and expected are {list(names)}: with "
                "format='rows', pass Transform(schema=) with the columns that rows have then."
            )
    return rows
