"""Map-style datasets, importable by worker processes; files with the same keys; and what ranks get of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset, Subset

from torch_dataloader_utils import StructuredDataset, combine


class Utterances(Dataset):
    """As the page on dataset sharding writes one, with the shards of its example: `n // total_shards` samples each."""

    def __init__(self, n: int, total_shards: int = 8, dist_world_size: int = 4, first: int = 0) -> None:
        self.n = n
        self.total_shards = total_shards
        self.dist_world_size = dist_world_size
        self.first = first

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, idx: int) -> dict[str, Any]:
        if not 0 <= idx < self.n:
            raise IndexError(idx)
        row = self.first + idx
        return {
            "id": row,
            "speech": torch.arange(row % 5 + 1, dtype=torch.float32),
            "text": f"row {row}",
        }

    def shard(self, shard_idx: int) -> Dataset:
        shard_size = self.n // self.total_shards
        start = shard_idx * shard_size
        return Subset(self, list(range(start, start + shard_size)))


class Plain(Dataset):
    """One without shards."""

    def __init__(self, n: int, first: int = 0) -> None:
        self.n, self.first = n, first

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return Utterances(self.n, first=self.first)[idx]


class Kinds(Dataset):
    """Samples of every kind of value."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return {
            "int": idx,
            "float": idx / 2,
            "flag": idx % 2 == 0,
            "scalar": np.float32(idx),
            "tensor": torch.tensor(idx, dtype=torch.int16, requires_grad=False),
            "learned": torch.full((2,), float(idx), requires_grad=True),
            "image": np.full((2, 3), idx, dtype=np.uint8),
            "wave": np.arange(idx, dtype=np.int32),
            "frames": np.full((idx % 3 + 1, 2), idx, dtype=np.float32),
            "tokens": list(range(idx % 3)),
            "word": None if idx == 3 else f"é{idx}",
            "blob": bytes([idx]),
            "meta": {"speaker": idx, "tags": ["a"] * (idx % 2)},
        }


class Fetched(Plain):
    """Many samples at a time, as Hugging Face datasets give them."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [{**self[idx], "id": -self[idx]["id"]} for idx in indices]


class Broken(Plain):
    """Sample 7 is what `bad` says."""

    def __init__(self, n: int, bad: Any) -> None:
        super().__init__(n)
        self.bad = bad

    def __getitem__(self, idx: int) -> dict[str, Any]:
        if idx != 7:
            return super().__getitem__(idx)
        if isinstance(self.bad, Exception):
            raise self.bad
        return self.bad


def write(folder: Path, first: int, rows: int, **other: Any) -> Path:
    """A folder of two files with the keys of `Utterances`, in row groups of 10."""
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(first, first + rows), 2)):
        speech = pa.array([np.arange(row % 5 + 1, dtype=np.float32) for row in ids], pa.list_(pa.float32()))
        table = pa.table({"id": ids, "speech": speech, "text": [f"row {row}" for row in ids]} | other)
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=10)
    return folder


def structured(folder: Path, **options: Any) -> StructuredDataset:
    return StructuredDataset.create_dataloader(folder, **options)[1]


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


def epoch_of(datasets: list[Any], ranks: int, epoch: int = 0, **options: Any) -> list[list[int]]:
    """The ids that each rank delivers; every value of a row is checked."""
    found = []
    for rank in range(ranks):
        loader = combine(datasets, num_ranks=ranks, rank=rank, **options)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == loader.plan(epoch).steps
        for batch in batches:
            check_values(batch)
        if batches and "valid" in batches[0]:
            batches = [{"id": batch["id"][batch["valid"]]} for batch in batches]
        found.append(ids(batches))
        loader.close()
    return found


def check_values(batch: dict[str, Any]) -> None:
    rows = batch["id"].tolist()
    assert batch["text"] == [f"row {row}" for row in rows]
    speech = batch["speech"]
    assert speech["values"].dtype == torch.float32
    bounds = speech["offsets"].tolist()
    for row, first, last in zip(rows, bounds, bounds[1:], strict=False):
        assert speech["values"][first:last].tolist() == list(range(row % 5 + 1))
