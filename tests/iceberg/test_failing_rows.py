"""Rows of tables are named by their numbers in their files, whatever is deleted; and draws follow from these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.delta.by_hand import delete_rows, live, require
from torch_dataloader_utils import DeltaDataset, IcebergDataset, RowFailedEvent, Transform

Spark = Callable[[str], str]
TABLES = ["v2_mor_rowgroups", "v3_dv_lineage", "eq_v3_dv", "eq_deletes", "files_orc"]
GIVEN: dict[str, Any] = {"metadata_columns": ["_file", "_pos"], "output_format": "arrow", "batch_size": 64}


def failing(rows: pa.RecordBatch) -> pa.RecordBatch:
    if any(position % 3 == 1 for position in rows.column("_pos").to_pylist()):
        raise ValueError("a bad row")
    return rows


def drawing(rows: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    return rows.append_column("drawn", pa.array(rng.seeds()))


def loaded(table: Any, transform: Any, **options: Any) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """The rows that are delivered, and those that were told to have failed, by file and number."""
    loader: Any = IcebergDataset.create_dataloader(table, transform=transform, **GIVEN, **options)[0]
    told: list[tuple[str, int]] = []
    loader.on_event(
        lambda event: told.append((event.row.file, event.row.row)) if isinstance(event, RowFailedEvent) else None
    )
    return [row for batch in loader for row in batch.to_pylist()], sorted(told)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, options) for name in TABLES for options in ({}, {"shuffle": True, "num_workers": 2})),
        ("v3_dv_lineage", {"fraction": 0.5}),
        ("eq_v3_dv", {"fraction": 0.5}),
    ],
    ids=str,
)
def test_rows_that_fail_have_their_positions(spark_tables: Spark, name: str, options: dict[str, Any]) -> None:
    table = spark_tables(name)
    every, _ = loaded(table, None, **options)
    assert every
    good, told = loaded(table, Transform(failing, on_error="skip", max_errors=1.0), **options)
    bad = sorted((row["_file"].removeprefix("file://"), row["_pos"]) for row in every if row["_pos"] % 3 == 1)
    assert bad
    assert [(file.split("/")[-1], row) for file, row in told] == [(file.split("/")[-1], row) for file, row in bad]
    delivered = [row for row in good if row.pop("valid")]
    key = repr
    assert sorted(delivered, key=key) == sorted((row for row in every if row["_pos"] % 3 != 1), key=key)


@pytest.mark.parametrize("name", TABLES)
def test_draws_follow_from_file_and_position(spark_tables: Spark, name: str) -> None:
    table, transform = spark_tables(name), Transform(drawing, random=True)
    first, _ = loaded(table, transform)
    other, _ = loaded(table, transform, shuffle=True, num_workers=2, split_bytes=8)
    found = {(row["_file"], row["_pos"]): row["drawn"] for row in first}
    assert {(row["_file"], row["_pos"]): row["drawn"] for row in other} == found
    assert len(set(found.values())) == len(found) == len(first)


def test_rows_of_a_delta_table_too(tmp_path: Path) -> None:
    for first in range(0, 60, 10):
        write_deltalake(tmp_path, pa.table({"id": range(first, first + 10)}), mode="append")
    require(tmp_path, "deletionVectors")
    delete_rows(tmp_path, {path: range(0, 10, 4) for path in live(tmp_path)})

    def fails(rows: pa.RecordBatch) -> pa.RecordBatch:
        if any(row % 10 == 7 for row in rows.column("id").to_pylist()):
            raise ValueError("a bad row")
        return rows

    loader, _ = DeltaDataset.create_dataloader(tmp_path, transform=Transform(fails, on_error="skip"), batch_size=8)
    told: list[RowFailedEvent] = []
    loader.on_event(lambda event: told.append(event) if isinstance(event, RowFailedEvent) else None)
    ids = [row for b in loader for row, real in zip(b["id"].tolist(), b["valid"].tolist(), strict=True) if real]
    assert sorted(ids) == [row for row in range(60) if row % 10 % 4 and row % 10 != 7]
    assert [event.row.row for event in told] == [7] * 6
    assert len({event.row.file for event in told}) == 6
