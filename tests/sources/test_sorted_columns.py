"""By which columns data are sorted, as their footers show it."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.helpers import data_file
from torch_dataloader_utils.formats.parquet import FORMAT
from torch_dataloader_utils.model import DataFile
from torch_dataloader_utils.options import ReadOptions
from torch_dataloader_utils.sources.manifest import build_manifest
from torch_dataloader_utils.sources.sorted_columns import sorted_columns

ROWS, GROUP = 4000, 500
RANDOM = np.random.default_rng(3)


def found(folder: Path, *names: str) -> tuple[str, ...]:
    manifest = build_manifest(str(folder), ReadOptions())
    return sorted_columns(manifest.files, manifest.opener, names)


def write(path: Path, row_group_size: int = GROUP, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)


@pytest.mark.parametrize(
    "values",
    [
        np.sort(RANDOM.normal(size=ROWS)),
        np.sort(RANDOM.normal(size=ROWS))[::-1],
        np.arange(ROWS) // 1700,  # a label: row groups have borders in common
        pa.array([f"user-{number:05}" for number in range(ROWS)]),
        pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(days=number // 100) for number in range(ROWS)]),
        np.arange(ROWS) * 3,  # a number with gaps: no row number
    ],
    ids=["floats", "falling", "labels", "text", "dates", "gaps"],
)
def test_sorted_values_are_seen(tmp_path: Path, values: Any) -> None:
    write(tmp_path / "a.parquet", sorted=values, mixed=RANDOM.permutation(ROWS))
    assert found(tmp_path, "sorted", "mixed") == ("sorted",)


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.permutation(ROWS),
        np.arange(ROWS),  # row numbers
        np.zeros(ROWS),  # a constant
        (np.arange(ROWS) > 5).astype(int),  # one value nearly everywhere
        np.abs(np.arange(ROWS) - ROWS // 2) * 3,  # falls, then rises
        pa.nulls(ROWS, pa.int64()),  # no statistics
        np.sort(RANDOM.normal(size=ROWS)).astype(np.float16),  # statistics are bytes
    ],
    ids=["random", "row numbers", "constant", "nearly constant", "valley", "null", "float16"],
)
def test_other_values_are_not(tmp_path: Path, values: Any) -> None:
    write(tmp_path / "a.parquet", column=values)
    assert found(tmp_path, "column") == ()


def test_a_single_row_group_shows_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", row_group_size=ROWS, column=np.arange(ROWS) // 1700)
    assert found(tmp_path, "column") == ()


def test_columns_of_the_path_count(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        write(tmp_path / f"day={day}" / "a.parquet", column=RANDOM.permutation(ROWS))
    assert found(tmp_path, "column", "day") == ("day",)


def test_a_field_of_a_struct_is_not_the_column_of_its_name(tmp_path: Path) -> None:
    inner = pa.StructArray.from_arrays([pa.array(np.arange(ROWS) * 3)], ["b"])
    write(tmp_path / "a.parquet", a=inner)
    assert found(tmp_path, "a", "b", "a.b") == ()


def test_files_that_disagree_about_the_type_are_not_compared(tmp_path: Path) -> None:
    files = []
    for name, values in (("a", [1, 2]), ("b", ["x", "y"])):
        write(tmp_path / f"{name}.parquet", column=values)
        files += build_manifest(str(tmp_path / f"{name}.parquet"), ReadOptions()).files
    assert sorted_columns(files, FORMAT, ["column"]) == ()


def test_of_many_row_groups_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", row_group_size=10, column=np.sort(RANDOM.normal(size=ROWS)))
    looked_at = []
    ranges = type(FORMAT).value_ranges
    monkeypatch.setattr(type(FORMAT), "value_ranges", lambda *given: looked_at.append(given[2]) or ranges(*given))
    assert found(tmp_path, "column") == ("column",)
    assert len(looked_at) == 64
    assert (looked_at[0], looked_at[-1]) == (0, ROWS // 10 - 1)


class Ranges:
    """An opener that knows the ranges of one file's segments."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = ranges

    def value_ranges(self, layout: Any, number: int, names: Any) -> dict[str, tuple[int, int]]:
        return {"column": self.ranges[number]}


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1, max_size=6))
def test_named_columns_are_sorted_but_within_a_segment(groups: list[list[int]]) -> None:
    file: DataFile = data_file("a", [100] * len(groups))
    opener: Any = Ranges([(min(group), max(group)) for group in groups])
    rows = [value for group in groups for value in sorted(group)]
    falling = [value for group in groups for value in sorted(group, reverse=True)]
    if sorted_columns([file], opener, ["column"]):
        assert rows == sorted(rows) or falling == sorted(falling, reverse=True)
    elif len(set(rows)) > 1 and rows == sorted(rows):
        assert max(groups[0]) >= min(groups[-1])  # a single jump at most
