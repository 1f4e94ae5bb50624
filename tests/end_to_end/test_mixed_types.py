"""Files that have ints and floats in one column: read as float64, exactly."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import SchemaMismatchError

LARGEST = 2**53  # float64 has every whole number up to here

WRITERS: dict[str, Any] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=2),
    "orc": pa.orc.write_table,
    "arrow": pa.feather.write_feather,
}


def read(folder: Path, **options: Any) -> list[Any]:
    """The values of the column x, in file order."""
    loader, _ = StructuredDataset.create_dataloader(str(folder), columns=["x"], batch_size=1000, **options)
    return [value for batch in loader for value in batch["x"].tolist()]


@pytest.mark.parametrize("suffix", WRITERS)
def test_ints_and_floats_of_one_column_become_float64(tmp_path: Path, suffix: str) -> None:
    WRITERS[suffix](pa.table({"x": pa.array([1, 2, -LARGEST], pa.int64())}), tmp_path / f"a.{suffix}")
    WRITERS[suffix](pa.table({"x": pa.array([0.5, None], pa.float64())}), tmp_path / f"b.{suffix}")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=10)
    (batch,) = list(loader)
    assert batch["x"].dtype == torch.float64
    assert batch["x"].tolist()[:4] == [1, 2, -LARGEST, 0.5]
    assert batch["x"][4].isnan()


def test_a_whole_number_that_would_be_rounded_is_an_error_that_names_column_file_and_schema(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, LARGEST + 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [2.0]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match=r"a\.parquet: column 'x': .*int64 does not fit double.*Give schema="):
        read(tmp_path)
    assert read(tmp_path, schema=pa.schema({"x": pa.int64()})) == [1, LARGEST + 1, 2]


NUMBERS = st.integers(-LARGEST, LARGEST) | st.integers(-3, 3)


@given(
    ints=st.lists(NUMBERS, min_size=1, max_size=6),
    floats=st.lists(NUMBERS.map(float) | st.just(0.5), min_size=1, max_size=6),
    sign=st.sampled_from(["<", "<=", "=", "!=", ">=", ">", "in"]),
    literal=NUMBERS | st.just(0.5) | st.just(2**60),
    wide=st.booleans(),
)
def test_filters_find_the_same_rows_whichever_type_a_file_has(
    tmp_path_factory: pytest.TempPathFactory, ints: list[int], floats: list[float], sign: str, literal: Any, wide: bool
) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    kind = pa.int64() if wide else pa.uint64()
    ints = ints if wide else [abs(value) for value in ints]
    pq.write_table(pa.table({"x": pa.array(ints, kind)}), folder / "a.parquet", row_group_size=1)
    pq.write_table(pa.table({"x": floats}), folder / "b.parquet", row_group_size=1)
    tests = {
        "<": lambda x: x < literal,
        "<=": lambda x: x <= literal,
        "=": lambda x: x == literal,
        "!=": lambda x: x != literal,
        ">=": lambda x: x >= literal,
        ">": lambda x: x > literal,
        "in": lambda x: x == literal,
    }
    expected = [float(value) for value in [*ints, *floats] if tests[sign](value)]
    given_literal = [literal] if sign == "in" else literal
    assert read(folder, filters=[("x", sign, given_literal)]) == expected


@pytest.mark.skipif(not hasattr(pa, "bool8"), reason="this pyarrow has no such type")
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_bools_of_a_byte_are_a_tensor_of_bools_and_can_be_filtered(tmp_path: Path, suffix: str) -> None:
    bools = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1, 5], pa.int8()))
    WRITERS[suffix](pa.table({"x": bools, "id": range(4)}), tmp_path / f"a.{suffix}")
    (batch,) = StructuredDataset.create_dataloader(str(tmp_path), batch_size=9)[0]
    assert batch["x"].dtype == torch.bool
    assert batch["x"].tolist() == [True, False, True, True]
    (batch,) = StructuredDataset.create_dataloader(str(tmp_path), batch_size=9, filters=[("x", "=", True)])[0]
    assert batch["id"].tolist() == [0, 2, 3]


def test_ints_beside_decimals_that_hold_them_are_decimals(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([2**63 - 1, None], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([Decimal(7)], pa.decimal128(38, 0))}), tmp_path / "b.parquet")
    for filters in (None, [("x", ">", 6)]):
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path), output_format="arrow", filters=filters)
        (batch,) = list(loader)
        assert batch["x"].drop_null().to_pylist() == [Decimal(2**63 - 1), Decimal(7)]
