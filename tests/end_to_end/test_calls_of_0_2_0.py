"""The calls of release 0.2.0, each of whose 24 keywords keeps its name and its meaning."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import GreaterThanOrEqual
from torch.utils.data import DataLoader

from tests.iceberg.conftest import sql_config
from torch_dataloader_utils import IcebergDataset, RoundRobinSplitStrategy, Shuffle, StructuredDataset

ROWS = 40
Call = Callable[..., tuple[Any, Any]]
# The parameters of 0.2.0's two calls, in their order.
OF_BOTH = (
    *("batch_size", "columns", "filters", "shuffle", "shuffle_seed", "split_bytes", "split_rows", "split_strategy"),
    *("num_workers", "output_format", "collate_fn", "num_ranks", "rank", "show_progress", "progress_interval_sec"),
    "shuffle_buffer_size",
)
OF_FILES = ("path", "format", "storage_options", "partitioning", *OF_BOTH)
OF_TABLES = ("table", "catalog_config", "scan_filter", "snapshot_id", *OF_BOTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two files of two row groups of ten rows."""
    place = tmp_path_factory.mktemp("data")
    for number in range(2):
        ids = range(number * 20, number * 20 + 20)
        pq.write_table(
            pa.table({"id": ids, "x": [id / 2 for id in ids]}), place / f"{number}.parquet", row_group_size=10
        )
    return str(place)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[int]]:
    """The properties of a catalog, and the snapshots of its table `ns.events`, which grew by 20 rows twice."""
    place = tmp_path_factory.mktemp("iceberg")
    config = sql_config(place)
    (place / "warehouse").mkdir()
    catalog = SqlCatalog("default", **config)
    catalog.create_namespace("ns")
    rows = [
        pa.table({"id": range(first, first + 20), "x": [id / 2 for id in range(first, first + 20)]})
        for first in (0, 20)
    ]
    events = catalog.create_table("ns.events", schema=rows[0].schema)
    for part in rows:
        events.append(part)
    catalog.close()
    return config, [snapshot.snapshot_id for snapshot in events.metadata.snapshots]


@pytest.fixture(params=["files", "table"])
def call(request: pytest.FixtureRequest, folder: str, table: tuple[dict[str, str], list[int]]) -> Call:
    """Each of the two calls, with what it requires."""
    if request.param == "files":
        return lambda **given: StructuredDataset.create_dataloader(folder, "parquet", **given)
    return lambda **given: IcebergDataset.create_dataloader("ns.events", catalog_config=table[0], **given)


def ids(loader: Any) -> list[int]:
    return [id for batch in loader for id in batch["id"].tolist()]


def test_all_24_keywords_are_there() -> None:
    for function, names in ((StructuredDataset, OF_FILES), (IcebergDataset, OF_TABLES)):
        assert set(names) <= inspect.signature(function.create_dataloader).parameters.keys()
    assert len({*OF_FILES, *OF_TABLES}) == 24


def test_path_and_format_are_given_by_position_or_by_name(folder: str) -> None:
    by_position, by_name = (
        StructuredDataset.create_dataloader(folder, "parquet", batch_size=8),
        StructuredDataset.create_dataloader(path=folder, format="parquet", batch_size=8),
    )
    assert ids(by_position[0]) == ids(by_name[0]) == list(range(ROWS))


def test_a_loader_of_torch_and_its_dataset_are_returned(call: Call) -> None:
    loader, dataset = call()
    assert isinstance(loader, DataLoader)
    assert isinstance(dataset, (StructuredDataset, IcebergDataset))
    assert loader.dataset is dataset
    dataset.set_epoch(3)


def test_batch_size_and_columns(call: Call) -> None:
    batches = list(call(batch_size=7, columns=["x"])[0])
    assert [list(batch) for batch in batches] == [["x"]] * 6
    assert [len(batch["x"]) for batch in batches] == [7, 7, 7, 7, 7, 5]


def test_filters_is_an_expression_of_pyarrow(call: Call) -> None:
    assert ids(call(filters=pc.field("id") >= 15)[0]) == list(range(15, ROWS))


def test_shuffle_and_shuffle_seed_give_each_epoch_an_order(call: Call) -> None:
    loader, dataset = call(shuffle=True, shuffle_seed=7)
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(ids(loader))
    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert orders[0] == orders[2] != orders[1]
    assert ids(call(shuffle=True, shuffle_seed=8)[0]) != orders[0]
    assert ids(call(shuffle=True)[0]) == ids(call(shuffle=True, shuffle_seed=42)[0])


