"""Copies of rows of tables, with rows that the table has deleted."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import Catalog

from tests.delta.by_hand import delete_rows, live
from torch_dataloader_utils import DeltaDataset, IcebergDataset


def counts(make: Callable[..., Any], table: Any, ranks: int = 1, **options: Any) -> Counter[int]:
    """How often all ranks together deliver each id."""
    return Counter(
        int(row)
        for rank in range(ranks)
        for batch in make(table, rank=rank, num_ranks=ranks, batch_size=16, **options)[0]
        for row in batch["id"]
    )


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "num_workers": 2}, {"fraction": 0.5}])
def test_rows_that_vectors_delete_have_no_copies(spark_tables: Callable[[str], str], options: dict[str, Any]) -> None:
    make, table = IcebergDataset.create_dataloader, spark_tables("v3_dv_lineage")
    once = counts(make, table, **options)
    weights: dict[int, float] = {row: row % 4 for row in once}
    got = counts(make, table, 2, class_weights={"id": weights}, **options)
    assert got == +Counter({row: row % 4 for row in once})
    halves = {row: 0.5 for row in once}  # noqa: C420
    drawn = [counts(make, table, ranks, class_weights={"id": halves}, **options) for ranks in (1, 3)]
    assert drawn[0] == drawn[1] <= once
    assert 0.3 * once.total() < drawn[0].total() < 0.7 * once.total()


def test_a_table_of_files_without_deletes(catalog: Catalog) -> None:
    table = catalog.create_table("ns.copies", pa.schema({"id": pa.int64(), "label": pa.string()}))
    for first in (0, 30):
        table.append(pa.table({"id": range(first, first + 30), "label": [f"c{i % 2}" for i in range(30)]}))
    make = IcebergDataset.create_dataloader
    got = [
        counts(make, table, ranks, class_weights={"label": {"c0": 1.5}}, columns=["id"], shuffle=ranks == 2)
        for ranks in (1, 2)
    ]
    assert got[0] == got[1]
    assert all(got[0][row] == 1 if row % 2 else got[0][row] in (1, 2) for row in range(60))
    assert 60 < got[0].total() < 90


def test_rows_that_a_delta_table_deletes_have_no_copies(tmp_path: Path) -> None:
    write_deltalake(
        tmp_path, pa.table({"id": range(50), "label": [i % 2 for i in range(50)]}),
        configuration={"delta.enableDeletionVectors": "true"},
    )  # fmt: skip
    (path,) = live(tmp_path)
    delete_rows(tmp_path, {path: [0, 3, 4, 49]})
    got = counts(DeltaDataset.create_dataloader, str(tmp_path), 2, class_weights={"label": {0: 3, 1: 0}})
    assert got == Counter({row: 3 for row in range(0, 50, 2) if row not in (0, 4)})
