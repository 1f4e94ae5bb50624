"""The memory of one rank's plan of many splits: columns of numbers, and pieces of this rank only."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.model import DataFile, DataFileInfo, FileLayout, Segment
from torch_dataloader_utils.planning.plan import Plan, PlanOptions
from torch_dataloader_utils.planning.splits import Splits

GROUPS, ROWS = 100, 1_250
RANKS = 4_096
MB = 1e6


@pytest.fixture(scope="module")
def splits() -> Splits:
    """A million splits, each a row group."""
    return splits_of(10_000)


def splits_of(num_files: int) -> Splits:
    """The splits of this many files, each a row group."""
    size = ROWS * 4_000
    segments = tuple(Segment(number, number * ROWS, ROWS, size) for number in range(GROUPS))
    layout = FileLayout(segments)
    files = [
        DataFile(DataFileInfo(f"{number}.parquet", GROUPS * size, GROUPS * ROWS), layout) for number in range(num_files)
    ]
    first = np.tile(np.arange(GROUPS, dtype=np.int32), num_files)
    start = first.astype(np.int64) * ROWS
    of_file = np.repeat(np.arange(num_files, dtype=np.int32), GROUPS)
    return Splits(files, of_file, first, first + np.int32(1), start, start + ROWS, np.full(len(first), size))


def peak_of(splits: Splits, **options: Any) -> float:
    """The most that a plan, and one rank's part of it, take above the splits: in MB."""
    gc.collect()
    tracemalloc.start()
    try:
        plan = Plan(splits.files, splits, PlanOptions(shuffle=True, **options), RANKS)
        assert any(map(len, plan.rank(0, RANKS // 2).shards))
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()


def test_a_plan_of_a_million_splits_takes_less_than_100_mb(splits: Splits) -> None:
    assert peak_of(splits, sharding="contiguous", even="drop") < 100


@pytest.mark.parametrize("even", ["none", "drop", "pad"])
def test_a_rank_that_reads_many_splits_takes_less_than_100_bytes_per_split(even: str) -> None:
    """Ranks that take single rows in turn read a piece of every third of these splits: pieces are columns, too."""
    some = splits_of(1_000)
    assert peak_of(some, sharding="strided", even=even) < 100 * len(some) / MB


@pytest.mark.slow
@pytest.mark.parametrize("even", ["none", "drop", "pad"])
@pytest.mark.parametrize(
    "options",
    [
        {"sharding": "interleave"},
        {"sharding": "contiguous"},
        {"sharding": "rotate"},
        {"sharding": Rotate(2 * RANKS)},
        {"sharding": "strided"},
        {"sharding": Strided("batch")},
    ],
    ids=str,
)
def test_plans_of_all_policies_take_less_than_100_mb(splits: Splits, options: dict[str, Any], even: str) -> None:
    assert peak_of(splits, even=even, **options) < 100
