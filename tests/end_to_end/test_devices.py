"""`device=`: the same batches on a device, ahead of the loop, and states that count what was handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.resume.helpers import plain
from torch_dataloader_utils import OptionError, StructuredDataset

ROWS = 120
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def table(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "maybe": pa.array([None if number % 7 == 0 else number for number in ids.tolist()], pa.int32()),
            "a": ids.astype(np.float32),
            "b": ids.astype(np.float32) * 2,
            "vector": pa.array([[0.5, float(number)] for number in ids], pa.list_(pa.float32(), 2)),
            "items": pa.array([list(range(number % 4)) for number in ids.tolist()], pa.list_(pa.int32())),
            "more": pa.array([[number] * (number % 3) for number in ids.tolist()], pa.list_(pa.int32())),
            "city": [("Oslo", "Lima", None)[number % 3] for number in ids.tolist()],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """120 rows in three files of row groups of 10, 20 and 40 rows."""
    path = tmp_path_factory.mktemp("devices")
    for number, size in enumerate((10, 20, 40)):
        pq.write_table(table(number * 40, 40), path / f"part-{number}.parquet", row_group_size=size)
    return str(path)


FORMS: dict[str, dict[str, Any]] = {
    "dense": {"columns": ["id", "maybe", "vector", "city"], "nulls": "mask"},
    "ragged": {"columns": ["id", "items", "city"]},
    "padded": {"columns": ["id", "items"], "lists": "padded", "pad_multiple": 4},
    "nested": {"columns": ["id", "items"], "lists": "nested"},
    "stack": {"columns": ["id", "a", "b"], "stack": {"x": ["a", "b"]}},
    "jagged": {"columns": ["id", "items", "more"], "jagged": {"features": ["items", "more"]}},
    "bytes": {"columns": ["id", "city"], "strings": "bytes", "nulls": "fill", "fill_values": {"city": ""}},
    "codes": {"columns": ["id", "city"], "strings": "codes", "nulls": "fill", "fill_values": {"city": ""}},
    "packed": {"columns": ["items"], "pack": ["items"], "pack_length": 16, "batch_size": 2},
    "by length": {"columns": ["id", "items"], "batch_tokens": 24, "lists": "padded"},
    "padded last": {"columns": ["id", "city"], "last_batch": "pad", "shuffle": True},
    "unknown counts": {"columns": ["id", "city"], "filters": [("id", ">", 17), ("a", "<", 100.0)]},
}


def make(folder: str, **options: Any) -> Any:
    given = {"num_ranks": 1, "rank": 0, "num_workers": 0, "batch_size": 7, "split_rows": 20} | options
    return StructuredDataset.create_dataloader(folder, **given)[0]


def read(loader: Any) -> list[Any]:
    return [plain(unnested(batch)) for batch in loader]


def unnested(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [list(row) for row in value.unbind()] if isinstance(value, torch.Tensor) and value.is_nested else value
        for key, value in batch.items()
    }


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_the_same(folder: str, form: str) -> None:
    expected = read(make(folder, **FORMS[form]))
    loader = make(folder, device="cpu", **FORMS[form])
    assert expected
    assert read(loader) == expected
    assert len(read(loader)) > 1  # the next epoch


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_without_a_gpu_construction_fails(folder: str, device: Any) -> None:
    with pytest.raises(OptionError, match=r"needs a GPU.*leave out device"):
        make(folder, device=device)
