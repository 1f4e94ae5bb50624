"""Map-style datasets, importable by worker processes."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset


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
