"""Faults of Iceberg's metadata."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from tests.faults import rows
from tests.faults.table import fault
from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import DataLoaderUtilsError, FileReadError

SECTION = "Iceberg"


def _metadata(folder: Path) -> Path:
    """The metadata file of a table with one snapshot."""
    catalog = SqlCatalog("faults", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("a")
    table = catalog.create_table("a.rows", rows.table().schema)
    table.append(rows.table())
    return Path(catalog.load_table("a.rows").metadata_location.removeprefix("file://"))


def _create(path: Path) -> Callable[[], Any]:
    return lambda: list(IcebergDataset.create_dataloader(str(path), batch_size=rows.BATCH)[0])


@fault(
    SECTION,
    "A metadata file with a missing key",
    DataLoaderUtilsError,
    "tests/iceberg/test_damaged_metadata.py::test_a_missing_key_is_named_with_the_file",
)
def missing_key(folder: Path) -> Callable[[], object]:
    path = _metadata(folder)
    content = json.loads(path.read_text())
    del content["snapshots"][0]["manifest-list"], content["schemas"]
    path.write_text(json.dumps(content))
    return _create(path)


@fault(
    SECTION,
    "A `metadata.json.gz` of 2 MB that expands to 2 GB",
    FileReadError,
    "tests/iceberg/test_damaged_metadata.py::"
    "test_compressed_metadata_that_expands_without_end_is_refused_in_bounded_memory",
)
def expanding(folder: Path) -> Callable[[], object]:
    path = _metadata(folder)
    other = path.with_name(path.name.replace(".metadata.json", ".gz.metadata.json"))
    with gzip.open(other, "wb", compresslevel=1) as file:
        for _ in range(2000):
            file.write(b" " * (1 << 20))
        file.write(path.read_bytes())
    return _create(other)


@fault(
    SECTION,
    "A data file of the table is missing",
    FileReadError,
    "tests/iceberg/test_bad_input.py::test_a_missing_or_damaged_data_file_is_named",
)
def missing_file(folder: Path) -> Callable[[], object]:
    path = _metadata(folder)
    for file in path.parents[1].rglob("*.parquet"):
        file.unlink()
    return _create(path)
