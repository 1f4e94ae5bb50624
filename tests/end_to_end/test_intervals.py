"""IPC files with intervals that pyarrow cannot read: their other columns are read, and an error says what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.formats.interval_writing import write_intervals
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import UnsupportedTypeError


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"output_format": "arrow"},
        {"shuffle": True, "shuffle_seed": 1},
        {"on_error": "skip"},
        {"filters": [("id", ">=", 0)]},
        {"num_workers": 2, "worker_mode": "processes"},
    ],
    ids=str,
)
def test_other_columns_beside_intervals_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "data").mkdir()
    write_intervals(tmp_path / "data" / "a.arrow")
    options = {"columns": ["word", "id"], "batch_size": 4, "manifest": str(tmp_path / "m.parquet"), **options}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "data"), **options)
    batches = [batch.to_pydict() if options.get("output_format") else batch for batch in loader]
    assert sorted(int(row) for batch in batches for row in batch["id"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(word for batch in batches for word in batch["word"]) == sorted("abcd" * 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "'months' is of type month_interval"),
        ({"columns": ["days", "id"]}, "'days' is of type day_time_interval"),
        ({"columns": ["inner.months"]}, "'inner' is of type struct"),
        ({"columns": ["id"], "filters": [("days", "is null")]}, "'days'"),
        ({"output_format": "dict"}, "'months'"),
    ],
)
def test_an_interval_that_is_wanted_is_an_error_that_names_it(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    write_intervals(tmp_path / "a.arrow")
    with pytest.raises(UnsupportedTypeError, match=named):
        StructuredDataset.create_dataloader(str(tmp_path), batch_size=4, **options)
