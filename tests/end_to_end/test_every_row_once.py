"""Files to batches: every row exactly once over the ranks, exact batches, one sequence from all drivers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_dataloader_utils import StructuredDataset

# Integer division: every seventh row, which no statistics can prune. Neither is `id` always among the columns.
SEVENTHS = pc.field("id") - pc.field("id") / 7 * 7 == 0
LAYOUTS = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), min_size=1, max_size=5).filter(
    lambda files: any(map(any, files))
)


@dataclass(frozen=True)
class Table:
    path: Path
    rows: int


def write_files(folder: Path, layout: list[list[int]]) -> Table:
    """Files of row groups of these sizes, with an `id` that counts through them, a float, a text and a list."""
    at = 0
    for number, groups in enumerate(layout):
        rows = np.arange(at, at + sum(groups))
        table = pa.table(
            {
                "id": rows,
                "x": (rows * 0.5).astype(np.float32),
                "name": [f"row {row}" for row in rows],
                "items": pa.array([list(range(row % 4)) for row in rows], pa.list_(pa.int32())),
            }
        )
        with pq.ParquetWriter(folder / f"part-{number}.parquet", table.schema) as writer:
            for size in groups:
                writer.write_table(table.slice(0, size))
                table = table.slice(size)
        at += sum(groups)
    return Table(folder, at)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def plain(batch: dict[str, Any]) -> list[Any]:
    """A batch as comparable lists."""
    flat: list[Any] = []
    for key, value in batch.items():
        if isinstance(value, dict):
            flat.append((key, {name: part.tolist() for name, part in value.items()}))
        else:
            flat.append((key, value.tolist() if isinstance(value, torch.Tensor) else value))
    return flat


def batches_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    loader, _ = StructuredDataset.create_dataloader(str(path), **options)
    return list(loader)


@settings(max_examples=40)
@given(layout=LAYOUTS, data=st.data())
def test_each_row_once_in_exact_batches(layout: list[list[int]], data: st.DataObject) -> None:
    num_ranks, workers = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 0, 1, 2, 3]))
    size, epoch = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 3))
    options: dict[str, Any] = {
        "batch_size": size,
        "num_workers": workers,
        "shuffle": data.draw(st.booleans()),
        "split_rows": data.draw(st.sampled_from([1, 20, 1000])),
        "columns": data.draw(st.sampled_from([None, ["id"], ["x", "id"], ["name", "items", "id"]])),
        "strings": data.draw(st.sampled_from(["list", "bytes"])),
    }
    keep = data.draw(st.sampled_from([None, 2, 7]))
    if keep is not None:
        options["filters"] = SEVENTHS if keep == 7 else [("x", ">=", 10), ("x", "<", 30)]
    with tempfile.TemporaryDirectory() as name:
        table = write_files(Path(name), layout)
        seen: list[int] = []
        for rank in range(num_ranks):
            loader, dataset = StructuredDataset.create_dataloader(name, num_ranks=num_ranks, rank=rank, **options)
            dataset.set_epoch(epoch)
            batches = list(loader)
            sizes = [len(batch["id"]) for batch in batches]
            short = [length for length in sizes if length != size]
            assert all(0 < length < size for length in short)
            if keep is None:
                assert len(sizes) == dataset.plan(epoch).steps
                assert short == sizes[-1:][: len(short)]  # at most one, and it comes last
            else:
                assert len(short) <= max(workers or 1, 1)
            for batch in batches:
                assert list(batch) == (options["columns"] or ["id", "x", "name", "items"])
                ids = batch["id"].tolist()
                seen += ids
                if "x" in batch:
                    assert batch["x"].tolist() == [row * 0.5 for row in ids]
                if "name" in batch and options["strings"] == "list":
                    assert batch["name"] == [f"row {row}" for row in ids]
                if "items" in batch:
                    assert np.diff(batch["items"]["offsets"]).tolist() == [row % 4 for row in ids]
    wanted = range(table.rows)
    if keep is not None:
        wanted = [row for row in wanted if (row % 7 == 0 if keep == 7 else 10 <= row * 0.5 < 30)]
    assert sorted(seen) == list(wanted)


@settings(max_examples=15)
@given(layout=LAYOUTS, data=st.data())
def test_threads_and_inline_give_the_same_sequence(layout: list[list[int]], data: st.DataObject) -> None:
    options: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 30)),
        "shuffle": True,
        "split_rows": 30,
        "num_ranks": 2,
        "rank": data.draw(st.integers(0, 1)),
    }
    with tempfile.TemporaryDirectory() as name:
        path = write_files(Path(name), layout).path
        one = [list(map(plain, batches_of(path, num_workers=workers, **options))) for workers in (0, None, 1)]
        assert one[0] == one[1] == one[2]
        tight = [plain(batch) for batch in batches_of(path, num_workers=3, prefetch_bytes=1, **options)]
        assert tight == [plain(batch) for batch in batches_of(path, num_workers=3, **options)]


def test_file_order_without_shuffle(tmp_path: Path) -> None:
    table = write_files(tmp_path, [[30, 7], [1], [50]])
    batches = batches_of(tmp_path, batch_size=16)
    assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(table.rows))


def test_epochs_differ_and_repeat(tmp_path: Path) -> None:
    write_files(tmp_path, [[10] * 4] * 4)
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), batch_size=7, shuffle=True, split_rows=10)
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(torch.cat([batch["id"] for batch in loader]).tolist())
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
