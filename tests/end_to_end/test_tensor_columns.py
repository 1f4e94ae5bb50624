"""Files with columns of `arrow.fixed_shape_tensor`: batches of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import StructuredDataset

PIXELS = np.arange(20 * 24, dtype=np.uint8).reshape(20, 2, 4, 3)  # height, width, channels
KIND = pa.fixed_shape_tensor(pa.uint8(), [2, 4, 3], dim_names=["H", "W", "C"], permutation=[2, 0, 1])


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    root = tmp_path_factory.mktemp("tensors")
    storage = pa.array(PIXELS.reshape(20, -1).tolist(), KIND.storage_type)
    table = pa.table({"id": range(20), "image": pa.ExtensionArray.from_storage(KIND, storage)})
    if request.param == "parquet":
        pq.write_table(table, root / "a.parquet", row_group_size=6)
    else:
        with pa.ipc.new_file(root / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
    return str(root)


def images(batches: list[Any]) -> list[Any]:
    """Id and image of each row, as plain values."""
    rows = [zip(batch["id"].tolist(), batch["image"].tolist(), strict=True) for batch in batches]
    return [row for pairs in rows for row in pairs]


EXPECTED = [(i, PIXELS[i].transpose(2, 0, 1).tolist()) for i in range(20)]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_rows_are_tensors_of_the_logical_shape(folder: str, output_format: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=8, output_format=output_format)
    batches = list(loader)
    assert [tuple(batch["image"].shape) for batch in batches] == [(8, 3, 2, 4), (8, 3, 2, 4), (4, 3, 2, 4)]
    assert batches[0]["image"].dtype == (torch.uint8 if output_format == "torch" else np.uint8)
    assert images(batches) == EXPECTED


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "worker_mode": "processes"}], ids=str)
def test_rows_are_filtered_shuffled_and_cast(folder: str, workers: dict[str, Any]) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, filters=[("id", ">=", 5)], shuffle=True, dtypes={"uint8": "float32"}, batch_size=4, **workers
    )
    batches = list(loader)
    assert {batch["image"].dtype for batch in batches} == {torch.float32}
    assert sorted(images(batches)) == EXPECTED[5:]
    dataset.close()


def test_arrow_batches_keep_the_type(folder: str) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, output_format="arrow", batch_size=8)
    batches = list(loader)
    assert {str(batch.schema.field("image").type) for batch in batches} == {str(KIND)}
    table = pa.Table.from_batches(batches)
    assert table["image"].combine_chunks().storage.flatten().to_pylist() == PIXELS.ravel().tolist()


def test_a_file_without_the_column_has_nulls(tmp_path: Path) -> None:
    type_ = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1.0, 2.0, 3.0, 4.0]], type_.storage_type)
    pq.write_table(pa.table({"id": [0], "x": pa.ExtensionArray.from_storage(type_, storage)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=2)
    (batch,) = list(loader)
    assert batch["x"][0].tolist() == [[1, 2], [3, 4]]
    assert batch["x"][1].isnan().all()


def test_a_transform_may_make_tensors(folder: str) -> None:
    def flat(batch: pa.RecordBatch) -> pa.RecordBatch:
        storage = batch["image"].storage
        grey = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [4, 6]), storage)
        return pa.RecordBatch.from_arrays([batch["id"], grey], names=["id", "image"])

    loader, _ = StructuredDataset.create_dataloader(folder, transform=flat, batch_size=20)
    (batch,) = list(loader)
    assert np.array_equal(batch["image"].numpy(), PIXELS.reshape(20, 4, 6))
