"""The data files of an Iceberg table: a format whose files have the table's columns, and no deleted rows.

It wraps the formats that data files are in (Parquet, ORC, Avro). Which files there are, what deletes rows of them,
and the table's schema comes from the table's manifests (`iceberg.plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.formats.base import Pruner, keep_all
from torch_dataloader_utils.iceberg.data_files.files import DeleteFile, IcebergFile, IcebergTable
from torch_dataloader_utils.iceberg.data_files.layout import iceberg_layout, whole_file
from torch_dataloader_utils.iceberg.data_files.pruning import iceberg_pruner, null_evidence
from torch_dataloader_utils.iceberg.data_files.reader import IcebergReader
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.storage import Naming, Storage

__all__ = [
    "FORMAT",
    "DeleteFile",
    "IcebergFile",
    "IcebergFormat",
    "IcebergTable",
    "iceberg_layout",
    "iceberg_pruner",
    "null_evidence",
    "whole_file",
]


@dataclass(frozen=True)
class IcebergFormat:
    """The data files of an Iceberg table, as a format."""

    name: str = "iceberg"
    segment_name: str = "row group"
    typed: bool = True
    columnar: bool = True

    @property
    def options(self) -> Mapping[str, Any]:
        """`table`: the table; and those of Parquet."""
        return {"table": IcebergTable(pa.schema([])), "page_checksums": True}

    def layout(self, file: DataFileInfo, storage: Storage, options: Mapping[str, Any]) -> tuple[FileLayout, pa.Schema]:
        """Nothing: a file alone does not tell which table it belongs to; see `iceberg_layout`.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "format='iceberg': a folder of files does not say which of them a table consists of: read Iceberg tables "
            "with IcebergDataset."
        )

    def open(
        self,
        file: DataFileInfo,
        layout: FileLayout,
        storage: Storage,
        options: Mapping[str, Any],
        schema: pa.Schema,
    ) -> IcebergReader:
        """A reader of the table's columns that `schema` names; the layout is of `iceberg_layout` or `whole_file`."""
        with Naming(file.path):
            return IcebergReader(file, layout, storage, options, schema)

    def pruner(self, expression: pc.Expression, schema: pa.Schema) -> Pruner:
        """A pruner that drops nothing: columns are found by id, so that it takes the table; see `iceberg_pruner`."""
        return keep_all(expression, schema)

    def null_columns(self, layout: FileLayout) -> frozenset[str]:
        """No column: it takes the table to tell them; see `null_evidence`."""
        return frozenset()

    def pack(self, layout: FileLayout, schema: pa.Schema) -> bytes:
        """Nothing: the table's own manifests say what files there are.

        Raises:
            OptionError: always.
        """
        raise OptionError("manifest= is for files; an Iceberg table has manifests of its own: leave it out.")

    def unpack(self, data: bytes) -> tuple[FileLayout, pa.Schema]:
        """Nothing, as `pack`.

        Raises:
            ValueError: always.
        """
        raise ValueError("no manifest file has data files of an Iceberg table.")


FORMAT = IcebergFormat()
