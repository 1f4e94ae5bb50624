"""The first `next` imports nothing foreign, so it is not slow, and no Ctrl-C is lost in pyarrow's import of pandas."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

JOB = Path(__file__).with_name("first_batch_job.py")
MOMENT = datetime(2026, 1, 2)
COLUMNS: dict[str, Any] = {
    "integer": pa.array([1, 2] * 5),
    "bool": pa.array([True, False] * 5),
    "float_null": pa.array([1.5, None] * 5),
    "string": pa.array(["a", "b"] * 5),
    "string_null": pa.array(["a", None] * 5),
    "binary": pa.array([b"a", b"b"] * 5),
    "fixed_binary": pa.array([b"ab"] * 10, pa.binary(2)),
    "dictionary": pa.array(["a", "b"] * 5).dictionary_encode(),
    "null": pa.nulls(10),
    "date": pa.array([date(2026, 1, 2)] * 10),
    "time": pa.array([time(1)] * 10),
    "time_s": pa.array([time(1)] * 10, pa.time32("s")),
    "time_ns": pa.array([time(1)] * 10, pa.time64("ns")),
    "timestamp": pa.array([MOMENT] * 10),
    "timestamp_ns": pa.array([MOMENT] * 10, pa.timestamp("ns")),
    "timestamp_utc": pa.array([MOMENT] * 10, pa.timestamp("us", "UTC")),
    "duration": pa.array([timedelta(1)] * 10),
    "duration_ns": pa.array([timedelta(1)] * 10, pa.duration("ns")),
    "decimal": pa.array([Decimal("1.5")] * 10),
    "list": pa.array([[1, 2], [3]] * 5),
    "fixed_list": pa.array([[1, 2]] * 10, pa.list_(pa.int32(), 2)),
    "list_of_strings": pa.array([["a"], None] * 5),
    "list_of_timestamps": pa.array([[MOMENT]] * 10),
    "list_of_lists": pa.array([[[1]]] * 10),
    "map": pa.array([[("a", 1)]] * 10, pa.map_(pa.string(), pa.int64())),
    "struct": pa.array([{"x": 1}] * 10),
    "struct_of_strings": pa.array([{"x": "a"}] * 10),
}
NANOSECONDS = COLUMNS["timestamp_ns"]
COLUMNS_OF_IPC: dict[str, Any] = {  # Parquet keeps only the values
    "dictionary_ns": NANOSECONDS.dictionary_encode(),
    "extension_ns": pa.ExtensionArray.from_storage(pa.opaque(NANOSECONDS.type, "name", "vendor"), NANOSECONDS),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("types")
    for name, column in COLUMNS.items():
        pq.write_table(pa.table({name: column}), folder / f"{name}.parquet")
    for name, column in COLUMNS_OF_IPC.items():
        pf.write_feather(pa.table({name: column}), folder / f"{name}.arrow")
    return sorted(folder.iterdir())


def found(what: str, options: dict[str, Any], files: list[Path]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, JOB, what, json.dumps(options), *files], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        {"output_format": "torch"},
        {"output_format": "torch", "num_workers": 0, "shuffle": True},
        {"output_format": "numpy", "num_workers": 0},
        {"output_format": "arrow", "num_workers": 0, "shuffle": True},
        {"output_format": "dict", "num_workers": 0},
    ],
    ids=str,
)
def test_the_first_batch_imports_no_foreign_module(files: list[Path], options: dict[str, Any]) -> None:
    assert {name: new for name, new in found("imports", options, files).items() if new} == {}


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["torch", "dict"])
def test_a_ctrl_c_during_the_first_batch_is_not_lost(files: list[Path], output_format: str) -> None:
    lost = found("interrupts", {"output_format": output_format, "num_workers": 0}, files)
    assert lost == dict.fromkeys([*COLUMNS, *COLUMNS_OF_IPC], False)
