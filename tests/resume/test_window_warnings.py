"""What is said of shuffle windows and of empty passes is true of the pass that begins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import Shuffle, StructuredDataset, Transform


def make(path: Path, num_ranks: int, rank: int = 0, **options: Any) -> Any:
    given = {"batch_size": 50, "shuffle": True, "even": "drop", "num_ranks": num_ranks, "rank": rank, **options}
    return StructuredDataset.create_dataloader(str(path), **given)[0]


def test_windows_that_other_ranks_began_are_not_blamed_on_window_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(8):
        table = pa.table({"id": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=500)
    before = make(tmp_path, 8)
    batches = iter(before)
    for _ in range(5):
        next(batches)
    after = make(tmp_path, 4)
    after.load_state_dict(before.state_dict())
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        assert len(list(after)) == 30
    assert "window_bytes" not in caplog.text
    small = make(tmp_path, 1, shuffle=Shuffle(window_bytes=2000))
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        next(iter(small))
    assert "window_bytes=2,000 has no room for more" in caplog.text


def test_an_empty_pass_names_no_filter_that_was_not_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"id": range(4)}), tmp_path / "a.parquet")
    none = {"transform": Transform(lambda batch: batch.slice(0, 0), rows="any"), "even": "none"}
    with caplog.at_level(logging.WARNING, "torch_dataloader_utils"):
        assert not list(make(tmp_path, 1, **none))
    assert (
        "the pass of this rank was empty: a filter, a subset, a transform or the like left no row of its share"
        in caplog.text
    )
    assert "because the filter or subset" not in caplog.text
