"""Filters in any form as Arrow expressions: for rows, and for what is known of rows by some of their columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError
from torch_dataloader_utils.filters.arrow import as_expression, groups_of
from torch_dataloader_utils.late_imports import pc


def row_predicate(filters: Any, schema: pa.Schema) -> pc.Expression | None:
    """`filters`, in any form, as an expression over the columns of `schema`; None where there is no filter.

    Raises:
        ColumnNotFoundError: a column that is not in `schema`.
        OptionError: the filter is invalid.
    """
    if isinstance(filters, str) or type(filters).__module__.startswith("pyiceberg."):
        from torch_dataloader_utils.filters.sql import rows_expression  # needs an extra, and a second to import

        return rows_expression(filters, schema)
    return as_expression(filters, schema)


def known_predicate(filters: Any, schema: pa.Schema) -> pc.Expression:
    """What `filters` say of some of the columns: false where no row can match, whatever the other columns hold.

    Of a filter that is not a list, that is nothing if it names other columns.

    Args:
        filters: in any form.
        schema: the columns that are known.

    Raises:
        OptionError: the filter is invalid.
    """
    if isinstance(filters, (list, tuple)):
        known = [[item for item in group if item[0] in schema.names] for group in groups_of(filters)]
        return as_expression(known, schema) if all(known) else pc.scalar(True)
    try:
        predicate = row_predicate(filters, schema)
    except ColumnNotFoundError:
        return pc.scalar(True)
    return pc.scalar(True) if predicate is None else predicate
