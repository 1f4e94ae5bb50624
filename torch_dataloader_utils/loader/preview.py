"""The first rows of a dataset, as a table to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.printing import html_table, plural, shortened, text_table
from torch_dataloader_utils.schemas.columns import python_rows

_CELL = 32  # characters of a value


@dataclass(frozen=True, repr=False)
class FirstRows:
    """The first rows, which print as a table of text, and in notebooks as one of HTML.

    Attributes:
        table: the rows as a `pyarrow.Table`.
    """

    table: pa.Table

    @classmethod
    def of(cls, dataset: Any, rows: int) -> FirstRows:
        """The first rows of a dataset of Arrow batches, which is closed."""
        batches: list[pa.RecordBatch] = []
        try:
            for batch in dataset:
                batches.append(batch)
                if sum(map(len, batches)) >= rows:
                    break
        finally:
            dataset.close()
        return cls(pa.Table.from_batches(batches).slice(0, rows) if batches else dataset.schema.empty_table())

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return "\n".join([*text_table(self.table.column_names, list(self._cells())), self._size])

    def _repr_html_(self) -> str:
        return f"{html_table(self.table.column_names, list(self._cells()))}<p>{self._size}</p>"

    def _cells(self) -> Iterable[list[str]]:
        """The values of each row, long ones shortened."""
        return ([cell(value) for value in row] for row in zip(*python_rows(self.table).values(), strict=True))

    @property
    def _size(self) -> str:
        return f"{plural(len(self.table), 'row')}, {plural(self.table.num_columns, 'column')}"


def cell(value: Any) -> str:
    """A value as a short text."""
    text = "null" if value is None else value if isinstance(value, str) else _number(value)
    return shortened(" ".join(text.split()), _CELL)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
