"""Windows of tables: rows that a table has deleted are in none, and sequences go on across them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from tests.delta.by_hand import delete_rows, live, require
from tests.iceberg.conftest import sql_config
from tests.sequences.by_hand import delivered, sequences_of, windows_of
from torch_dataloader_utils import Delta, Iceberg, Windows, stream

ROWS = 60
PLAIN: dict[str, Any] = {"batch_size": 7, "num_workers": 0, "output_format": "numpy", "shuffle": True}


def keys_of(scattered: bool) -> list[int]:
    return [row % 4 if scattered else row // 15 for row in range(ROWS)]


def expected(windows: Windows, left: list[int], scattered: bool) -> dict[int, Any]:
    keys = keys_of(scattered)
    runs = sequences_of([keys[row] for row in left], left)
    return windows_of([[left[place] for place in run] for run in runs], windows)


@pytest.mark.parametrize("scattered", [False, True])
def test_rows_deleted_by_vectors_are_in_no_window(tmp_path: Path, scattered: bool) -> None:
    table = tmp_path / "table"
    rows = pa.table({"key": keys_of(scattered), "time": range(ROWS), "x": range(ROWS)})
    for first in range(0, ROWS, 10):
        write_deltalake(table, rows.slice(first, 10), mode="append")
    require(table, "deletionVectors")
    delete_rows(table, {path: range(0, 10, 3) for path in live(table)})
    left = [row for row in range(ROWS) if row % 10 % 3]
    windows = Windows(3, order="time", by="key", horizon=1, sort=tmp_path / "copies")
    for options in ({}, {"num_workers": 2, "worker_mode": "processes"}):
        loader = stream(Delta(table), sequences=windows, **{**PLAIN, **options})
        assert delivered(list(loader), windows) == expected(windows, left, scattered)
    assert (tmp_path / "copies").exists() == scattered


def test_each_snapshot_of_a_table_has_its_own_windows_and_copy(tmp_path: Path) -> None:
    windows = Windows(2, order="time", by="key", sort=tmp_path / "copies")
    rows = pa.table({"key": keys_of(True), "time": range(ROWS), "x": range(ROWS)})
    with SqlCatalog(name="test", **sql_config(tmp_path)) as catalog:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", schema=rows.schema)
        table.append(rows)
        before = table.metadata.current_snapshot_id
        table.delete("x < 20")
        for _ in range(2):
            loader = stream(Iceberg(table), sequences=windows, filters="key < 3", **PLAIN)
            left = [row for row in range(20, ROWS) if row % 4 < 3]
            assert delivered(list(loader), windows) == expected(windows, left, True)
            assert f"snapshot {table.metadata.current_snapshot_id}" in str(loader.dataset.describe())
        loader = stream(Iceberg(table, snapshot_id=before), sequences=windows, **PLAIN)
        assert delivered(list(loader), windows) == expected(windows, list(range(ROWS)), True)
        state = loader.state_dict()
        loader.load_state_dict(state)
