"""Subsets of Iceberg tables."""

from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from torch_dataloader_utils import IcebergDataset
from torch_dataloader_utils.errors import OptionError

SUBSETS = {"train": 0.6, "val": 0.3, "test": 0.1}


def test_rows_of_an_iceberg_table_have_no_place_but_keys_and_files(catalog: Catalog) -> None:
    table = catalog.create_table("ns.subsets", pa.schema({"id": pa.int64()}))
    for first in (0, 30):
        table.append(pa.table({"id": range(first, first + 30)}))

    def rows(name: str, **options: Any) -> list[int]:
        given: dict[str, Any] = {"subsets": SUBSETS, "subset": name, "batch_size": 8, **options}
        return [int(row) for batch in IcebergDataset.create_dataloader(table, **given)[0] for row in batch["id"]]

    for unit in ("row", "segment"):
        with pytest.raises(OptionError, match=r"its rows move when the table is rewritten\. Pass subset_by="):
            rows("train", subset_unit=unit)
    for options in ({"subset_by": "id"}, {"subset_unit": "file"}):
        assert sorted(chain.from_iterable(rows(name, **options) for name in SUBSETS)) == list(range(60))
