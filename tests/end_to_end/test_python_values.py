"""Dates and times that Python does not have: numbers in tensors, an error where Python objects are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

from torch_dataloader_utils import StructuredDataset, Transform
from torch_dataloader_utils.errors import UnsupportedTypeError

LATE: dict[str, Any] = {
    "seconds": pa.array([10**18, 1], pa.timestamp("s")),
    "microseconds": pa.array([-(10**17), 1], pa.timestamp("us")),
    "with a zone": pa.array([10**18, 1], pa.timestamp("us", "UTC")),
    "of no zone": pa.array([1, 2], pa.timestamp("us", "Nowhere/Else")),
    "days": pa.array([10**8, 1], pa.date32()),
    "a duration": pa.array([2**62, 1], pa.duration("s")),
    "in a list": pa.array([[10**18], []], pa.list_(pa.timestamp("s"))),
}


def read(folder: Path, column: pa.Array, **options: Any) -> Any:
    pa.feather.write_feather(pa.table({"id": [1, 2], "at": column}), folder / "a.arrow")
    return next(iter(StructuredDataset.create_dataloader(str(folder), batch_size=2, **options)[0]))["at"]


@pytest.mark.parametrize("name", LATE)
def test_a_time_that_python_has_not_is_an_error_that_names_the_column(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"column 'at' of type .* has a value that Python has not"):
        read(tmp_path, LATE[name], output_format="dict")
    assert read(tmp_path, LATE[name], output_format="arrow").equals(LATE[name])
    assert len(read(tmp_path, LATE[name])) == 2


def test_a_time_in_python_objects_of_a_batch_of_tensors_is_such_an_error_too(tmp_path: Path) -> None:
    nested = pa.array([[[10**18]], [[]]], pa.list_(pa.list_(pa.timestamp("s"))))
    with pytest.raises(UnsupportedTypeError, match="has a value that Python has not"):
        read(tmp_path, nested)
    with pytest.raises(UnsupportedTypeError, match="has a value that Python has not"):
        read(tmp_path, nested, transform=Transform(lambda rows: rows, format="numpy"))


def test_times_that_python_has_are_what_pyarrow_makes_of_them(tmp_path: Path) -> None:
    times = pa.array([None, 10**15], pa.timestamp("us"))
    assert read(tmp_path, times, output_format="dict") == times.to_pylist()
