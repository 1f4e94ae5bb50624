"""A format added outside the package, in this one file: points of fixed width in blocks, behind a header.

POINTS01, rows in a block (int32), rows (int64), then of each row: id (int64), x (float32)
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import torch_dataloader_utils  # workers import this module: naming StructuredDataset here would cost them torch
from torch_dataloader_utils import Processes, register_format
from torch_dataloader_utils.formats.base import BatchReader, Format
from torch_dataloader_utils.formats.sizes import counted_layout
from torch_dataloader_utils.model import DataFileInfo, FileLayout
from torch_dataloader_utils.testing import check_format

MAGIC = b"POINTS01"
HEADER = struct.Struct("<8siq")
SCHEMA = pa.schema({"id": pa.int64(), "x": pa.float32()})
POINT = np.dtype([("id", "<i8"), ("x", "<f4")])


class GridReader(BatchReader):
    schema = SCHEMA

    def batches(self, numbers: list[int], columns: list[str]) -> list[pa.RecordBatch]:
        return [self.block(*self.metadata[number]) for number in numbers]

    def block(self, offset: int, rows: int) -> pa.RecordBatch:
        points = np.frombuffer(self.source.read_at(rows * POINT.itemsize, offset), POINT)
        return pa.record_batch({name: np.ascontiguousarray(points[name]) for name in POINT.names or ()})


class Grid(Format):
    name = "grid"
    segment_name = "block"
    columnar = False  # the values of a row lie side by side
    described = "header"
    reader = GridReader

    def inspect(
        self, source: pa.NativeFile, file: DataFileInfo, options: Mapping[str, Any]
    ) -> tuple[FileLayout, pa.Schema]:
        magic, block, rows = HEADER.unpack(source.read_at(HEADER.size, 0))
        if magic != MAGIC or file.file_size != HEADER.size + rows * POINT.itemsize:
            raise ValueError(f"{file.file_size} bytes are no points: they begin with {magic!r}.")
        counts = [min(block, rows - first) for first in range(0, rows, block)]
        places = [(HEADER.size + number * block * POINT.itemsize, count) for number, count in enumerate(counts)]
        return counted_layout([(count, count * POINT.itemsize) for count in counts], SCHEMA, places), SCHEMA


register_format(Grid(), suffixes=[".grid"], magic=[MAGIC])


def write(table: pa.Table, path: Path, block: int = 7) -> None:
    points = np.empty(table.num_rows, POINT)
    for name in POINT.names or ():
        points[name] = table[name].to_numpy()
    path.write_bytes(HEADER.pack(MAGIC, block, table.num_rows) + points.tobytes())


def points(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "x": (ids / 2).astype(np.float32)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files of 40 points in blocks of 7."""
    for number in range(5):
        write(points(40 * number, 40), tmp_path / f"{number}.grid")
    return tmp_path


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_mode": Processes(context="spawn")},
    {"num_workers": 2, "worker_mode": Processes(context="fork")},
]


def ids_of(batches: Sequence[Mapping[str, Any]]) -> list[int]:
    for batch in batches:
        assert batch["x"].tolist() == [number / 2 for number in batch["id"].tolist()]
    return [number for batch in batches for number in batch["id"].tolist()]


def test_the_format_keeps_the_contract() -> None:
    check_format(Grid(), write, tables=[points(0, 30), points(5, 7), points(0, 1)], wrong=[b"", MAGIC, b"PAR1" * 9])


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "threads", "spawn", "fork"])
def test_three_ranks_stop_and_resume_and_read_every_row_once(folder: Path, workers: dict[str, Any]) -> None:
    delivered = []
    for rank in range(3):
        options = {"shuffle": True, "batch_size": 8, "split_rows": 7, "num_ranks": 3, "rank": rank, **workers}
        loader, _ = torch_dataloader_utils.StructuredDataset.create_dataloader(folder, **options)
        batches = iter(loader)
        delivered += [next(batches) for _ in range(3)]
        state = loader.state_dict()
        next(batches)
        loader.load_state_dict(state)
        delivered += list(loader)
    assert sorted(ids_of(delivered)) == list(range(200))
