"""`tdu head`: the first rows as batches have them, or the first batch as training gets it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import Output, Result, Screen
from torch_dataloader_utils.loader.preview import cell
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.schemas.columns import python_rows

_TENSOR_VALUES = 4


def run(data: Data, output: Output, *, rows: int, batch: bool, epoch: int) -> Result:
    """The first rows or the first batch."""
    return _first_batch(data, output, epoch) if batch else _first_rows(data, output, rows, epoch)


def _first_rows(data: Data, output: Output, rows: int, epoch: int) -> Result:
    with output.warnings_of_package():
        loader, dataset = data.but("collate_fn").open(output_format="arrow", num_workers=0, worker_mode="threads")
        dataset.set_epoch(epoch)
        batches: list[pa.RecordBatch] = []
        for item in loader:
            batches.append(item)
            if sum(map(len, batches)) >= rows:
                break
        dataset.close()
    table = pa.Table.from_batches(batches).slice(0, rows) if batches else dataset.schema.empty_table()
    columns = python_rows(table)
    return Result(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], partial(show_rows, table)
    )


def show_rows(table: pa.Table, screen: Screen) -> None:
    """Print rows, with long values shortened."""
    right = [item.name for item in table.schema if pa.types.is_integer(item.type) or pa.types.is_floating(item.type)]
    screen.table(
        table.column_names,
        [[cell(value) for value in row] for row in zip(*python_rows(table).values(), strict=True)],
        right,
    )
    screen.line(f"{plural(len(table), 'row')}, {plural(table.num_columns, 'column')}", "dim")


def _first_batch(data: Data, output: Output, epoch: int) -> Result:
    with output.warnings_of_package():
        loader, dataset = data.but("device").open()
        dataset.set_epoch(epoch)
        first = next(iter(loader), None)
        dataset.close()
    rows = [] if first is None else [*_entries("", first)]
    header = ("key", "type", "dtype", "shape", "first values")
    values = [dict(zip(header, row, strict=True)) for row in rows]
    return Result(values, lambda screen: screen.table(header, rows) if rows else screen.line("no batch"))


def _entries(key: str, value: Any) -> list[tuple[str, str, str, str, str]]:
    """What a batch holds, an entry for each tensor or list."""
    if isinstance(value, Mapping):
        return [row for name, inner in value.items() for row in _entries(f"{key}.{name}".lstrip("."), inner)]
    if isinstance(value, pa.RecordBatch):
        return [_entry(item.name, column, item.type) for item, column in zip(value.schema, value.columns, strict=True)]
    return [_entry(key, value, getattr(value, "dtype", ""))]


def _entry(key: str, value: Any, dtype: Any) -> tuple[str, str, str, str, str]:
    shape = list(value.shape) if hasattr(value, "shape") else [len(value)] if hasattr(value, "__len__") else []
    plain = value[:_TENSOR_VALUES] if shape else value
    first = next((getattr(plain, name)() for name in ("tolist", "to_pylist") if hasattr(plain, name)), plain)
    kinds = (type(item).__name__ for item in value if item is not None) if shape and not str(dtype) else iter(())
    name = str(dtype).removeprefix("torch.") or next(kinds, "")
    return key, type(value).__name__, name, str(shape), cell(first)