@pytest.mark.parametrize("given", [{"split_bytes": 1}, {"split_bytes": "1KiB"}, {"split_rows": 10}], ids=str)
def test_split_bytes_and_split_rows_cut_files(call: Call, given: dict[str, Any]) -> None:
    loader, dataset = call(**given)
    assert len(dataset._source.splits) > 1
    assert ids(loader) == list(range(ROWS))


def test_split_strategy_takes_a_strategy(call: Call) -> None:
    loader, dataset = call(split_strategy=RoundRobinSplitStrategy(), num_workers=2)
    assert sorted(ids(loader)) == list(range(ROWS))
    assert isinstance(dataset._options.split.split_strategy, RoundRobinSplitStrategy)


@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_num_workers_may_be_left_to_the_package(call: Call, num_workers: int | None) -> None:
    assert sorted(ids(call(num_workers=num_workers)[0])) == list(range(ROWS))


def test_output_format_and_collate_fn(call: Call) -> None:
    kinds = {name: next(iter(call(output_format=name)[0])) for name in ("torch", "numpy", "arrow", "dict")}
    assert isinstance(kinds["torch"]["x"], torch.Tensor)
    assert kinds["numpy"]["x"].dtype == "float64"
    assert isinstance(kinds["arrow"], pa.RecordBatch)
    assert kinds["dict"]["id"] == list(range(ROWS))
    loader, _ = call(output_format="arrow", collate_fn=lambda batch: batch.num_rows, batch_size=30)
    assert list(loader) == [30, 10]


def test_num_ranks_and_rank_share_the_splits(call: Call) -> None:
    found = [ids(call(num_ranks=2, rank=rank, split_rows=10)[0]) for rank in range(2)]
    assert sorted(found[0] + found[1]) == list(range(ROWS))
    assert len(found[0]) == len(found[1])


def test_show_progress_and_progress_interval_sec(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    loader, _ = call(show_progress=True, progress_interval_sec=60.0, num_ranks=1, rank=0)
    assert ids(loader) == list(range(ROWS))
    assert "epoch 0" in capsys.readouterr().err
    ids(call(show_progress=False, progress_interval_sec=120.0)[0])
    assert not capsys.readouterr().err


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_buffer_mixes_rows_with_and_without_a_shuffle_and_says_nothing(
    call: Call, shuffle: bool, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    given: dict[str, Any] = {"split_rows": 10, "num_workers": 0}
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        order = ids(call(shuffle=shuffle, shuffle_buffer_size=16, **given)[0])
    assert not caplog.records
    assert not recwarn.list
    assert sorted(order) == list(range(ROWS)) != order
    scope = "rows" if shuffle else "nearby"
    assert ids(call(shuffle=Shuffle(scope, window_rows=16), **given)[0]) == order
    assert ids(call(shuffle_buffer_size=None, **given)[0]) == list(range(ROWS))


def test_storage_options_are_those_of_fsspec(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, "parquet", storage_options={"auto_mkdir": False})
    assert ids(loader) == list(range(ROWS))


@pytest.mark.parametrize(("partitioning", "keys"), [("hive", ["id", "day"]), (None, ["id"])])
def test_partitioning(tmp_path: Path, partitioning: str | None, keys: list[str]) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"id": range(4)}), tmp_path / "day=1" / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", partitioning=partitioning)
    assert list(next(iter(loader))) == keys


def test_a_table_is_one_of_a_catalog_at_a_snapshot(table: tuple[dict[str, str], list[int]]) -> None:
    config, snapshots = table
    for given, last in (({}, ROWS), ({"snapshot_id": snapshots[0]}, 20), ({"snapshot_id": None}, ROWS)):
        loader, _ = IcebergDataset.create_dataloader(table="ns.events", catalog_config=config, **given)
        assert sorted(ids(loader)) == list(range(last))


def test_scan_filter_leaves_out_files_and_filters_select_rows(table: tuple[dict[str, str], list[int]]) -> None:
    loader, dataset = IcebergDataset.create_dataloader(
        "ns.events", catalog_config=table[0], scan_filter=GreaterThanOrEqual("id", 25), filters=pc.field("id") < 30
    )
    assert len(dataset._source.files) == 1
    assert sorted(ids(loader)) == list(range(20, 30))
