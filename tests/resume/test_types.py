"""Every type of column: a begun pass goes on in a copy, in another process, and from its state."""

from __future__ import annotations

import copy
import decimal
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.resume.helpers import batches, make
from torch_dataloader_utils import Processes

ROWS = range(12)


def element(kind: pa.DataType, nullable: bool = True) -> pa.Field:
    return pa.field("element", kind, nullable)


def item(kind: pa.DataType) -> pa.Field:
    return pa.field("item", kind)


def lists(length: int | None = None) -> list[list[int]]:
    return [[row] * (row % 3 if length is None else length) for row in ROWS]


def vectors(field: pa.Field) -> pa.Array:
    return pa.array(lists(2), pa.list_(field, 2))


def one_key(*, keys_sorted: bool = False) -> pa.Array:
    return pa.array([[("a", row)] for row in ROWS], pa.map_(pa.string(), pa.int64(), keys_sorted=keys_sorted))


def storage(kind: pa.DataType, values: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, values)


NUMBERS = np.arange(len(ROWS))
COLUMNS: dict[str, pa.Array] = {
    **{str(kind): pa.array(ROWS, kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.float64())},
    "halffloat": pa.array(NUMBERS.astype(np.float16)),
    "bool": pa.array([row % 2 == 0 for row in ROWS]),
    "timestamp": pa.array(ROWS, pa.timestamp("us", "UTC")),
    "date": pa.array(ROWS, pa.date32()),
    "time": pa.array(ROWS, pa.time64("us")),
    "duration": pa.array(ROWS, pa.duration("ms")),
    "decimal": pa.array([decimal.Decimal(row) for row in ROWS], pa.decimal128(10, 2)),
    "string": pa.array([f"row {row}" for row in ROWS]),
    "string_view": pa.array([f"row {row}" for row in ROWS], pa.string_view()),
    "large_binary": pa.array([b"x" * row for row in ROWS], pa.large_binary()),
    "dictionary": pa.array([f"kind {row % 3}" for row in ROWS]).dictionary_encode(),
    "vector": vectors(element(pa.float32())),
    "vector of items": vectors(item(pa.float32())),
    "vector without nulls": vectors(element(pa.float32(), nullable=False)),
    "list": pa.array(lists(), pa.list_(element(pa.int32()))),
    "list without nulls": pa.array(lists(), pa.list_(element(pa.int32(), nullable=False))),
    "large_list": pa.array(lists(), pa.large_list(item(pa.int32()))),
    "lists of vectors": pa.array([[[row, row]] for row in ROWS], pa.list_(element(pa.list_(element(pa.int8()), 2)))),
    "struct": pa.StructArray.from_arrays(
        [pa.array(ROWS), vectors(element(pa.float32()))],
        fields=[pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.list_(element(pa.float32()), 2))],
    ),
    "map": one_key(),
    "map of sorted keys": one_key(keys_sorted=True),
    "map of vectors": pa.array([[(row, [row, row])] for row in ROWS], pa.map_(pa.int8(), pa.list_(item(pa.int8()), 2))),
    "union": pa.UnionArray.from_sparse(
        pa.array([row % 2 for row in ROWS], pa.int8()), [pa.array(ROWS), vectors(element(pa.float32()))]
    ),
    "uuid": storage(pa.uuid(), pa.array([uuid.UUID(int=row).bytes for row in ROWS], pa.binary(16))),
    "json": storage(pa.json_(), pa.array([f"[{row}]" for row in ROWS])),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(48, dtype=np.float32).reshape(12, 2, 2)),
}  # fmt: skip
NOT_IN_PARQUET = {"union"}


def write(folder: Path, kind: str, columns: dict[str, pa.Array]) -> str:
    table = pa.table({"id": pa.array(ROWS), **columns})
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=4)
    else:
        with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return str(folder)


def same(batch: Any) -> Any:
    """A transform or collate_fn that other processes find."""
    return batch


def begun(folder: str, **options: Any) -> tuple[Any, list[str]]:
    """A loader after two batches, and those that are left."""
    rest = [repr(batch) for batch in batches(make(folder, **options))[2:]]
    loader = make(folder, **options)
    for _ in zip(range(2), loader, strict=False):
        pass
    return loader, rest


def told(loader: Any) -> list[str]:
    return [repr(batch) for batch in batches(loader)]


@pytest.mark.parametrize("options", [{}, {"transform": same}], ids=["plain", "transform"])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("parquet", "ipc") for name in COLUMNS
                       if kind == "ipc" or name not in NOT_IN_PARQUET]
)  # fmt: skip
def test_a_begun_pass_goes_on_in_a_copy(tmp_path: Path, kind: str, name: str, options: dict[str, Any]) -> None:
    folder = write(tmp_path, kind, {"x": COLUMNS[name]})
    loader, rest = begun(folder, **options)
    state, report = json.dumps(loader.state_dict()), loader.dataset._latest.planner.report(0, 0)
    for twin in (pickle.loads(pickle.dumps(loader.dataset)), copy.deepcopy(loader.dataset)):
        twin.load_state_dict(loader.state_dict())
        assert json.dumps(twin.state_dict()) == state
        assert twin._latest.planner.report(0, 0) == report  # ranks with a loader and with a copy agree
        assert told(twin) == rest
    again = make(folder, **options)
    again.load_state_dict(json.loads(state))
    assert told(again) == rest


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
def test_a_begun_pass_goes_on_in_spawned_processes(tmp_path: Path, kind: str) -> None:
    columns = {name: column for name, column in COLUMNS.items() if kind == "ipc" or name not in NOT_IN_PARQUET}
    folder = write(tmp_path, kind, columns)
    processes = {"worker_mode": Processes(context="spawn"), "num_workers": 1}
    loader, rest = begun(folder, transform=same, **processes)
    loader.load_state_dict(loader.state_dict())  # copies go on where a state was loaded
    assert told(pickle.loads(pickle.dumps(loader.dataset))) == rest
    theirs = torch.utils.data.DataLoader(
        loader.dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn", collate_fn=same
    )
    assert told(theirs) == rest
    loader.dataset.close()


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("int8", "08eda6f3ae1dae86"),
        ("string", "3346f9835b4522e4"),
        ("list", "05eb585c0f2a1576"),
        ("vector", "407bb66d11736adc"),
        ("struct", "65038e837a8d61f8"),
    ],
)
def test_digests_of_schemas_are_frozen(tmp_path: Path, name: str, digest: str) -> None:
    """States of an older release are loaded: these are its digests, of Parquet files."""
    state = make(write(tmp_path, "parquet", {"x": COLUMNS[name]})).state_dict()
    assert state["data"]["schema"][0] == digest
