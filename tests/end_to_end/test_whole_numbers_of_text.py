"""Whole numbers in CSV and JSON are delivered exactly, or are an error: they never become a float that rounds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import SchemaMismatchError

ODD = 2**53 + 1  # the first whole number that float64 does not have
LARGE = 2**64 - 1

WRITERS: dict[str, Any] = {
    "csv": lambda values: "x\n" + "".join(f"{value}\n" for value in values),
    "jsonl": lambda values: "".join(f'{{"x": {value}}}\n' for value in values),
    "json": lambda values: "[" + ",\n".join(f'{{"x": {value}}}' for value in values) + "]",
}


def write(folder: Path, suffix: str, *files: Sequence[Any]) -> None:
    for number, values in enumerate(files):
        (folder / f"{number}.{suffix}").write_text(WRITERS[suffix](values))


def read(folder: Path, **options: Any) -> torch.Tensor:
    """The values of the column x, in file order."""
    loader, _ = StructuredDataset.create_dataloader(str(folder), batch_size=1000, **options)
    return torch.cat([batch["x"] for batch in loader])


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("files", [[[1, ODD], [0.5]], [[0.5], [1, ODD]], [[1, ODD, 0.5]], [[-1, LARGE]], [[10**30, 1]]])
def test_a_whole_number_that_would_be_rounded_is_an_error_that_names_file_column_and_schema(
    tmp_path: Path, suffix: str, files: list[list[Any]]
) -> None:
    write(tmp_path, suffix, *files)
    value = next(value for values in files for value in values if abs(value) > 2**53)
    with pytest.raises(SchemaMismatchError, match=rf"\d\.{suffix}, line \d, column 'x': .*{value}.*Set schema="):
        read(tmp_path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_types_that_the_error_names_hold_or_round_the_number(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, [ODD, 0.5])
    decimal = pa.schema({"x": pa.decimal128(20, 1)})
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), schema=decimal, output_format="dict")
    assert next(iter(loader))["x"] == [Decimal(ODD), Decimal("0.5")]
    assert read(tmp_path, schema=pa.schema({"x": pa.float64()})).tolist() == [2**53, 0.5]
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), schema=pa.schema({"x": pa.string()}))
    assert next(iter(loader))["x"] == [str(ODD), "0.5"]


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("files", [[[1, LARGE, ODD]], [[1, 2], [LARGE, ODD]], [[LARGE, ODD], [1, 2]]])
def test_ids_above_int64_are_unsigned(tmp_path: Path, suffix: str, files: list[list[int]]) -> None:
    write(tmp_path, suffix, *files)
    values = read(tmp_path)
    assert values.dtype == torch.uint64
    assert values.tolist() == [value for file in files for value in file]


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_negative_number_beside_ids_above_int64_is_an_error(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, [1, -2], [LARGE])
    with pytest.raises(SchemaMismatchError, match=rf"0\.{suffix}, line \d, column 'x': '-2' cannot be read as uint64"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_floats_that_are_written_as_floats_may_be_as_large_as_they_like(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, ["9007199254740993.0", "1.7e300", 2**60, "0.25"])
    assert read(tmp_path).tolist() == [2.0**53, 1.7e300, 2.0**60, 0.25]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"id": [LARGE], "w": 0.5}, pa.struct({"id": pa.list_(pa.uint64()), "w": pa.float64()})),
        ([{"a": LARGE, "b": 0.5}, {"a": 1, "b": LARGE}], None),
        ({"id": [ODD, 0.5]}, None),
    ],
)
@pytest.mark.parametrize("array", [False, True])
def test_whole_numbers_in_lists_and_objects_are_exact_or_an_error(
    tmp_path: Path, value: Any, kind: pa.DataType | None, array: bool
) -> None:
    text = json.dumps({"n": 1, "x": value})
    (tmp_path / "a.json").write_text(f"[{text}]" if array else f"{text}\n")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), output_format="arrow")
    if kind is None:
        with pytest.raises(SchemaMismatchError, match="column 'x'"):
            next(iter(loader))
        return
    (batch,) = list(loader)
    assert batch.schema.field("x").type == kind
    assert batch["x"].to_pylist() == [value]


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("bad", ["error", "skip"])
def test_files_are_checked_alike_when_damage_and_bad_lines_are_left_out(tmp_path: Path, suffix: str, bad: str) -> None:
    write(tmp_path, suffix, [0.5, ODD, 3])
    options = {"on_error": "skip", "format_options": {"on_bad_lines": bad}}
    if bad == "skip":
        assert read(tmp_path, **options).tolist() == [0.5, 3]
    else:
        with pytest.raises(SchemaMismatchError, match="column 'x'"):
            read(tmp_path, **options)
    assert read(tmp_path, schema=pa.schema({"x": pa.float64()}), **options).tolist() == [0.5, 2**53, 3]


WHOLE = st.integers(-3, 3) | st.integers(2**53 - 2, 2**53 + 3) | st.integers(0, LARGE + 2) | st.integers(-(2**64), 0)


@given(
    files=st.lists(st.lists(WHOLE | st.sampled_from([0.5, 1e20]), min_size=1, max_size=4), min_size=1, max_size=3),
    suffix=st.sampled_from(list(WRITERS)),
)
def test_each_number_is_delivered_as_it_is_written_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Any]], suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    write(folder, suffix, *files)
    try:
        values = read(folder).tolist()
    except SchemaMismatchError:
        assert any(abs(value) > 2**53 for file in files for value in file)
        return
    assert values == [value for file in files for value in file]
