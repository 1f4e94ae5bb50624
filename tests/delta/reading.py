"""Loaders of Delta tables, their rows, and the rows as deltalake reads them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from torch_dataloader_utils import DeltaDataset


def opened(table: Any, **options: Any) -> tuple[Any, DeltaDataset]:
    return DeltaDataset.create_dataloader(str(table) if isinstance(table, Path) else table, **options)


def rows(table: Any, **options: Any) -> list[dict[str, Any]]:
    """The rows, with Python values, in the loader's order."""
    loader, _ = opened(table, output_format="arrow", **options)
    return [row for batch in loader for row in batch.to_pylist()]


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def by_deltalake(table: Any, version: int | None = None) -> list[dict[str, Any]]:
    """The rows as deltalake's own engine reads them, in any order."""
    found: list[dict[str, Any]] = pa.table(DeltaTable(table, version=version).scan()).to_pylist()
    return found


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=repr)
