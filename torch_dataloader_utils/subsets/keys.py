"""Rows chosen by the values of key columns, evaluated where the filter is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from torch_dataloader_utils.errors import ColumnNotFoundError, OptionError
from torch_dataloader_utils.hashing import Choice
from torch_dataloader_utils.late_imports import as_arrow
from torch_dataloader_utils.options.transform import PLACE
from torch_dataloader_utils.schemas.columns import available_columns, find_path, project, type_at
from torch_dataloader_utils.schemas.value_hashes import is_hashed, key_hashes

_LOG = logging.getLogger("torch_dataloader_utils")


class ChosenKeys:
    """The rows whose keys a choice holds; picklable. Warns of the first null."""

    def __init__(self, choice: Choice, columns: Sequence[str]) -> None:
        self.choice = choice
        self.columns = tuple(columns)
        self._warned = False

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows are chosen: Arrow bools [rows]."""
        keys = project(table, self.columns)
        if not self._warned:
            self._warn_of_nulls(keys)
        return as_arrow(self.choice.holds(key_hashes(keys.columns)))

    def _warn_of_nulls(self, keys: pa.Table) -> None:
        for name in self.columns:
            if keys.column(name).null_count:
                self._warned = True
                _LOG.warning("by: column %r has nulls; all of them are one key, so they share a subset", name)


@dataclass
class ChosenPlaces:
    """The rows whose places a choice holds; picklable.

    Attributes:
        choice: the choice.
        columns: of places.
    """

    choice: Choice
    columns: tuple[str, ...] = (PLACE,)

    def mask(self, table: pa.Table) -> pa.Array:
        """Which rows are chosen: Arrow bools [rows]."""
        return as_arrow(self.choice.holds(table.column(PLACE).to_numpy()))


def check_keys(columns: Sequence[str], schema: pa.Schema) -> None:
    """Check that rows can be chosen by these columns.

    Raises:
        ColumnNotFoundError: there is no such column.
        OptionError: a column's type has no exact keys, such as floats.
    """
    for name in columns:
        path = find_path(schema, name)
        if path is None:
            raise ColumnNotFoundError(f"by: no column {name!r}: {available_columns(schema, name)}")
        kind = type_at(schema, path)
        if not is_hashed(kind):
            why = "floats are not exact" if pa.types.is_floating(kind) else "values of this type are not hashed"
            raise OptionError(
                f"by: column {name!r} has type {kind}: {why}. Expected whole numbers, strings, bytes, dates, "
                "timestamps or bools."
            )
