"""Unknown and missing values are counted where rows are read, and more than a few unknown ones are a warning."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import stream
from torch_dataloader_utils.preprocess import Categorize, Cross, Hash, Preprocess

CITIES = ["a", "b", None, "z", "y"] * 20
DRIVERS: dict[str, dict[str, Any]] = {
    "threads": {},
    "in line": {"num_workers": 0},
    "processes": {"num_workers": 2, "worker_mode": "processes"},
}


def loader_of(folder: Path, prep: Preprocess, **options: Any) -> Any:
    pq.write_table(pa.table({"city": CITIES, "tags": [["a", "q"]] * 100}), folder / "rows.parquet", row_group_size=30)
    return stream(str(folder), transform=prep, batch_size=10, num_ranks=1, rank=0, **options)


@pytest.mark.parametrize("driver", DRIVERS)
def test_shares_of_missing_and_unknown_values(tmp_path: Path, driver: str, caplog: pytest.LogCaptureFixture) -> None:
    spec = {"city": {"one": Categorize(), "few": Categorize(unknown_ids=3), "hashed": Hash(10)}, "tags": Categorize()}
    prep = Preprocess(spec).fit(pa.table({"city": ["a", "b"], "tags": [["a"], []]}))
    with closing(loader_of(tmp_path, prep, **DRIVERS[driver])) as loader, caplog.at_level(logging.WARNING):
        assert sum(len(batch["one"]) for batch in loader) == 100
        found = {name: share for name, share in loader.metrics().items() if "/" in name}
    assert found == {
        "missing_fraction/one": 0.2,
        "unknown_fraction/one": 0.4,
        "missing_fraction/few": 0.2,
        "unknown_fraction/few": 0.4,
        "missing_fraction/tags": 0.0,
        "unknown_fraction/tags": 0.5,
    }
    assert [record.message for record in caplog.records] == [
        "epoch 0: many values were not among those that the Preprocess was fitted on: 'few' 40%, 'one' 40%, "
        "'tags' 50%. Fit it on newer data."
    ]


def test_few_unknown_values_and_those_of_an_epoch_that_was_left_are_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Preprocess({"city": Categorize()}).fit(pa.table({"city": CITIES}))
    crossed = Preprocess({("city", "other"): Cross(Categorize())}).fit(pa.table({"city": ["c"], "other": [1]}))
    with closing(loader_of(tmp_path, known)) as loader, caplog.at_level(logging.WARNING):
        list(loader)
    pq.write_table(pa.table({"city": CITIES, "other": [1] * 100}), tmp_path / "rows.parquet")
    with closing(stream(str(tmp_path), transform=crossed, batch_size=10, num_ranks=1, rank=0)) as loader:
        next(iter(loader))
    assert not caplog.records


def test_applying_it_in_memory_counts_nothing_that_a_loader_reports(tmp_path: Path) -> None:
    prep = Preprocess({"city": Categorize()}).fit(pa.table({"city": ["a"]}))
    with closing(loader_of(tmp_path, prep)) as loader:
        prep(pa.table({"city": CITIES}))
        assert not any(name.startswith("unknown") for name in loader.metrics())
