"""What a table says of itself, from its manifests and the footers that planning has read."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from tests.iceberg.test_advance import SCHEMA, open_table, rows
from tests.iceberg.test_advance import table as table
from torch_dataloader_utils import Appended, CountsRequiredError, Follow, IcebergDataset
from torch_dataloader_utils.options.times import utc


def snapshot_of(table: Table) -> Snapshot:
    found = table.current_snapshot()
    assert found is not None
    return found


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


def test_a_snapshot_is_named_with_its_time(catalog: Catalog) -> None:
    table = catalog.create_table("ns.t", schema=SCHEMA)
    table.append(rows(0, 10))
    first = snapshot_of(table)
    table.manage_snapshots().create_branch(branch_name="dev", snapshot_id=first.snapshot_id).commit()
    table.append(rows(10, 20))
    second = snapshot_of(table)
    at = datetime.fromtimestamp(second.timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    _, dataset = open_table(table)
    shown = dataset.describe()
    assert (shown.snapshot, shown.follow, shown.replay) == (f"snapshot {second.snapshot_id} of {at}", "", "")
    assert f"snapshot {second.snapshot_id} of {at}" in str(shown)
    assert "('dev')" in open_table(table, ref="dev")[1].describe().snapshot
    appended = open_table(table, appended=Appended(first.snapshot_id, replay=0.5))[1].describe()
    ends = f"{first.snapshot_id}, up to snapshot {second.snapshot_id} of {at}"
    assert appended.snapshot == f"rows appended after snapshot {ends}"
    assert appended.replay == "0.5 older rows beside each appended row: about 5 rows of 1 file"
    assert utc(2**62) == f"{2**62} ms since 1970"


def test_what_a_following_pass_will_read_is_not_made_up(table: Table) -> None:
    loader, dataset = open_table(table, follow=Follow(wait=0, replay=0.5))
    assert dataset.describe().follow == "each pass is what was appended since the one before it"
    assert dataset.describe().replay == "0.5 older rows beside each appended row: none so far"
    assert (len(loader), dataset.plan(5).rows) == (13, 100)  # the first pass may be of any epoch
    list(loader)
    shown = dataset.describe()
    assert (shown.epoch, shown.rows) == (0, 100)
    assert "the next pass is what is appended after this snapshot" in shown.follow
    assert "the next pass follows the table>" in repr(dataset)
    assert dataset.plan(0).rows == 100
    assert sum(run.stop - run.start for run in dataset.rows_of(0, 12)) == 4
    unknown: list[Callable[[], object]] = [
        dataset.plan, lambda: dataset.plan(1), lambda: dataset.rows_of(1, 0), lambda: dataset.describe(1),
        dataset.shard_size, lambda: dataset.plan_page("plan.html", 1),
    ]  # fmt: skip
    for ask in unknown:
        with pytest.raises(CountsRequiredError, match=r"epoch 1 with follow=True: which rows .*, or for epoch=0"):
            ask()
    with pytest.raises(TypeError, match=r"once the next pass has begun: with follow=True, .*after its first batch"):
        len(loader)
    table.append(rows(100, 140))
    batches = iter(loader)
    next(batches)
    assert (dataset.plan().epoch, dataset.describe().epoch, len(loader)) == (1, 1, dataset.plan().steps)
    assert dataset.describe().replay.endswith("about 20 rows of 1 file")
    with pytest.raises(CountsRequiredError, match=r"epoch 0 with follow=True: .*, or for epoch=1"):
        dataset.plan(0)


def test_a_loaded_state_whose_rows_were_read_is_described(table: Table) -> None:
    loader, _ = open_table(table, follow=Follow(wait=0))
    list(loader)
    again, dataset = open_table(table, follow=Follow(wait=0))
    again.load_state_dict(loader.state_dict())
    assert "the next pass is what is appended" in dataset.describe().follow
    with pytest.raises(CountsRequiredError, match=r"Ask after its first batch\.$"):
        dataset.plan(0)


def test_an_empty_table_that_is_followed_is_no_mistake(catalog: Catalog) -> None:
    table = catalog.create_table("ns.empty", schema=SCHEMA)
    loader, dataset = open_table(table, follow=Follow(wait=0))
    shown = dataset.describe(0)
    assert (shown.snapshot, shown.warnings) == ("none: the table has none yet", ())
    assert shown.follow == "the next pass is what is appended after this snapshot, known once it has begun"
    with pytest.raises(TypeError, match="known once the next pass has begun"):
        len(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": "id < 50"}, "a filter, .* Set count_rows=True to count them once.$"),
        ({"class_weights": {"id": {0: 3}}}, "class_weights draws .* no option fixes it with follow=True.$"),
    ],
)
def test_len_proposes_no_option_that_follow_refuses(table: Table, options: dict[str, Any], message: str) -> None:
    loader, _ = open_table(table, follow=Follow(wait=0), **options)
    with pytest.raises(TypeError, match=message):
        len(loader)
