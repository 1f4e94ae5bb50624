"""What a table says of itself, from its manifests and the footers that planning has read."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from torch_dataloader_utils import IcebergDataset


@pytest.mark.parametrize(
    ("options", "columns"),
    # Small splits make planning read the footers, whose statistics know more than partitions do.
    [({}, "'day'"), ({"split_bytes": 8}, "'id' and by 'day'")],
)
def test_a_table_is_described_without_its_data_files(
    catalog: Catalog, tmp_path: Path, options: dict[str, Any], columns: str
) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", LongType()))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="day"))
    table = catalog.create_table("ns.days", schema, partition_spec=spec)
    for day in (1, 2, 3):
        ids = pa.array(range(100 * day, 100 * day + 30, 3), pa.int64())
        table.append(pa.table({"id": ids, "day": pa.array([day] * 10, pa.int64())}))
    _, dataset = IcebergDataset.create_dataloader(table, num_ranks=1, rank=0, batch_size=5, **options)
    shutil.rmtree(tmp_path / "warehouse")
    shown = dataset.describe()
    assert (shown.dataset, shown.files, shown.rows, shown.splits) == ("IcebergDataset", 3, 30, 3)
    assert [(key.key, key.dtype, key.shape) for key in shown.keys] == [("id", "int64", "[B]"), ("day", "int64", "[B]")]
    assert [advice.problem for advice in shown.warnings] == [
        f"the rows are sorted by {columns}, and not shuffled: each batch holds neighbouring values."
    ]


def test_columns_are_found_in_files_by_their_ids(catalog: Catalog) -> None:
    table = catalog.create_table("ns.t", Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))
    for first in (0, 100):
        rising, mixed = range(first, first + 30, 3), [5, 100, *range(8)]
        table.append(pa.table({"a": pa.array(rising, pa.int64()), "b": pa.array(mixed, pa.int64())}))
    with table.update_schema() as change:
        change.rename_column("b", "c")
    with table.update_schema() as change:
        change.rename_column("a", "b")
    _, dataset = IcebergDataset.create_dataloader(table, num_ranks=1, rank=0, split_bytes=8)
    (advice,) = dataset.describe().warnings
    assert "sorted by 'b'," in advice.problem


def test_an_empty_table_is_described(catalog: Catalog) -> None:
    table = catalog.create_table("ns.empty", Schema(NestedField(1, "id", LongType())))
    _, dataset = IcebergDataset.create_dataloader(table)
    assert dataset.describe().rows == 0
    assert "There is nothing to read." in str(dataset.describe())
