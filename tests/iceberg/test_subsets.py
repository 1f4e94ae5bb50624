"""Subsets of Iceberg tables."""

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from torch_dataloader_utils import IcebergDataset, Subsets
from torch_dataloader_utils.errors import OptionError

SIDES = Subsets({"train": 0.6, "val": 0.3, "test": 0.1})


def test_rows_of_an_iceberg_table_have_no_place_but_keys_and_files(catalog: Catalog) -> None:
    table = catalog.create_table("ns.subsets", pa.schema({"id": pa.int64()}))
    for first in (0, 30):
        table.append(pa.table({"id": range(first, first + 30)}))

    def rows(sides: Subsets, name: str) -> list[int]:
        given: dict[str, Any] = {"subset": sides[name], "batch_size": 8}
        return [int(row) for batch in IcebergDataset.create_dataloader(table, **given)[0] for row in batch["id"]]

    moving = (
        "with an Iceberg table: its rows move when the table is rewritten. Choose them by the values of a key column"
    )
    for unit in ("row", "segment"):
        sides = SIDES.replace(unit=unit)
        with pytest.raises(OptionError, match=re.escape(f"subset={sides['train']} by {unit} {moving}")):
            rows(sides, "train")
    with pytest.raises(OptionError, match=re.escape(f"fraction=0.5 by row {moving}")) as caught:
        IcebergDataset.create_dataloader(table, fraction=0.5)
    assert "Use fraction=Sample(0.5, unit='file') (chooses files)." in str(caught.value)
    for sides in (SIDES.replace(by="id"), SIDES.replace(unit="file")):
        assert sorted(chain.from_iterable(rows(sides, name) for name in sides)) == list(range(60))


def parts(path: str, by: str | None = None, **options: Any) -> dict[str, list[int]]:
    """The ids of each subset, in order."""
    loaders = {
        name: IcebergDataset.create_dataloader(path, subset=SIDES.replace(by=by)[name], batch_size=64, **options)[0]
        for name in SIDES
    }
    return {name: sorted(int(row) for batch in loader for row in batch["id"]) for name, loader in loaders.items()}


def test_rows_with_ids_keep_their_subset_through_deletes_and_rewrites(spark_tables: Callable[[str], str]) -> None:
    table = spark_tables("v3_dv_lineage")
    now = parts(table)
    assert now == parts(table, by="_row_id", count_rows=True, shuffle=True, num_workers=2)
    assert now == parts(table, by="_row_id", metadata_columns=["_row_id"])
    assert len(list(chain.from_iterable(now.values()))) == 353
    earlier = parts(table, snapshot_id=2231508412154126611)
    assert len(list(chain.from_iterable(earlier.values()))) == 450
    for name, rows in earlier.items():
        assert set(rows).issuperset(set(now[name]) & set(chain.from_iterable(earlier.values())))


def test_row_ids_are_read_but_not_delivered_unless_requested(spark_tables: Callable[[str], str]) -> None:
    def keys(**options: Any) -> list[str]:
        loader = IcebergDataset.create_dataloader(spark_tables("v3_dv_lineage"), fraction=0.5, **options)[0]
        assert "by '_row_id'" in str(loader.dataset.describe())
        return list(next(iter(loader)))

    assert "_row_id" not in keys()
    assert keys(columns=["*"]) == keys()
    assert keys(metadata_columns=["_row_id"]) == [*keys(), "_row_id"]


def test_files_without_row_ids_are_refused(spark_tables: Callable[[str], str]) -> None:
    table, upgraded = spark_tables("v2_to_v3"), 6700447053774314721
    assert len(list(chain.from_iterable(parts(table, snapshot_id=upgraded).values()))) == 43
    for by in (None, "_row_id"):
        with pytest.raises(OptionError, match=r"have no row ids.*Choose them by the values of a key"):
            parts(table, by, snapshot_id=8365742307823611565)
    assert parts(table, snapshot_id=8365742307823611565, by="id")
