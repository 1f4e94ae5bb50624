"""The work per column does not grow with the number of columns."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from torch_dataloader_utils.formats.parquet.guards import int96_columns
from torch_dataloader_utils.formats.text.csv import FORMAT
from torch_dataloader_utils.formats.text.plan import TextPlan
from torch_dataloader_utils.schemas.columns import find_path, select_columns

FEW, TIMES = 1_000, 16


def wide(columns: int) -> pa.Schema:
    return pa.schema([(f"column_{number}", pa.int64()) for number in range(columns)])


def select(columns: int) -> Callable[[], Any]:
    schema = wide(columns)
    return lambda: select_columns(schema, schema.names)


def parse_csv(columns: int) -> Callable[[], Any]:
    schema = wide(columns)
    plan = TextPlan(1, names=tuple(schema.names))
    return lambda: FORMAT.parser("f.csv", plan, FORMAT.options, schema)


def look_for_int96(columns: int) -> Callable[[], Any]:
    schema = wide(columns)
    leaves = [SimpleNamespace(path=name, physical_type="INT96") for name in schema.names]
    metadata: Any = SimpleNamespace(schema=SimpleNamespace(column=leaves.__getitem__), num_columns=columns)
    return lambda: int96_columns(metadata, schema)


@pytest.mark.parametrize("work", [select, parse_csv, look_for_int96])
def test_work_grows_with_the_number_of_columns_not_its_square(work: Callable[[int], Callable[[], Any]]) -> None:
    def seconds(run: Callable[[], Any]) -> float:
        began = time.process_time()
        run()
        return time.process_time() - began

    few, many = work(FEW), work(FEW * TIMES)
    least = [min(seconds(run) for _ in range(tries)) for run, tries in ((few, 8), (many, 2))]
    assert least[1] < least[0] * TIMES * 4  # the square would be 16 times as much again


def test_a_name_that_occurs_twice_is_looked_up_below_structs_as_before() -> None:
    struct = pa.struct({"b": pa.int8()})
    assert find_path(pa.schema([("a", struct), ("a.b", pa.int8())]), "a.b") == ("a.b",)
    assert find_path(pa.schema([("a", struct)]), "a.b") == ("a", "b")
    assert find_path(pa.schema([("a", struct)]), "a.c") is None
